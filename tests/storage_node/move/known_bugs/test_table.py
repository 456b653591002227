"""Each known bug of Apache Kafka's moves between directories has a row in known_bugs.tsv, and each row a test.

A row: the bug's id, what happens in Apache Kafka, what happens here, and the tests that show it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
TABLE = Path(__file__).parents[1] / "known_bugs.tsv"

ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_known_bug_has_one_row() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS) > 0


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4 and all(row), row
    for test in row[3].split(" "):
        path, _, name = test.partition("::")
        assert name.startswith("test_") and name in names_in(path), f"{test} does not exist"
