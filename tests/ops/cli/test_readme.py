"""The README's commands exist with their arguments: they are parsed as the program does it, and not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import pytest

import worker
from ops.cli.main import command
from tests.support.report.readme import README, ROOT

THIS = "tests/ops/cli/test_readme.py"
PAGE = README.read_text()
BLOCKS = re.findall(rf"parsed by {re.escape(THIS)} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
MAKES = sorted(set(re.findall(r"\bmake ([a-z][a-z-]*)(?=[ `\n])", PAGE)))


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a block as words, without comments; `a && b` are two."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            at = words.index("&&")
            yield words[:at]
            words = words[at + 1 :]
        yield words


def parse(arguments: Sequence[str]) -> str:
    """Return the command that these arguments name. Raises what the program would report for invalid ones."""
    at = command()
    context, rest = None, list(arguments)
    name = "rehome"
    while True:
        context = at.make_context(name, rest, parent=context)
        if not hasattr(at, "resolve_command"):
            return str(context.command_path)
        name, at, rest = at.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("words", [each for block in BLOCKS for each in commands(block)], ids=" ".join)
def test_command_of_the_readme_is_one_with_these_arguments(words: list[str]) -> None:
    match words:
        case ["rehome", *arguments]:
            assert parse(arguments).startswith("rehome ")
        case ["python", "worker.py", *arguments]:
            worker.parser().parse_args(arguments)
        case ["export", *settings]:
            assert all("=" in each for each in settings)
        case other:
            raise AssertionError(f"{other} is neither a command of rehome nor of its worker")


def test_each_block_of_the_readme_with_rehome_commands_is_parsed() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```sh\n(?:(?!```)[^\n]*\n)*?rehome ", PAGE, re.MULTILINE)) > 1


@pytest.mark.parametrize("arguments", [["moves", "--no-such-option"], ["no-such-command"], ["drain", "x", "/d"]])
def test_wrong_arguments_are_rejected(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|valid integer"):
        parse(arguments)


def test_make_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"run", "test"} <= set(MAKES) <= targets
