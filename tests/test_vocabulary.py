"""Texts that users read use the field's words: a small table of phrases that they must not contain.

The texts are help texts, errors, log lines and the words of tables in the sources, found with `ast`, the strings of
scripts and templates that browsers load, and the pages (README.md, ARCHITECTURE.md, ops/docs, the packages' READMEs).
The table is small on purpose: it has only phrases with an obvious
replacement and without a legitimate use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.report.readme import tracked_pages

ROOT = Path(__file__).parent.parent
SOURCES = ("storage_node", "workflows", "activities", "ops", "worker.py")


@dataclass(frozen=True)
class Rule:
    """A phrase, its replacement, the reason, and an example of a text that has it."""

    phrase: str
    instead: str
    why: str
    example: str

    def found(self, text: str) -> list[re.Match[str]]:
        """Return the places of the phrase in a text."""
        return list(re.finditer(self.phrase, " ".join(text.split()), re.IGNORECASE))


_ACTOR = "name the actor: the controller, the node, the leader, the client, the operator, the run"
RULES = (
    Rule(r"\b(nobody|no one)\b", "no node, no client, ...", _ACTOR, "nobody responded"),
    Rule(r"\b(somebody|someone)\b", "an operator, another client, ...", _ACTOR, "somebody changed it"),
    Rule(r"\b(whoever|whomever)\b", "the client that ..., an operator who ...", _ACTOR, "whoever asks"),
    Rule(
        r"(?<!\bthere )\bis no (?!longer\b|more\b|less\b|later\b|earlier\b|other\b)\w+",
        "is not a valid X, is not an X, does not exist",
        "an error names the value and what it should be",
        "'x' is no TOPIC-PARTITION",
    ),
    Rule(r"\b(is|are|was|were) not there\b", "does not exist", "the field's word", "the file is not there"),
    Rule(r"\b(is|are|was|were) away\b", "is unavailable, is fenced, is down", "the field's word", "node 1 is away"),
    Rule(r"\b(is|are|was|were|be|been) told\b", "learns, receives, reports", "the protocol's verb", "the node is told"),
    Rule(
        r"\b(do|does|did) not answer\b|\bno answer\b|\b(is|are) answered\b",
        "does not respond, no response",
        "a server responds, a function returns",
        "node 1 does not answer",
    ),
    Rule(r"\b(gets?|got|getting) on\b", "makes progress, continues", "the field's word", "the move gets on"),
    Rule(r"\b(stands?|stood|standing) (on|in)\b", "is on, is in", "plain words", "what stands on the disk"),
    Rule(r"\b(go|goes|going|went) on\b", "continues", "the field's word", "the copy goes on"),
    Rule(
        r"\bask(s|ed|ing)? for\b(?! confirmation)", "requests", "the protocol's verb", "the client asks for a directory"
    ),
    Rule(r"\banew\b", "again", "plain words", "it is made anew"),
    Rule(r"\blook(s|ed|ing)? at\b", "inspects, checks, reads", "plain words", "look at it and move it away"),
    Rule(
        r"(?<!\bin )\ban order\b(?! (in|of|that)\b)",
        "an operator's request, stopped by operator",
        _ACTOR,
        "held by: an order",
    ),
    Rule(r"\bnot asked\b", "no deadline, not requested", "the protocol's verb", "met SLA: not asked"),
    Rule(r"\b(wish|wishes|wished)\b", "request, preferred log directory", "the field's word", "a wish"),
)


@dataclass(frozen=True)
class Allowed:
    """A place that may have a phrase: the file, a part of the text, and the reason."""

    path: str
    text: str
    reason: str


#: Exceptions. An entry without a finding fails: remove it.
ALLOWED: tuple[Allowed, ...] = ()

_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_PRINTS = {"echo", "confirm", "say", "_say", "print", "Typer", "Option", "Argument", "add_argument", "ArgumentParser"}
_KEYWORDS = {"help", "description"}
#: What the names of mappings end with whose values are shown.
_WORDS = "_WORDS"


@dataclass(frozen=True)
class Text:
    """A text that users read."""

    path: str
    line: int
    text: str


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings in an expression; an f-string is one, with {} for its values."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value
        return
    if isinstance(node, ast.JoinedStr):
        parts = [str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values]
        yield node.lineno, "".join(parts)
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                yield from _strings(each.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _commands(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the functions whose docstrings are the help texts of commands."""
    registered = {
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and _name(node.func) == "command"
        for argument in node.args
        if isinstance(argument, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (
            node.name in registered
            or any(isinstance(each, ast.Call) and _name(each) == "command" for each in node.decorator_list)
        ):
            yield node


def texts_of(source: str, path: str) -> list[Text]:
    """Return the texts of a module that users read: of raised errors, log calls, options, output and commands."""
    tree = ast.parse(source)
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            found |= set(_strings(node.exc))
        elif isinstance(node, ast.Call):
            if _name(node) in _LEVELS | _PRINTS:
                found |= set(_strings(node))
            for keyword in node.keywords:
                if keyword.arg in _KEYWORDS:
                    found |= set(_strings(keyword.value))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id.endswith(_WORDS) for each in targets):
                found |= {each for value in node.value.values for each in _strings(value)}
    for command in _commands(tree):
        if text := ast.get_docstring(command):
            found.add((command.body[0].lineno, text))
    return [Text(path, line, text) for line, text in sorted(found)]


def texts_of_script(script: str, path: str) -> list[Text]:
    """Return the strings of a script of a page, line by line, without comments."""
    plain = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), script, flags=re.DOTALL)
    string = re.compile(r'//[^\n]*|"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`([^`\n]*)`')
    found: list[Text] = []
    for number, line in enumerate(plain.splitlines(), 1):
        for match in string.finditer(line):
            if text := next(filter(None, match.groups()), ""):
                found.append(Text(path, number, re.sub(r"\$\{[^}]*\}", "{}", text)))
    return found


