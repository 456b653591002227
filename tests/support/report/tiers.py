"""Which tests are the gate (`make test`), and which ones only `make test-all` runs.

A test without a row in tests/tiers.tsv belongs to the gate. The first row whose pattern fits its node id counts:
"heavy" (real clusters, crashes, browsers, containers), "timing" (its outcome depends on how fast the machine is), or
"gate" (stays, although a later row would take it out). Each row says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path

import pytest

TABLE = Path(__file__).resolve().parents[2] / "tiers.tsv"
TIERS = ("gate", "heavy", "timing")

#: The markers of what the gate leaves out.
LEFT_OUT = ("heavy", "timing", "slow_conformance")

#: Seconds for a test of the gate with its fixtures: many times what it takes, so that only one that hangs is ended.
LIMIT, LIMIT_END_TO_END = 20.0, 90.0
#: The markers of tests that wait for programs of their own to start.
END_TO_END = ("temporal", "spark", "kafka", "browser", "docker", "root", "fuse")


@dataclass(frozen=True)
class Row:
    """`pattern`: of node ids, where `[` stands for itself and only `*` is special."""

    tier: str
    pattern: str
    why: str

    def fits(self, nodeid: str) -> bool:
        return self._regex.match(nodeid) is not None

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(translate(self.pattern.replace("[", "[[]")))


def read_tiers(path: Path = TABLE) -> tuple[Row, ...]:
    """The rows in their order; raises ValueError for one that has no known tier, or says not why."""
    rows = tuple(Row(*line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()[1:])
    for row in rows:
        if row.tier not in TIERS or not row.why:
            raise ValueError(f"{path.name}: {row} needs one of the tiers {', '.join(TIERS)} and a reason")
    return rows


def tier_of(nodeid: str, rows: Sequence[Row]) -> str:
    """The tier of a test by the first row that fits; "gate" where none does."""
    return next((row.tier for row in rows if row.fits(nodeid)), "gate")


def unused(rows: Iterable[Row], nodeids: Sequence[str]) -> list[str]:
    """The patterns that fit no test at all: the tests were renamed or moved."""
    return [row.pattern for row in rows if not any(map(row.fits, nodeids))]


class Tiers:
    """A plugin of pytest: gives each test the marker of its tier, and each test of the gate a limit."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if config.args == ["tests"] and (stale := unused(self._rows, [item.nodeid for item in items])):
            raise pytest.UsageError(f"{TABLE.name}: no test has the node id {', '.join(stale)}")
        for item in items:
            tier = tier_of(item.nodeid, self._rows)
            if tier != "gate":
                item.add_marker(tier)
            elif not any(map(item.get_closest_marker, LEFT_OUT)):
                limit = LIMIT_END_TO_END if any(map(item.get_closest_marker, END_TO_END)) else LIMIT
                item.add_marker(pytest.mark.timeout(limit), append=False)
