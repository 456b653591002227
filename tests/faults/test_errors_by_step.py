"""A disk dies at each step of a move: while it is produced to, at create, copy, swap, delete and cancel."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable

import pytest

from storage_node.errors import RequestRefused, StorageError
from storage_node.log.batches.batch import build_batch
from storage_node.model.error_codes import ErrorCode
from storage_node.move.status import MoveState
from tests.faults.disk import CHANGES, FLUSHES, READS, needs_fuse
from tests.faults.node import TP, FaultyNode, Writer, lost, undisturbed
from tests.support.nodes.node_harness import until
from tests.support.scale import FULL, tally

pytestmark = [pytest.mark.fuse, needs_fuse]

Start = Callable[..., FaultyNode]

STEPS = ("produce", "create", "copy", "swap", "delete", "cancel")
DYING = {
    "everything": (*CHANGES, *READS, "close"),
    "changes": CHANGES,
    "flushes": FLUSHES,
    "writes": ("write", "truncate"),
    "names": ("create", "rename", "unlink", "mkdir", "rmdir"),
    "reads": READS,
}
CASES = list(itertools.product(STEPS, ("source", "target"), DYING))
CHOSEN = CASES if FULL else [case for case in CASES if case[2] == "everything"]


@pytest.mark.parametrize(("step", "where", "what"), CHOSEN)
def test_disk_dies_at_a_step(start: Start, step: str, where: str, what: str) -> None:
    node = start(**{"file.delete.delay.ms": "300"} if step == "delete" else {})
    node.fill()
    disk, directory, other = node.source_disk, node.source, node.target
    if where == "target":
        disk, directory, other = node.target_disk, node.target, node.source
    with undisturbed(node), Writer(node, "t") as writer:
        until(lambda: len(writer.acknowledged) > 5)
        reach(node, step)
        disk.rules({"ops": DYING[what], "errno": errno.EIO})
        code = go_on(node, step)
        # Whoever touches the disk, or the health check at the latest, finds out.
        until(lambda: not directory.online, what="the directory goes offline")
        status = node.status()
        if status is not None and status.state is MoveState.FAILED:
            assert status.error == "LogDirOffline"
            assert directory.name in status.message and "failed on" in status.message, status.message
        elif status is not None:
            assert status.state in (MoveState.SWAPPED, MoveState.CANCELLED), status
        if code is not None:
            assert code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
        assert other.online and node.good.online
        lost_here = step_lost(where, status)
        until(lambda: (node.node.partition(TP) is None) == lost_here, what=f"served or not, as {status} says")
        served = node.node.partition(TP)
        if served is not None:
            known = len(writer.acknowledged)
            until(lambda: len(writer.acknowledged) > known, what="t takes records")
    with tally("faults injected through FUSE") as counted:
        counted.count += 1
    node.again()
    assert lost(node, writer.acknowledged) == []
    assert node.replica.append(build_batch([b"after"])).base_offset >= 60


def step_lost(where: str, status: object) -> bool:
    """Whether the replica is on the disk that died."""
    swapped = status is not None and getattr(status, "state", None) is MoveState.SWAPPED
    return where == ("target" if swapped else "source")


def reach(node: FaultyNode, step: str) -> None:
    """Do what comes before a step."""
    if step in ("copy", "swap", "cancel", "delete"):
        claim = node.begin()
        if step in ("swap", "delete"):
            node.node.engine.start_copy(TP, claim)
            assert node.node.engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
        if step == "delete":
            until(lambda: node.node.engine.swap(TP, claim).outcome == "swapped")


def go_on(node: FaultyNode, step: str) -> ErrorCode | None:
    """Do the step, which may fail with what a caller is told; answers the code of a request."""
    if step == "create":
        return node.alter(TP, node.paths[2])
    if step == "cancel":
        return node.alter(TP, node.paths[1])
    with contextlib.suppress(StorageError, RequestRefused):
        if step in ("copy", "swap"):
            node.run()
            node.ended()
    return None
