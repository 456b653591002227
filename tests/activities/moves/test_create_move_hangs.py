"""A directory that hangs while the `.move`s of a lane are made fails the replicas in it, and no others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.node import activities as moving
from activities.node.activities import NodeActivities
from storage_node.model.error_types import ErrorType
from tests.support.io_faults import Faults, install
from tests.support.nodes.node_harness import Harness, running, until
from workflows.model.calls import MoveCall
from workflows.model.move.parameter import parse_moves

EXTRA = {"log.dir.health.check.interval.ms": "600000"}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return install(monkeypatch)


@pytest.fixture
def node(tmp_path: Path, faults: Faults) -> Iterator[Harness]:
    with running(tmp_path, dirs=3, extra=EXTRA) as harness:
        harness.create_topic("t", 3)
        harness.settle()
        yield harness
        faults.clear()


def test_replicas_of_other_directories_are_created(
    node: Harness, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "HUNG_LOOK", 0.05)
    target, bad = node.paths[0], node.paths[2]
    moves = [p for p in range(3) if node.directory_of("t", p) != target]
    (hung,) = [p for p in moves if node.directory_of("t", p) == bad]
    rows = [{"topic": "t", "partition": p, "node": 1, "directory": target} for p in moves]
    call = MoveCall("run", "r", 1, list(parse_moves(rows).replicas), None, "", [])
    assert node.node.controller is not None
    activities = NodeActivities(node.node, node.node.controller)

    async def attempt() -> dict[int, tuple[str, str]]:
        result = await ActivityEnvironment().run(activities.create_move, call)
        return {row.partition: (row.outcome, row.error) for row in result.rows}

    rule = faults.hang("rename", f"{bad}/t-{hung}/*")

    def failed() -> None:
        until(lambda: rule.hits > 0)
        node.node.dirs.by_path(bad).fail("it hangs")

    failing = threading.Thread(target=failed)
    failing.start()
    with pytest.raises(ApplicationError) as caught:
        asyncio.run(attempt())
    failing.join()
    assert caught.value.type == ErrorType.NODE_FAILURE and not caught.value.non_retryable
    found = asyncio.run(attempt())
    assert found.pop(hung) == ("failed", ErrorType.LOG_DIR_OFFLINE)
    assert [error for _, error in found.values()] == [""] and len(found) == 1
    activities.close()
