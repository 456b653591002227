"""A move on the wire: short, and the same when it is read."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from storage_node.model.ids import TopicPartition
from workflows.model.plans.running.calls import MoveSpec
from workflows.model.plans.values import Disk, MoveKind, PlannedMove

TP = TopicPartition("orders", 0)
BETWEEN_DIRECTORIES = PlannedMove(
    MoveKind.DIRECTORY, TP, 7, 0, "/a", "/b", reads=(Disk(0, "/a"),), writes=(Disk(0, "/b"),)
)
BETWEEN_BROKERS = PlannedMove(
    MoveKind.REPLICAS,
    TP,
    0,
    before=(0, 1),
    after=(1, 2),
    directories={2: "/b"},
    reads=(Disk(0, "/a"),),
    writes=(Disk(2, "/b"),),
)
ORDER_ALONE = PlannedMove(MoveKind.REPLICAS, TP, 7, before=(0, 1), after=(1, 0))


@pytest.mark.parametrize("move", [BETWEEN_DIRECTORIES, BETWEEN_BROKERS, ORDER_ALONE])
def test_move_is_read_as_it_was_written(move: PlannedMove) -> None:
    spec = MoveSpec.of(move)
    for row in (spec.row(), asdict(spec)):
        assert MoveSpec(**json.loads(json.dumps(row))).move() == move


def test_move_between_directories_is_short() -> None:
    """A plan's histories hold each several times."""
    assert MoveSpec.of(BETWEEN_DIRECTORIES).row() == {
        "kind": "directory",
        "topic": "orders",
        "partition": 0,
        "size": 7,
        "node": 0,
        "source": "/a",
        "target": "/b",
    }
