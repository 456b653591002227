"""Each known bug of Apache Kafka's moves between directories has a row in known_bugs.tsv, and each row a test.

A row: the bug's id, what happens in Apache Kafka, what happens here, and the tests that show it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).resolve().parents[4]
TABLE = Path(__file__).parents[1] / "known_bugs.tsv"

#: Issues of Apache Kafka, pull requests of it without one, those of other tools, and weaknesses without a number.
KNOWN = [
    "KAFKA-9087",
    "KAFKA-16082",
    "KAFKA-16157",
    "KAFKA-16234",
    "KAFKA-14616",
    "KAFKA-13127",
    "KAFKA-15605",
    "KAFKA-16180",
    "KAFKA-16814",
    "KAFKA-13790",
    "KAFKA-16297",
    "KAFKA-16365",
    "KAFKA-16886",
    "PR-14954",
    "KAFKA-16583",
    "PR-14770",
    "KAFKA-9594",
    "KAFKA-6949",
    "KAFKA-9750",
    "KAFKA-9654",
    "KAFKA-8002",
    "KAFKA-6975",
    "KAFKA-9263",
    "KAFKA-15608",
    "KAFKA-20961",
    "KAFKA-8362",
    "KAFKA-16709",
    "KAFKA-15082",
    "KAFKA-16114",
    "KAFKA-14824",
    "KAFKA-16424",
    "KAFKA-15391",
    "KAFKA-15572",
    "KAFKA-17727",
    "KAFKA-19571",
    "KAFKA-6624",
    "strimzi-9015",
    "KAFKA-13403",
    "KAFKA-12964",
    "KAFKA-13773",
    "KAFKA-10471",
    "KAFKA-15375",
    "KAFKA-13315",
    "KAFKA-10314",
    "KAFKA-8526",
    "KAFKA-6697",
    "KAFKA-16195",
    "KAFKA-17310",
    "KAFKA-7313",
    "KAFKA-13972",
    "KAFKA-4893",
    "KAFKA-15046",
    "KAFKA-16541",
    "KAFKA-21035",
    "verify-clears-throttles",
    "KAFKA-10779",
    "cruise-control-2370",
    "cancel-filter",
    "KAFKA-14424",
    "cruise-control-1167",
] + [f"4.3-{number}" for number in range(1, 19)]

ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_known_bug_has_one_row() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(KNOWN)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4 and all(row), row
    for test in row[3].split(" "):
        path, _, name = test.partition("::")
        assert name.startswith("test_") and name in names_in(path), f"{test} does not exist"


def test_every_run_takes_the_tests_that_are_named() -> None:
    named = {test.partition("::")[0] for row in ROWS for test in row[3].split(" ")}
    left_out = {path for path in named if path.split("/")[1] in getattr(conftest, "collect_ignore", ())}
    assert not left_out, "these run with `make torture` only"
