"""When a plan, its moves, disks and brokers end: a range, and unknown where nothing tells it."""

from __future__ import annotations

from typing import Any

import pytest

from ops.cli.plan.figures import Figures, figures_of, percent
from tests.support.plan_progress import plan_progress
from workflows.model.plans.under_way import LaneReport, LiveMove
from workflows.model.plans.values import Disk

NOW = 1_000.0
A, B, OTHER = Disk(3, "/a"), Disk(3, "/b"), Disk(4, "/a")


def move(key: str, copied: int, total: int, rates: tuple[float, float, float] | None, *disks: Disk) -> LiveMove:
    rate, slow, fast = rates or (None, None, None)
    return LiveMove(key, "copying", copied, total, rate, slow, fast, disks[:1], disks[1:])


def ends(figures: Figures) -> tuple[float | None, float | None]:
    return figures.eta_low, figures.eta_high


@pytest.mark.parametrize(
    ("changes", "moves", "expected"),
    [
        # 250 of 1000 bytes in 50 s: 5 bytes/s.
        ({}, (), (150.0, 150.0)),
        ({}, (move("a", 1, 9, (3.0, 1.0, 10.0)),), (75.0, 750.0)),
        ({}, (move("a", 1, 9, (1.0, 0.5, 2.0)), move("b", 1, 9, (1.0, 0.5, 2.0))), (150.0, 750.0)),
        ({}, (move("a", 1, 9, (0.0, 0.0, 0.0)),), (150.0, None)),
        ({"bytes_copied": 0, "phases": [("moving", NOW - 60, None)]}, (), (100.0, 200.0)),
        ({"bytes_copied": 0, "check": None}, (), (None, None)),
        ({"bytes_copied": 1000}, (), (None, None)),
        ({"bytes_total": 0, "bytes_copied": 0}, (), (None, None)),
        ({"phase": "outside_window"}, (), (None, None)),
        ({"paused": True}, (), (None, None)),
    ],
    ids=[
        "the mean rate", "and the rates now", "of all moves", "no end in sight", "as expected at first", "unknown",
        "nothing left to copy", "empty replicas", "outside the window", "paused",
    ],
)  # fmt: skip
def test_plan_ends_between_its_mean_rate_and_the_rates_of_now(
    changes: dict[str, Any], moves: tuple[LiveMove, ...], expected: tuple[float | None, float | None]
) -> None:
    found = figures_of(plan_progress(NOW, **changes), {1: LaneReport(NOW, moves)}, NOW)
    assert ends(found.plan) == pytest.approx(expected)


def test_disks_and_brokers_have_the_sums_of_the_moves_that_use_them() -> None:
    moves = (
        move("a", 100, 400, (10.0, 5.0, 20.0), A, B),
        move("b", 0, 200, None, A, OTHER),
        move("c", 0, 0, None, OTHER, B),
    )
    found = figures_of(plan_progress(NOW), {1: LaneReport(NOW - 2, moves)}, NOW)
    disks = {(row.broker, row.path): (row.moves, row.figures) for row in found.disks}
    assert disks[3, "/a"] == (2, Figures(100, 600, 16.7, 10.0, 25.0, 100.0))
    assert disks[3, "/b"] == (2, Figures(100, 400, 25.0, 10.0, 15.0, 60.0))
    assert disks[4, "/a"] == (2, Figures(0, 200, 0.0, None, None, None))
    assert [(row.broker, row.moves) for row in found.brokers] == [(3, 3), (4, 2)]
    assert [(row.key, row.as_of, row.figures.percent) for row in found.moves] == [
        ("a", NOW - 2, 25.0), ("b", NOW - 2, 0.0), ("c", NOW - 2, None),
    ]  # fmt: skip
    assert ends(found.moves[2].figures) == (None, None), "an empty replica has no time to go"


def test_moves_that_no_step_has_reported_are_counted() -> None:
    assert figures_of(plan_progress(NOW), {}, NOW).unread == 1


@pytest.mark.parametrize(
    ("copied", "total", "found"), [(0, 0, None), (0, 9, 0.0), (99_999, 100_000, 99.9), (5, 5, 100.0)]
)
def test_percent_is_whole_only_when_nothing_is_left(copied: int, total: int, found: float | None) -> None:
    assert percent(copied, total) == found
