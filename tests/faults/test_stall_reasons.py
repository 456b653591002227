"""A disk that is slower than it was itself is named as what holds a move; what the node's limit takes is, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_node.model.error_codes import ErrorCode
from storage_node.move.status import MoveState
from tests.faults.disk import needs_fuse
from tests.faults.node import TP, FaultyNode, Pauses
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.fuse, needs_fuse]

Start = Callable[..., FaultyNode]


def there_and_back(node: FaultyNode, times: int) -> None:
    """Moves that go well, so that it is known what the disks do as a rule."""
    for number in range(times):
        assert node.alter(TP, node.paths[2 if number % 2 == 0 else 1]) is ErrorCode.NONE
        assert node.ended(60).state is MoveState.SWAPPED


def test_disk_that_became_slow_is_named_with_what_it_did_before(start: Start) -> None:
    node = start(**{"log.segment.bytes": "1048576"})
    node.fill(80, 100_000)
    there_and_back(node, 6)
    node.target_disk.rules({"ops": ["write"], "path": r"\.log$", "rate": 1e6})
    assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
    held = until(lambda: (s := node.status()) is not None and s.stall == "slow_disk" and s, 60, "the disk is named")
    assert held.stall_message.startswith(f"{node.paths[2]} ")
    assert "since the start it did " in held.stall_message and "(median)" in held.stall_message
    until(lambda: (s := node.status()) is not None and s.seconds_by_reason.get("slow_disk", 0) > 0.5, what="it counts")
    node.target_disk.heal()
    ended = node.ended(60)
    assert ended.state is MoveState.SWAPPED and ended.stall == ""
    assert ended.seconds_by_reason["slow_disk"] > 0.5


def test_disk_that_hangs_is_named_while_it_does(start: Start) -> None:
    node = start(**{"log.segment.bytes": "1048576"})
    node.fill(80, 100_000)
    there_and_back(node, 6)
    node.target_disk.rules({"ops": ["write"], "path": r"\.log$", "hang": True})
    assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
    held = until(lambda: (s := node.status()) is not None and s.stall == "slow_disk" and s, 60, "the disk is named")
    assert held.stall_message.startswith(f"{node.paths[2]} has not responded for ")
    node.target_disk.heal()
    assert node.ended(60).state is MoveState.SWAPPED


def test_disk_that_is_as_slow_as_ever_is_not_blamed(start: Start) -> None:
    node = start(**{"log.segment.bytes": "1048576"})
    node.fill(20, 100_000)
    for disk in (node.source_disk, node.target_disk):
        disk.rules({"ops": ["write"], "path": r"\.log$", "rate": 2e6})
    with Pauses() as pauses:
        there_and_back(node, 7)
    status = node.status()
    assert status is not None
    # (While the machine stands still a disk does not answer, and its rate takes a moment to come back.)
    assert status.seconds_by_reason.get("slow_disk", 0.0) <= 2 * pauses.seconds
