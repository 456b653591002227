"""Disks that are full, that lose what a flush did not take, that are unmounted, or that turn read-only."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_node.errors import LogFlushError, RequestRefused, StorageError
from storage_node.log.batches.batch import build_batch
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.replicas import marker as markers
from tests.faults.disk import FLUSHES, SmallDisk, needs_fuse, run
from tests.faults.node import TP, FaultyNode, Writer, lost, undisturbed
from tests.support.needs import needs_root, reason
from tests.support.nodes.node_harness import until
from tests.support.scale import tally
from tests.support.wire import Client

Start = Callable[..., FaultyNode]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., SmallDisk]]:
    """Makes small disks that go with the test."""
    made: list[SmallDisk] = []

    def build(name: str, megabytes: int, behind: int = 0) -> SmallDisk:
        made.append(SmallDisk(tmp_path / "disks", name, megabytes, behind))
        return made[-1]

    yield build
    for disk in made:
        disk.close()


@pytest.fixture
def start_on(tmp_path: Path) -> Iterator[Start]:
    """Starts a node on two small disks; it ends before they go."""
    nodes: list[FaultyNode] = []

    def build(source: SmallDisk, target: SmallDisk, **extra: str) -> FaultyNode:
        nodes.append(FaultyNode(tmp_path / "good", source, target, "n", extra))
        return nodes[-1]

    yield build
    for node in nodes:
        node.end()


@pytest.mark.root
@needs_root
def test_target_that_fills_up_costs_the_move_and_nothing_else(small: Callable[..., SmallDisk], start_on: Start) -> None:
    node = start_on(small("source", 32), small("target", 16))
    node.place("there", node.paths[2])
    node.fill(80, 50_000)
    node.node.engine.set_node_rate(250_000)  # far from its end when the disk has been filled
    with undisturbed(node), Writer(node, "t", pause=0.02) as writer:
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        until(lambda: (s := node.status()) is not None and s.bytes_copied > 0)
        filler = node.target_disk.fill()
        node.node.engine.set_node_rate(None)
        ended = node.ended()
        assert (ended.state, ended.error) == (MoveState.FAILED, "TargetFull")
        assert node.paths[2] in ended.message
        until(lambda: node.leftovers() == [], what="the copy is removed")
        assert node.target.online and node.source.online
        node.target_disk.fill()
        client = Client(node)
        assert client.produce("there", 0, build_batch([b"x" * 100_000])).error == 56
        filler.unlink()
        assert client.produce("there", 0, build_batch([b"room again"])).error == 0
        client.close()
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        assert until(lambda: (s := node.status()) is not None and s.state is MoveState.SWAPPED)
    assert writer.errors == []
    node.again()
    assert lost(node, writer.acknowledged) == []


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("begun", [True, False])
def test_full_source_refuses_records_and_can_be_left(
    begun: bool, small: Callable[..., SmallDisk], start_on: Start
) -> None:
    node = start_on(small("source", 16), small("target", 32))
    node.fill(80, 50_000)
    with undisturbed(node), Writer(node, "t", size=2000) as writer:
        until(lambda: len(writer.acknowledged) > 5)
        if begun:
            node.begin()
        node.source_disk.fill()
        until(lambda: writer.errors, what="a record is refused")
        assert set(writer.errors) == {int(ErrorCode.KAFKA_STORAGE_ERROR)}
        assert node.source.online
        if begun:
            node.run()
        else:
            # There is no room for the replica's first marker; the claim stands in the copy's.
            assert not (node.replica.log.path / markers.NAME).exists()
            assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        assert node.ended().state is MoveState.SWAPPED
        known = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > known + 5, what="records are taken again")
    until(lambda: node.leftovers() == [])
    assert node.source.online and node.target.online
    node.again()
    assert lost(node, writer.acknowledged) == []


@pytest.mark.fuse
@needs_fuse
def test_source_that_has_no_room_for_any_name_serves_on(start: Start) -> None:
    node = start()
    node.fill(80)
    assert not (node.replica.log.path / markers.NAME).exists()
    with undisturbed(node), Writer(node, "t") as writer:
        # Neither a marker can be made, nor can the replica get the name under which it would be removed.
        with node.source_disk.failing("rename", path=r"/t-0(/partition\.move\.tmp)?$", errno=errno.ENOSPC):
            assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
            ended = node.ended()
            assert ended.state is MoveState.FAILED and node.paths[1] in ended.message, ended
            known = len(writer.acknowledged)
            until(lambda: len(writer.acknowledged) > known + 5)
            assert node.source.online and node.target.online
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        assert until(lambda: (s := node.status()) is not None and s.state is MoveState.SWAPPED)
    assert writer.errors == []
    node.again()
    assert lost(node, writer.acknowledged) == []


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("side", ["source", "target"])
def test_disk_that_is_unmounted_under_a_move_serves_again_once_it_is_mounted(
    side: str, small: Callable[..., SmallDisk], start_on: Start
) -> None:
    node = start_on(small("source", 32), small("target", 32))
    acknowledged = dict(enumerate(node.fill(80, 20_000)))
    node.node.engine.set_node_rate(100_000)  # far from its end when the disk goes
    disk, directory = (node.source_disk, node.source) if side == "source" else (node.target_disk, node.target)
    assert isinstance(disk, SmallDisk)
    with undisturbed(node), Writer(node, "t", pause=0.02) as writer:
        until(lambda: len(writer.acknowledged) > 5)
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        until(lambda: (s := node.status()) is not None and s.bytes_copied > 0)
        device = disk.device
        # Lazily, as an operator does who is told that it is busy: open files go on working, and the path is empty.
        run("umount", "-l", str(disk.path))
        until(lambda: not directory.online, what="the node notices")
        assert "its path no longer leads to the directory that was opened" in str(directory.failure)
        assert node.ended().state in (MoveState.FAILED, MoveState.STOPPED)
        with pytest.raises(RequestRefused, match=f"{directory.name} is not online: "):
            node.node.directory_changes.bring_online(directory.name)
        assert list(disk.path.iterdir()) == [], "nothing is written below the mount point"
        if side == "source":
            until(lambda: writer.errors)
            assert set(writer.errors) == {int(ErrorCode.KAFKA_STORAGE_ERROR)}
        else:
            known = len(writer.acknowledged)
            until(lambda: len(writer.acknowledged) > known + 5)
            assert writer.errors == []
        run("mount", f"/dev/{device}", str(disk.path))
        node.node.engine.set_node_rate(None)
        node.node.directory_changes.bring_online(directory.name)
        known = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > known + 5, what="records are taken again")
    assert lost(node, {**acknowledged, **writer.acknowledged}) == []
    node.restart()
    assert lost(node, {**acknowledged, **writer.acknowledged}) == []


@pytest.mark.root
@needs_root
def test_flush_that_fails_because_there_is_less_disk_than_it_says_at_the_target(
    small: Callable[..., SmallDisk], start_on: Start
) -> None:
    node = start_on(small("source", 100), small("target", 200, behind=24), **{"log.segment.bytes": "16777216"})
    node.fill(600, 100_000)
    with undisturbed(node), Writer(node, "t", pause=0.02) as writer:
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        ended = node.ended(30)
        # Most often a flush tells; a write that comes later may be the first to find out, which costs the move only.
        assert ended.state is MoveState.FAILED and ended.error in ("LogDirOffline", "TargetFull"), ended
        if ended.error == "LogDirOffline":
            assert not node.target.online and "flush" in (node.target.failure or ""), node.target.failure
        known = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > known + 5)
    assert writer.errors == [] and node.source.online
    node.stop(clean=False)
    node.forget()
    node.target_disk.make_room(200)
    node.target_disk.remount(check=True)
    node.begin_again()
    assert lost(node, writer.acknowledged) == []
    with tally("disks smaller than they say") as counted:
        counted.count += 1


@pytest.mark.root
@needs_root
def test_flush_that_fails_because_there_is_less_disk_than_it_says_at_the_source(
    small: Callable[..., SmallDisk], start_on: Start
) -> None:
    node = start_on(small("source", 200, behind=24), small("target", 16), **{"log.segment.bytes": "104857600"})
    node.fill(50, 100_000)
    node.replica.log.flush()
    flushed = node.replica.log.recovery_point
    assert flushed == 50
    with undisturbed(node):
        node.fill(500, 100_000)
        flush_twice_and_fail(node, flushed)
        assert node.node.partition(TP) is None and node.good.online
    node.stop(clean=True)
    node.forget()
    node.source_disk.make_room(200)
    node.source_disk.remount(check=True)
    node.begin_again()
    stored = node.stored()
    assert set(range(flushed)) <= set(stored) and sorted(stored) == list(range(len(stored)))
    assert node.replica.append(build_batch([b"after"])).base_offset == len(stored)


def flush_twice_and_fail(node: FaultyNode, flushed: int) -> None:
    """The flush of the replica fails, the directory goes offline for it, and nobody flushes again."""
    log = node.replica.log
    with pytest.raises(LogFlushError) as failed:
        log.flush()
    node.node.storage_failed(failed.value)
    assert not node.source.online and log.recovery_point == flushed
    with pytest.raises(LogFlushError, match="a flush failed before"):
        log.flush()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("where", ["source", "target"])
def test_file_system_that_turns_read_only(where: str, small: Callable[..., SmallDisk], start_on: Start) -> None:
    node = start_on(small("source", 32), small("target", 32))
    node.fill(40, 50_000)
    disk, directory = (node.source_disk, node.source) if where == "source" else (node.target_disk, node.target)
    trigger = Path("/sys/fs/ext4") / disk.device / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip(reason("trigger_fs_error", "the kernel has none (CONFIG_EXT4_DEBUG)"))
    node.replica.log.flush()
    kept = node.replica.log.recovery_point
    with undisturbed(node), Writer(node, "t") as writer:
        node.node.engine.set_node_rate(200_000)
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        until(lambda: (s := node.status()) is not None and s.bytes_copied > 0)
        trigger.write_text("test")
        until(lambda: not directory.online)
        assert "Read-only" in (directory.failure or "") and directory.name in (directory.failure or "")
        assert node.ended().error == "LogDirOffline"
        if where == "target":
            known = len(writer.acknowledged)
            until(lambda: len(writer.acknowledged) > known + 5)
            assert writer.errors == []
    node.stop(clean=False)
    directory = None
    node.forget()
    disk.remount(check=True)
    node.begin_again()
    stored = node.stored()
    assert set(range(kept)) <= set(stored)
    if where == "target":
        assert lost(node, writer.acknowledged) == []


@pytest.mark.fuse
@needs_fuse
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_flush_that_fails_once_and_then_would_succeed(start: Start, error: int) -> None:
    node = start(**{"log.flush.interval.messages": "1000000"})
    node.fill(30)
    replica = node.replica
    replica.log.flush()
    kept = replica.log.recovery_point
    node.node.offset_files.recovery_points(node.source)
    with undisturbed(node), Writer(node, "t") as writer:
        until(lambda: len(writer.acknowledged) > 20)
        node.source_disk.rules({"ops": FLUSHES, "path": r"\.log$", "count": 1, "errno": error, "drop": True})
        try:
            replica.log.flush()
        except StorageError as failed:
            node.node.storage_failed(failed)
        until(lambda: not node.source.online)
        assert "flush" in (node.source.failure or "")
        # Nobody asks a second time: no flush of anything on that disk, no checkpoint that knows more than was flushed.
        node.source_disk.trace()
        with pytest.raises(LogFlushError, match="a flush failed before"):
            replica.log.flush()
        until(lambda: writer.errors)
        node.stop(clean=True)
        assert [op for op, _ in node.source_disk.trace(False) if op in FLUSHES] == []
    assert replica.log.recovery_point == kept
    assert node.source.recovery_points.read().get(TP) == kept
    assert node.source_disk.evict() > 0
    node.source_disk.heal()
    node.begin_again()
    stored = node.stored()
    assert set(range(kept)) <= set(stored), "what was flushed is there"
    assert sorted(stored) == list(range(len(stored))), "and what was not flushed is there or gone, without a hole"
    assert all(writer.acknowledged[offset] in stored[offset] for offset in stored if offset in writer.acknowledged)


@pytest.mark.fuse
@needs_fuse
def test_flush_of_the_copy_that_fails_once_and_then_would_succeed(start: Start) -> None:
    node = start()
    node.fill(100)
    with undisturbed(node), Writer(node, "t") as writer:
        node.begin()
        node.target_disk.rules({"ops": FLUSHES, "path": r"t-0\.move/.*\.log$", "count": 1, "errno": 5, "drop": True})
        node.run()
        assert node.ended().error == "LogDirOffline"
        assert not node.target.online and "flush" in (node.target.failure or "")
        assert node.target_disk.evict() > 0
    assert writer.errors == []
    node.again()
    until(lambda: (s := node.status()) is None or not s.state.under_way, what="the copy goes on after the start")
    assert node.node.partition(TopicPartition("t", 0)) is not None and node.source.online
    if node.status() is not None:
        node.run()
        assert until(lambda: (s := node.status()) is not None and s.state is MoveState.SWAPPED)
    assert lost(node, writer.acknowledged) == []
