"""Budgets in plain values: the windows that raise alarms, and the rule by which budgets grow with batches.

Any split, order, duplication and lateness of histories gives what one batch gives. The rule is run on plain values
here; `tests/ops/analytics/lake/test_any_batches.py` runs it on the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ops.analytics.gold.burn_rate import PAIRS, WINDOWS, computed_from, threshold
from ops.analytics.gold.slos import Event, Slo
from ops.analytics.schema import BURN_WINDOWS
from ops.dashboards.site import budgets as plain
from ops.dashboards.site.budgets import DAY, Happened, Objective, budgets

OBJECTIVES = (Objective("short", "placed", 0.5, 3), Objective("long", "placed", 0.9, 30))
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Version:
    """A history of a move, as far as it goes: `started` and `ends` in days, and whether it was good."""

    move: int
    length: int
    started: int
    ends: float
    good: bool

    def events(self) -> list[Happened]:
        return [Happened(slo.name, self.ends * DAY, self.good) for slo in OBJECTIVES]


def events_of(versions: Iterable[Version]) -> list[Happened]:
    return [event for version in versions for event in version.events()]


def text(day: int) -> str:
    return (EPOCH + timedelta(days=day)).isoformat()


class Tables:
    """Silver's moves, gold's minutes by day of the moves' start, and the rows of budgets, as a batch changes them."""

    def __init__(self) -> None:
        self.moves: dict[int, Version] = {}
        self.minutes: dict[int, list[Happened]] = {}
        self.rows: dict[tuple[int, str], dict[str, Any]] = {}
        self.as_of = 0.0

    def ingest(self, batch: list[Version]) -> None:
        touched: set[int] = set()
        for version in batch:
            known = self.moves.get(version.move)
            if known is None or version.length > known.length:  # the longer history of a run counts
                touched |= {version.started, *({known.started} if known else ())}
                self.moves[version.move] = version
        self.as_of = max(self.as_of, *((version.ends + 0.2) * DAY for version in batch))
        for day in touched:
            self.minutes[day] = events_of(one for one in self.moves.values() if one.started == day)
        newest = max((day for day, _ in self.rows), default=None)
        since = computed_from(text(min(touched)) if touched else None, None if newest is None else text(newest))
        begin = 0 if since is None else (date.fromisoformat(since) - EPOCH).days
        known_events = [event for events in self.minutes.values() for event in events]
        self.rows = {key: row for key, row in self.rows.items() if key[0] < begin}
        self.rows |= {
            (row["day"], row["slo"]): row
            for row in budgets(OBJECTIVES, known_events, self.as_of)
            if row["day"] >= begin
        }


@st.composite
def deliveries(draw: st.DrawFn) -> list[list[Version]]:
    """Batches with versions of some moves, in any order, some of them several times."""
    versions = []
    for move in range(draw(st.integers(1, 12))):
        started = draw(st.integers(100, 108))
        for length in range(draw(st.integers(1, 2))):
            # A history that goes further may have another event; a chain may turn out to begin earlier.
            ends = started + draw(st.integers(0, 60)) / 10
            shift = draw(st.sampled_from((0, 0, -2))) if length else 0
            versions.append(Version(move, length, started + shift, ends, draw(st.booleans())))
    delivered = draw(st.permutations(versions + draw(st.lists(st.sampled_from(versions), max_size=6))))
    batches: list[list[Version]] = [[]]
    for version in delivered:
        if batches[-1] and draw(st.booleans()):
            batches.append([])
        batches[-1].append(version)
    return batches


def test_windows_that_raise_alarms_are_those_of_the_sre_workbook() -> None:
    """For a budget of 30 days the workbook has 14.4, 6 and 1."""
    slo = Slo("", Event.PLACED, 0.999)
    assert [round(threshold(slo, one, spent), 6) for one, _, spent, _ in PAIRS] == [14.4, 6.0, 1.0]
    assert (plain.WINDOWS, plain.PAIRS) == (WINDOWS, PAIRS)
    assert set(WINDOWS) == set(BURN_WINDOWS)


@given(deliveries())
def test_budgets_of_any_batches_are_those_of_one(batches: list[list[Version]]) -> None:
    several, one = Tables(), Tables()
    for batch in batches:
        several.ingest(batch)
    one.ingest([version for batch in batches for version in batch])
    assert several.moves == one.moves and several.rows == one.rows
