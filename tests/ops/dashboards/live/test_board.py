"""The values of the board: percent, totals, and what stays of too many rows."""

from __future__ import annotations

import json

import pytest

from ops.dashboards.live.board import MOST_NOTES, MOST_ROWS, Freshness, Kind, totals
from tests.ops.dashboards.live.sample import MB, board, work


@pytest.mark.parametrize(
    ("copied", "total", "expected"),
    [(0, 0, None), (5, 0, None), (0, 8, 0.0), (2, 8, 25.0), (99_999, 100_000, 99.9), (8, 8, 100.0), (9, 8, 100.0)],
)
def test_percent_is_100_only_when_nothing_is_left(copied: int, total: int, expected: float | None) -> None:
    assert work(bytes_copied=copied, bytes_total=total).percent == expected


def test_totals_count_copies_but_not_the_plans_that_consist_of_them() -> None:
    rows = [
        work(0, rate=10.0 * MB, eta_low=5.0, eta_high=9.0),
        work(1, rate=None, held_by="dead", kind=Kind.REASSIGNMENT, eta_low=40.0, eta_high=None),
        work(2, kind=Kind.PLAN),
    ]
    assert totals(rows) == {
        "copies": 2,
        "held": 1,
        "bytes_left": 1500 * MB,
        "bytes_total": 2000 * MB,
        "rate": 10.0 * MB,
        "eta_low": 40.0,
        "eta_high": None,
    }
    assert totals([])["eta_low"] is None and totals([])["eta_high"] is None


def test_of_too_many_rows_the_held_ones_stay_in_their_order() -> None:
    rows = [work(number, held_by="dead" if number % 100 == 99 else "") for number in range(MOST_ROWS + 200)]
    shown = board(*rows).as_json()
    kept = [row["title"] for row in shown["work"]["disk"]]
    assert len(kept) == MOST_ROWS and shown["left_out"]["disk"] == 200
    assert all(f"orders-{number}" in kept for number in range(99, MOST_ROWS + 200, 100))
    assert kept == sorted(kept, key=lambda name: int(name.split("-")[1]))
    assert shown["totals"]["copies"] == MOST_ROWS + 200


def test_board_is_json_and_its_notes_are_bounded() -> None:
    made = board(notes=tuple(f"note {number % 80}" for number in range(200)), temporal=Freshness.STALE)
    shown = json.loads(json.dumps(made.as_json()))
    assert len(shown["notes"]) == MOST_NOTES and len(set(shown["notes"])) == MOST_NOTES
    assert [source["state"] for source in shown["sources"]] == ["stale", "fresh", "fresh"]