def texts_of_template(template: str, path: str) -> list[Text]:
    """Return the lines of a page's template that browsers show, without tags, scripts and expressions."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    plain = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->|\{#.*?#\}|\{%.*?%\}", blank, template, flags=re.DOTALL)
    plain = re.sub(r"\{\{.*?\}\}", "{}", plain)
    plain = re.sub(r"<[^>]*>", blank, plain)
    lines = enumerate(plain.splitlines(), 1)
    return [Text(path, number, line.strip()) for number, line in lines if line.strip()]


def texts_of_page(page: str, path: str) -> list[Text]:
    """Return the paragraphs and the rows of the tables of a page, without code."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    plain = re.sub(r"^(```|~~~).*?^\1", blank, page, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"`[^`\n]*`", "``", plain)
    found: list[Text] = []
    joins = False
    for number, line in enumerate(plain.splitlines(), 1):
        if line and joins and not line.startswith("|"):
            found[-1] = Text(path, found[-1].line, f"{found[-1].text} {line}")
        elif line:
            found.append(Text(path, number, line))
        joins = bool(line) and not line.startswith(("|", "#"))
    return found


#: What browsers load.
_OF_BROWSERS: Mapping[str, Callable[[str, str], list[Text]]] = {
    ".js": texts_of_script,
    ".html": texts_of_template,
    ".j2": texts_of_template,
}


@cache
def all_texts() -> list[Text]:
    """Return all texts of the sources and the pages that users read."""
    found: list[Text] = []
    for name in SOURCES:
        root = ROOT / name
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            found += texts_of(file.read_text(), str(file.relative_to(ROOT)))
    for suffix, texts in _OF_BROWSERS.items():
        for file in sorted((ROOT / "ops").rglob(f"*{suffix}")):
            found += texts(file.read_text(), str(file.relative_to(ROOT)))
    for page in tracked_pages():
        found += texts_of_page(page.read_text(), str(page.relative_to(ROOT)))
    return found


@cache
def findings() -> list[tuple[Text, Rule, str]]:
    """Return each phrase in the texts with its rule, except those that `ALLOWED` has."""
    return [
        (each, rule, match[0])
        for each in all_texts()
        for rule in RULES
        for match in rule.found(each.text)
        if not any(entry.path == each.path and entry.text in each.text for entry in ALLOWED)
    ]


def _message(found: list[tuple[Text, Rule, str]]) -> str:
    lines = [f'{each.path}:{each.line}: "{phrase}": write: {rule.instead} ({rule.why})' for each, rule, phrase in found]
    return "\n".join(
        [*lines, f"If a phrase is right, add an Allowed(path, text, reason) to ALLOWED in {Path(__file__).name}."]
    )


def test_texts_for_users_have_no_phrase_of_the_table() -> None:
    assert {Path(each.path).suffix for each in all_texts()} == {".py", ".md", *_OF_BROWSERS}
    assert not findings(), "\n" + _message(findings())


def test_exceptions_have_a_reason_and_a_finding() -> None:
    for entry in ALLOWED:
        held = [each for each in all_texts() if each.path == entry.path and entry.text in each.text]
        assert entry.reason and any(rule.found(each.text) for each in held for rule in RULES), f"remove {entry}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_rule_finds_its_example_and_not_its_replacement(rule: Rule) -> None:
    assert rule.found(rule.example)
    assert not any(each.found(rule.instead) for each in RULES)


@pytest.mark.parametrize("text", ["there is no stack in x", "it is no longer copied", "the lease is on node 1"])
def test_rules_accept_plain_english(text: str) -> None:
    assert not any(rule.found(text) for rule in RULES)
