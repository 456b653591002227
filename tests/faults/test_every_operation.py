"""Every operation that a move does on either disk fails, once or from then on: the disk's directory is taken offline,
the other directories serve on, and nothing that was acknowledged is lost when the disk is healed and the node starts
again.

`t` is written to all the while. Which operations there are is looked up first, on a move that nothing happens to.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.error_codes import ErrorCode
from storage_node.move.status import MoveState
from tests.faults.disk import needs_fuse
from tests.faults.node import TP, FaultyNode, Writer, lost, undisturbed
from tests.support.nodes.node_harness import until
from tests.support.scale import scaled, tally

pytestmark = [pytest.mark.fuse, needs_fuse]

Start = Callable[..., FaultyNode]


@dataclass(frozen=True, slots=True)
class Fault:
    """The `number`-th operation of a kind on a disk fails with `error`, and all that follow unless `once`."""

    disk: str
    op: str
    number: int
    once: bool
    error: int

    def __str__(self) -> str:
        how = "once" if self.once else "from then on"
        return f"{errno.errorcode[self.error]} at {self.op} number {self.number} on the {self.disk} disk, {how}"

    @property
    def may_pass(self) -> bool:
        """Whether the move may go on as if nothing had happened.

        The kernel looks a name up again when that fails once; and what a close tells was not the last word on anything,
        since all that matters was flushed before. A read or a write of a log is repeated once after EIO.
        """
        return self.op in ("close", "getattr") or (self.op in ("read", "write") and self.once)


def move(node: FaultyNode, full: bool = False) -> None:
    """The whole move, the old copy's removal included, or as far as it gets.

    A disk that is so `full` that it takes no write in place either keeps the old copy until the next start.
    """
    if node.alter(TP, node.paths[2]) is not ErrorCode.NONE:
        return
    if node.ended().state is MoveState.SWAPPED and not full:
        until(lambda: not (node.source.online and node.target.online and node.leftovers()))


def everything(start: Start) -> list[tuple[str, str, int]]:
    """(disk, operation, how often) of a move under way with records coming in."""
    node = start()
    node.fill()
    disks = {"source": node.source_disk, "target": node.target_disk}
    for disk in disks.values():
        disk.trace()
    with Writer(node, "t"):
        move(node)
    seen = {name: Counter(op for op, _ in disk.trace(False)) for name, disk in disks.items()}
    node.end()
    return [(name, op, count) for name, counts in seen.items() for op, count in sorted(counts.items())]


def try_one(start: Start, fault: Fault) -> bool:
    """One move with one fault; answers whether the fault came to pass."""
    node = start()
    try:
        return check(node, fault)
    finally:
        node.source_disk.heal()
        node.target_disk.heal()
        node.end()


def check(node: FaultyNode, fault: Fault) -> bool:
    """See `try_one`."""
    at_source = fault.disk == "source"
    disk = node.source_disk if at_source else node.target_disk
    directory = node.source if at_source else node.target
    others = [other for other in node.node.dirs.directories if other is not directory]
    node.fill()
    with undisturbed(node), Writer(node, "t") as writer:
        # What a health check leaves when it cannot remove its file is written over by the next one.
        pattern = "^(?!.*health-check)" if fault.op == "unlink" else ""
        disk.rules(
            {"ops": [fault.op], "path": pattern, "after": fault.number, "count": int(fault.once), "errno": fault.error}
        )
        move(node, fault.error == errno.ENOSPC)
        hits = disk.hits
        if hits and fault.error == errno.EIO and not fault.may_pass:
            until(lambda: not directory.online, what=f"{directory} goes offline")
    assert all(other.online for other in others)
    if not directory.online:
        assert directory.name in (directory.failure or "")
        status = node.status()
        if status is not None and status.state is MoveState.FAILED:
            assert status.error == "LogDirOffline" and directory.name in status.message
    node.again()
    assert lost(node, writer.acknowledged) == []
    assert node.replica.append(build_batch([b"after"])).base_offset >= 60
    return hits > 0


def chosen(found: list[tuple[str, str, int]], count: int) -> list[Fault]:
    """All faults, or `count` of them: each operation of each disk as often as any other."""
    faults = [
        Fault(disk, op, number, once, error)
        for disk, op, often in found
        for number in range(0, often, 4 if op == "getattr" else 1)
        for once in (True, False)
        for error in (errno.EIO, errno.ENOSPC, errno.EROFS)
        if error != errno.ENOSPC or op in ("create", "write", "mkdir", "rename", "fsync", "fdatasync", "fsyncdir")
    ]
    random.Random(count).shuffle(faults)
    turns: Counter[tuple[str, str]] = Counter()
    ranked = []
    for fault in faults:
        turns[fault.disk, fault.op] += 1
        ranked.append((turns[fault.disk, fault.op], len(ranked), fault))
    return [fault for _, _, fault in sorted(ranked, key=lambda row: row[:2])[:count]]


@pytest.mark.timeout(scaled(600, 7200))
@pytest.mark.feature("18-01", "18-05", "113-17")
def test_any_operation_of_a_move_fails(start: Start) -> None:
    failures: list[str] = []
    with tally("faults injected through FUSE") as counted:
        for fault in chosen(everything(start), scaled(20, 10_000)):
            try:
                counted.count += try_one(start, fault)
            except Exception as error:
                failures.append(f"{fault}: {type(error).__name__}: {error}")
                print(failures[-1])
        assert not failures, "\n".join(failures)
