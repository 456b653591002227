"""What a step's heartbeats say of its moves: it is read as it was written, and anything else is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage_node.model.fields import BadField
from workflows.model.plans.under_way import MOST_MOVES, LaneReport, LiveMove, read
from workflows.model.plans.values import Disk

MOVE = LiveMove("t-0@1", "copying", 5, 9, 1.5, -0.5, 2.0, (Disk(1, "/a"),), (Disk(1, "/b"),), "throttled")


@pytest.mark.parametrize("moves", [(), (MOVE,), (LiveMove("t-1"), MOVE)])
def test_report_is_read_as_it_was_written(moves: tuple[LiveMove, ...]) -> None:
    report = LaneReport.of(12.5, moves)
    assert read(json.loads(json.dumps(report.as_json()))) == report


def test_report_of_a_large_lane_counts_the_moves_that_it_leaves_out() -> None:
    report = LaneReport.of(1.0, (LiveMove(f"t-{number}") for number in range(MOST_MOVES + 3)))
    assert (len(report.moves), report.more) == (MOST_MOVES, 3)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"at": 1},
        {"at": 1, "moves": [{"state": "copying"}]},
        {"at": 1, "moves": [{"key": "t", "reads": [[1]]}]},
    ],
)
def test_anything_else_is_rejected(value: Any) -> None:
    with pytest.raises(BadField):
        read(value)
