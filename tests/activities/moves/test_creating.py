"""What is said to the controller before the `.move`s of a run are made."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.moves import rows
from activities.moves.creating import MoveCreator
from storage_node import failpoints
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import Event, Outcome, Phase
from tests.support.nodes.node_harness import Harness, running
from workflows.model.calls import MoveCall, MoveRow, ReplicaMove
from workflows.model.move.moves import MovingReplica
from workflows.model.move.parameter import parse_moves


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t", 2)
        harness.settle()
        yield harness


async def blocking(work: Any, *given: Any) -> Any:
    return await asyncio.to_thread(work, *given)


def create(node: Harness, *partitions: int) -> list[tuple[str, str]]:
    """Outcome and kind of error of each replica of `t`."""
    targets = [{"topic": "t", "partition": p, "node": 1, "directory": node.paths[1]} for p in partitions]
    assert node.node.controller is not None
    creator = MoveCreator(node.node, node.node.controller, blocking, {})
    call = MoveCall("run", "r", 1, list(parse_moves(targets).replicas), None, "", [])
    return [(row.outcome, row.error) for row in asyncio.run(creator.create(call))]


def test_create_move_raises_no_generation_of_a_missing_replica(node: Harness) -> None:
    """It may be about to come from another node, and would pass for a stale copy then: where it is, for not known."""
    (here,) = [p for p in range(2) if node.directory_of("t", p) != node.paths[1]]
    gone = 1 - here
    node.node.replicas.remove([TopicPartition("t", gone)])
    found = create(node, here, gone)
    assert found[1] == ("failed", "UnknownReplica") and found[0][1] == ""
    assert [[row.partition.partition for row in rows] for rows in node.controller.raised] == [[here]]


def test_run_goes_back_to_its_target_after_the_next_ones_disk_failed(tmp_path: Path) -> None:
    with running(tmp_path, dirs=3) as harness:
        harness.create_topic("t")
        harness.settle()
        harness.controller.hold_moves = True
        node = harness.node
        assert node.controller is not None
        creator = MoveCreator(node, node.controller, blocking, {})

        def made(replica: MovingReplica) -> MoveRow:
            call = MoveCall("run", "r", 1, [replica.move], None, "", [])
            (row,) = asyncio.run(creator.create(call))
            return row

        first, second = (path for path in harness.paths if path != harness.directory_of("t", 0))
        replica = MovingReplica.requested(ReplicaMove("t", 0, first))
        replica = replica.after(made(replica), 0.0).on(Event.RETARGET, directory=second)

        def broken() -> None:
            raise OSError(errno.EIO, "Input/output error")

        with failpoints.active({"create.after_mkdir": broken}):
            row = made(replica)
        assert (row.outcome, row.error) == (Outcome.FAILED, "LogDirOffline")
        replica = replica.on(replica.event_of(row), 0.0, row=row)
        assert replica.move.directory == first
        row = made(replica)
        # A small copy may have caught up in the same step.
        assert row.outcome in (Outcome.CREATED, Outcome.CAUGHT_UP) and row.directory == first
        assert replica.after(row, 0.0).phase in (Phase.COPYING, Phase.SWAPPING)


def test_totals_of_a_bounded_number_of_moves_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_BASES", 10)
    bases: dict[rows.MoveKey, MoveRow] = {}
    for claim in range(100):
        move = ReplicaMove("t", 0, "/d", claim)
        rows.keep_base(bases, move, rows.blank(move))
    assert [claim for _, claim, _ in bases] == list(range(90, 100))
