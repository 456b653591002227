"""Errors in parts, their exit codes, and the documentation's table of these codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.docs import results
from ops.stack import errors
from ops.stack.errors import MEANINGS, ExitCode, OpsError, Said, as_json, parts_of

PAGE = Path(results.__file__).with_name("command-line.md")


def test_documented_exit_codes_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(str(int(code)), code.word, meaning) for code, meaning in MEANINGS.items()]
    assert set(MEANINGS) == set(ExitCode)


def test_each_code_of_an_error_has_one_class() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, OpsError)]
    codes = [each.exit_code for each in classes]
    assert sorted(codes) == sorted(set(ExitCode) - {ExitCode.OK, ExitCode.INTERRUPTED})


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (
            "cannot reach Temporal at 127.0.0.1:1: refused; is it running? see: rehome stack status",
            Said("cannot reach Temporal at 127.0.0.1:1", "refused", "is it running? see: rehome stack status"),
        ),
        (
            "'orders' is not a valid TOPIC-PARTITION; write for example orders-3",
            Said("'orders' is not a valid TOPIC-PARTITION", "", "write for example orders-3"),
        ),
        (
            "no plan was made: disk a is full; disk b is full",
            Said("no plan was made", "disk a is full; disk b is full"),
        ),
        ("the run x does not exist; see: rehome moves", Said("the run x does not exist", "", "see: rehome moves")),
        ("nothing was changed", Said("nothing was changed")),
        ("interrupted", Said("interrupted")),
        ("", Said("")),
    ],
)
def test_parts_of_a_sentence(message: str, parts: Said) -> None:
    assert parts_of(message) == parts


def test_json_of_an_error_has_all_fields() -> None:
    assert as_json("a: b; see: c", ExitCode.REFUSED, "d") == {
        "version": 1,
        "code": "refused",
        "exit_code": 6,
        "message": "a: b; see: c",
        "what": "a",
        "where": "d",
        "why": "b",
        "next": "see: c",
    }
