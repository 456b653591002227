"""Commands that a message names can be pasted into a shell, whatever the path or name in them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli.moves import throttling
from ops.cli.plan import generate
from ops.cli.reassign import reassign
from ops.stack.state import NoStack
from storage_node.directories import reopening
from storage_node.errors import RequestRefused
from tests.support.report.tables import ROOT
from workflows.model.plans import document
from workflows.model.plans.generate.layout import GeneratedPlan

PATHS = ["/a/my disk", "/a/o'ut", '/a/"x"', "/a/dàta (v2)", "/a/x,y", "/a/50%", "/a/#1", "/a/$HOME;b"]

PLAN = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}

#: What is put into such a command unquoted: numbers, ids, names that Kafka restricts, and words of ours.
PLAIN = {
    *("node", "node.id", "self.node.id", "expected.node_id", "row['node']", "broker", "tp", "found.tp", "replica"),
    *("tp.topic", "' '.join(ids)", "verb", "MOVES", "back", "quoted", "end", "_table(STATUS)", "_table(CONNECTIONS)"),
    *(
        "self._options.minutes",
        "self._options.seed",
        "self._options.more",
        "op",
        "where.node",
        "' '.join(missing)",
        "each",
    ),
}


def commands(path: str) -> dict[str, str]:
    """Return messages with a command that has the path."""
    expected = reopening.Expected(path, "c", 3, (), (), 1)
    with pytest.raises(RequestRefused) as lost:
        reopening._properties(expected, "missing", None, "", False)
    made = GeneratedPlan(document.parse(json.dumps(PLAN)), 0, 50.0, 10.0)
    return {
        f"rehome stack up --data {path}": str(NoStack(Path(path))),
        f"rehome move --file {path} --wait": throttling._call(Path(path)),
        f"rehome reassign --cancel {path}": reassign._left(Path(path), False, False),
        f"rehome dirs replace 3 {path}": str(lost.value),
        f"rehome plan check {path}": generate.lines(made, Path(path))[-1],
    }


@pytest.mark.parametrize("path", PATHS)
def test_command_in_a_message_is_quoted(path: str) -> None:
    for command, message in commands(path).items():
        start = command.removesuffix(" --wait").removesuffix(path)
        pasted = shlex.split(message[message.rindex(start) :])
        assert pasted[: len(start.split()) + 1] == [*start.split(), path]


def unquoted(source: str) -> Iterator[str]:
    """Return what f-strings put into a command of ours without quotes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    before += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    given = ast.unparse(part.value)
                    if re.search(r"\brehome [a-z]+[^;:,()`]*$", before) and "shlex.quote(" not in given:
                        yield given
                    before += "X"


def test_commands_in_messages_quote_what_they_are_given() -> None:
    found = set()
    for folder in ("storage_node", "activities", "workflows", "ops"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if "rehome " in source:
                found |= {f"{path.relative_to(ROOT)}: {each}" for each in unquoted(source) if each not in PLAIN}
    assert not found, "quote it with shlex.quote, or add it to PLAIN"


def test_path_without_quotes_is_found() -> None:
    assert list(unquoted('f"{x}: run: rehome dirs " f"online {node} {path}"')) == ["node", "path"]
    assert not list(unquoted('f"run: rehome dirs online {shlex.quote(path)}; see {path}"'))
