"""What is said to the controller before the `.move`s of a run are made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.creating import MoveCreator
from storage_node.types import TopicPartition
from tests.support.node_harness import Harness, running
from workflows.model.calls import MoveCall
from workflows.model.plan import parse_moves


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t", 2)
        harness.settle()
        yield harness


def create(node: Harness, *partitions: int) -> list[tuple[str, str]]:
    """Outcome and kind of error of each replica of `t`."""

    async def blocking(work: Any, *given: Any) -> Any:
        return await asyncio.to_thread(work, *given)

    targets = [{"topic": "t", "partition": p, "node": 1, "directory": node.paths[1]} for p in partitions]
    assert node.node.controller is not None
    creator = MoveCreator(node.node, node.node.controller, blocking, {})
    call = MoveCall("run", "r", 1, list(parse_moves(targets).replicas), None, "", [])
    return [(row.outcome, row.error) for row in asyncio.run(creator.create(call))]


def test_of_a_replica_that_is_not_here_no_generation_is_raised(node: Harness) -> None:
    """It may be about to come from another node, and would pass for a stale copy then: where it is, for not known."""
    (here,) = [p for p in range(2) if node.directory_of("t", p) != node.paths[1]]
    gone = 1 - here
    node.node.replicas.remove([TopicPartition("t", gone)])
    found = create(node, here, gone)
    assert found[1] == ("failed", "UnknownReplica") and found[0][1] == ""
    assert [[row.partition.partition for row in rows] for rows in node.controller.raised] == [[here]]
