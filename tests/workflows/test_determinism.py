"""Workflow code decides by its history alone: no clock, no chance, no I/O, and no order of a set.

No sandbox looks after that (see workflows/runner.py): neither its source nor the values that it shares with the nodes
(storage_node/model) contain any of it, and processes that iterate
sets in different orders decide the same, byte by byte.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.runs.determinism import Finding, Known, findings, known_sets, queries
from tests.support.runs.hand_activations import plain
from tests.workflows.driven import EXAMPLES, STATES, WELL, collecting

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for part in ("workflows", "storage_node/model") for path in (ROOT / part).rglob("*.py"))
#: Parsed while no test runs: CPython's parser fails at times where a thread that another test left parses too.
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}

#: The files whose queries read the clock: how long ago a node reported depends on the time of the query.
CLOCKS = {"workflows/directory_failure.py", "workflows/move_replica.py", "workflows/partition_reassignment.py"}


#: The files that compute with dates; governments change the rules of time zones.
DATES = tuple(f"workflows/model/plans/{name}.py" for name in ("window", "estimate", "conditions"))
_DATES = {f"imports datetime.{name}" for name in ("UTC", "date", "datetime")} | {"imports zoneinfo"}

#: Functions that ask whether they go through a history again: only for how much they pack, not for what they decide.
REPLAYS = {("workflows/cluster.py", "_push"), ("workflows/cluster.py", "submit")}


def _allowed(name: str, finding: Finding, asking: set[str]) -> bool:
    if finding.what == "uses workflow.unsafe" and (name, finding.function) in REPLAYS:
        return True
    if name in DATES and finding.what in _DATES:
        return True
    if name in CLOCKS and finding.what == "imports time":
        return True
    return name in CLOCKS and finding.what == "uses time.time" and finding.function in asking


@cache
def _known() -> Known:
    return known_sets(TREES.values())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_workflow_code_has_no_clock_randomness_or_io(path: Path) -> None:
    name, tree = str(path.relative_to(ROOT)), TREES[path]
    asking = set(queries(tree))
    found = [each for each in findings(tree, _known()) if not _allowed(name, each, asking)]
    assert not found, "\n".join(
        f"{name}:{each.line} {each.what} (in {each.function or 'the module'})" for each in found
    )


def test_only_these_queries_read_the_clock() -> None:
    reading = {
        (str(path.relative_to(ROOT)), each.function)
        for path in SOURCES
        for each in findings(TREES[path])
        if each.what == "uses time.time"
    }
    assert reading == {(name, "progress") for name in CLOCKS}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import random\nrandom.random()", ["imports random", "uses random.random"]),
        ("from storage_node.publisher.removal import Removal", ["imports storage_node.publisher.removal"]),
        ("from datetime import datetime\ndatetime.now()", ["imports datetime.datetime", "uses datetime.now"]),
        ("class C:\n    held: frozenset[str]\ndef f(c):\n    return {x: 1 for x in c.held}", ["iterates over a set"]),
        ("def f(a: set[str]):\n    return sorted(x for x in a), min(a), {x for x in a}, any(x for x in a), {*a}", []),
    ],
)  # fmt: skip
def test_search_finds_nondeterminism(source: str, found: list[str]) -> None:
    assert [each.what for each in findings(source)] == found


def decisions() -> str:
    """A digest of all that runs decide in their states and after them."""
    seen = hashlib.sha256()
    for states in STATES.values():
        for state in states:
            it = state()
            for kind, seq in it.open:
                seen.update(f"{kind} {seq}".encode())
            for _ in range(6):
                for command in it.resolve(WELL, timers=True) if it.ended is None else ():
                    seen.update(command.SerializeToString(deterministic=True))
    it = collecting()
    batch = EXAMPLES["Cluster.submit"]
    names = [f"topic-{number}" for number in range(20)]
    made = {"do": "create_topics", "topics": [{"name": name, "partitions": 3} for name in names]}
    for commands in (batch["commands"], [made], [{"do": "delete_topics", "topics": [{"name": n} for n in names[::2]]}]):
        for command in it.send(it.update("submit", plain({**batch, "commands": commands}), number=1)):
            seen.update(command.SerializeToString(deterministic=True))
        for command in it.resolve(WELL):
            seen.update(command.SerializeToString(deterministic=True))
    return seen.hexdigest()


def test_processes_that_order_sets_differently_decide_the_same() -> None:
    program = "from tests.workflows.test_determinism import decisions; print(decisions())"
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1
