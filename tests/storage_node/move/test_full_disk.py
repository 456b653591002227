"""A disk without a byte left: a move to it fails and leaves nothing, what makes room always works, no disk goes
offline for it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import LogFlushError, NotEnoughSpace, RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.moves import MoveState
from storage_node.replicas import marker as markers
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually, values
from tests.support.needs import needs_root
from tests.support.nodes.node_harness import running

CONFIG = LogConfig(segment_bytes=50_000, file_delete_delay_ms=0)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    mounted: list[Path] = []

    def small(name: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", path], check=True, capture_output=True)
        mounted.append(path)
        return path

    yield small
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)


def fill_up(disk: Path) -> None:
    """Take the last byte of a disk."""
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def copy_of_now(disk: Path, to: Path) -> None:
    """What a kill would leave of a disk, on which another thread may be removing files just now."""
    try:
        shutil.copytree(disk, to, ignore=shutil.ignore_patterns("filler", ".lock"))
    except shutil.Error as error:
        assert all("No such file" in why for _, _, why in error.args[0]), error


def settled(node: SmallNode, state: tuple[str, str]) -> bool:
    status = node.engine.status(TP)
    return status is not None and (str(status.state), status.error) == state


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("moment", ["copy.after_chunk", "swap.before_lock", "swap.after_tail", "records deleted"])
def test_target_fills_up_at_any_step(moment: str, mount: Callable[[str], Path], tmp_path: Path) -> None:
    disk = mount("b")
    node = SmallNode(tmp_path, config=CONFIG)
    partition = node.add()
    node.fill(300)
    status = node.engine.create(TP, node.path("b"), owner="run", throttle=2_000_000)

    def fill() -> None:
        fill_up(disk)
        if moment == "records deleted":
            partition.delete_records(20)  # the copier then raises the copy's log start
        if moment == "swap.before_lock":
            # The copy has to take over an epoch without records, in a file of its own.
            with partition.lock:
                partition.leader_epoch = 7
                partition.log.assign_leader_epoch(7)

    point = "copy.after_chunk" if moment == "records deleted" else moment
    with failpoints.active({point: fill}):
        node.engine.start_copy(TP, status.claim, 2_000_000)
        ended = node.engine.wait(TP, status.claim, 20)
        if ended.state is MoveState.CAUGHT_UP:
            with pytest.raises((NotEnoughSpace, RequestRefused, StorageError)):
                while node.engine.swap(TP, status.claim).outcome != "swapped":
                    pass
    eventually(lambda: settled(node, ("failed", "TargetFull")))
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})
    assert node.dir("a").online and node.dir("b").online
    assert partition.future is None
    assert partition.append(batch(b"after")).base_offset == 300
    assert b"after" in values(partition.log)[-1]
    (disk / "filler").unlink()
    node.move("b")
    assert b"after" in values(partition.log)[-1]
    node.close()


def test_copy_on_a_disk_that_takes_no_byte_even_in_place_goes_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file system that copies on write needs room for a marker that is changed where it stands, too.
    full = False

    def refusing(real: Callable[..., int]) -> Callable[..., int]:
        def write(fd: int, *arguments: Any) -> int:
            if full and Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(node.path("b")):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, *arguments)

        return write

    def fill() -> None:
        nonlocal full
        full = True

    node = SmallNode(tmp_path, config=CONFIG)
    node.add()
    node.fill(300)
    for name in ("write", "pwrite", "pwritev", "writev"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    status = node.engine.create(TP, node.path("b"), owner="run", throttle=2_000_000)
    with failpoints.active({"copy.after_chunk": fill}):
        node.engine.start_copy(TP, status.claim, 2_000_000)
        node.engine.wait(TP, status.claim, 20)
    eventually(lambda: settled(node, ("failed", "TargetFull")))
    # A start would take it for no copy, and the next move is not in its way.
    eventually(lambda: [name for name in node.listing()["b"] if name.endswith(".move")] == [])
    assert node.dir("b").online and node.dir("a").online
    full = False
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})
    node.move("b")
    node.close()


@pytest.mark.root
@needs_root
def test_move_from_a_full_disk_makes_room_on_it(mount: Callable[[str], Path], tmp_path: Path) -> None:
    disk = mount("a")
    node = SmallNode(tmp_path, config=CONFIG)
    node.add()
    node.fill(300)
    claim = node.engine.next_claim(TP)
    node.engine.create(TP, node.path("b"), claim=claim)
    fill_up(disk)
    node.finish(claim)
    # Not even the marker's last word could be written; the files go all the same.
    eventually(lambda: node.listing() == {"a": [], "b": ["t-0"]})
    # The blocks are free once the last of its files is closed, on another thread.
    eventually(lambda: os.statvfs(disk).f_bavail * 4096 > 200_000)
    assert node.dir("a").online
    node.close()


#: (The source has no marker that could be settled.)
POINTS = [
    name
    for name in failpoints.registered()
    if name.startswith(("create.", "swap.", "delete.")) and name != "swap.after_source_settled"
]


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("point", POINTS)
def test_replica_without_a_marker_leaves_a_full_disk_although_the_node_is_killed(
    point: str, mount: Callable[[str], Path], tmp_path: Path
) -> None:
    """What is on the disks at a point of the move is what a start after kill -9 finds."""
    disk, later = mount("a"), tmp_path / "later"
    node = SmallNode(tmp_path, config=CONFIG)
    node.add()
    node.fill(300)
    whole = values(node.partitions[TP].log)
    fill_up(disk)

    def keep() -> None:
        if not later.exists():
            for name in ("a", "b"):
                copy_of_now(tmp_path / name, later / name)

    with failpoints.active({point: keep}):
        assert markers.read(node.partitions[TP].log.path) is None
        node.move("b")
        eventually(lambda: node.listing() == {"a": [], "b": ["t-0"]})
    assert later.exists(), f"{point} was not passed"
    assert node.dir("a").online and values(node.partitions[TP].log) == whole
    node.close()
    again = SmallNode(later, config=CONFIG)
    assert values(again.partitions[TP].log) == whole
    if again.partitions[TP].directory.path.name == "a":
        again.move("b", owner="another")
    eventually(lambda: again.listing() == {"a": [], "b": ["t-0"]})
    assert values(again.partitions[TP].log) == whole
    again.close()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("point", ["swap.after_seal", "swap.after_source_renamed"])
def test_swap_that_fails_on_a_full_disk_without_a_marker_costs_no_directory(
    point: str, mount: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = mount("a")
    node = SmallNode(tmp_path, config=CONFIG)
    partition = node.add()
    node.fill(300)
    fill_up(disk)
    status = node.engine.create(TP, node.path("b"), owner="run")
    node.engine.start_copy(TP, status.claim)
    assert node.engine.wait(TP, status.claim, 20).state is MoveState.CAUGHT_UP

    def no_room() -> None:
        raise NoRoom(errno.ENOSPC, "No space left on device")

    with failpoints.active({point: no_room}), pytest.raises((NotEnoughSpace, RequestRefused, StorageError)):
        node.engine.swap(TP, status.claim)
    assert node.dir("a").online and node.dir("b").online
    (disk / "filler").unlink()
    assert partition.append(batch(b"after")).base_offset == 300
    node.close()
    again = SmallNode(tmp_path, config=CONFIG)
    if again.partitions[TP].directory.path.name == "a":
        again.move("b", owner="another")
    assert b"after" in values(again.partitions[TP].log)[-1] and again.partitions[TP].log.log_end_offset == 301
    again.close()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("moved_before", [True, False])
def test_records_and_topics_can_be_deleted_on_a_full_disk(
    moved_before: bool, mount: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = mount("a")
    node = SmallNode(tmp_path, config=CONFIG)
    partition = node.add()
    partition.leader_epoch = 3
    node.fill(300)
    if moved_before:
        node.engine.next_claim(TP)
    fill_up(disk)
    with pytest.raises(NotEnoughSpace):
        for _ in range(100):
            partition.append(batch(b"x" * 1000))
    assert partition.delete_records(200) == 200
    assert partition.delete_old_segments(0) > 0
    partition.tidy(10**15)
    assert partition.append(batch(b"room again")).base_offset >= 300
    fill_up(disk)
    partition.delete()
    node.engine.discard(TP)
    eventually(lambda: node.listing()["a"] == [])
    assert node.dir("a").online
    node.close()


def test_no_space_at_a_flush_is_a_failed_flush_and_at_a_write_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path / "t-0", TP, CONFIG, directory=str(tmp_path))
    log.append_as_leader(batch(b"x"), 0)
    real = os.fdatasync, os.pwritev
    full = OSError(errno.ENOSPC, "No space left on device")
    for number in range(5):
        log.append_as_leader(batch(b"x" * 5000), number)

    def no_write(fd: int, buffers: object, offset: int) -> int:
        raise full

    # The records are flushed, the indexes have no room: nothing is lost, and the recovery point waits for them.
    monkeypatch.setattr(os, "pwritev", no_write)
    log.flush()
    assert log.recovery_point == 0
    with pytest.raises(NotEnoughSpace):
        log.append_as_leader(batch(b"x"), 9)
    monkeypatch.setattr(os, "pwritev", real[1])
    log.flush()
    assert log.recovery_point == log.log_end_offset == 6

    calls: list[int] = []

    def no_flush_of_the_index(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise full
        real[0](fd)

    log.append_as_leader(batch(b"x" * 5000), 5)
    log.append_as_leader(batch(b"x" * 5000), 5)
    monkeypatch.setattr(os, "fdatasync", no_flush_of_the_index)
    with pytest.raises(LogFlushError):
        log.flush()
    with pytest.raises(LogFlushError):
        log.flush()
    log.close(clean=False)


def test_full_disk_changes_a_marker_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    old = markers.Marker("t", 0, owner="somebody" * 20)
    markers.write(path, old)
    real = os.write

    def no_write(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_write)
    new = markers.Marker("t", 0, state=markers.State.CANCELLED)
    with pytest.raises(StorageError):
        markers.write(path, new)
    assert markers.read(path) == old
    markers.write_in_any_case(path, new)
    monkeypatch.setattr(os, "write", real)
    assert markers.read(path) == new and [p.name for p in path.iterdir()] == [markers.NAME]


@pytest.mark.root
@needs_root
def test_node_stops_and_starts_on_a_full_disk(mount: Callable[[str], Path], tmp_path: Path) -> None:
    disk = mount("node-1")
    with running(tmp_path, dirs=1) as harness:
        harness.create_topic("t")
        harness.produce("t", [b"%d" % number for number in range(50)])
        harness.settle()
        fill_up(disk)
        for clean in (True, False):
            harness.restart(clean)
            assert harness.node.dirs.directories[0].online
            assert [int(m.value()) for m in harness.consume("t", 50)] == list(range(50))
        (disk / "filler").unlink()
        harness.produce("t", [b"50"])


@pytest.mark.root
@needs_root
def test_topic_deleted_while_the_node_was_down_goes_from_a_full_disk(
    mount: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = mount("node-1")
    with running(tmp_path, dirs=1) as harness:
        harness.create_topic("t")
        harness.produce("t", [b"x" * 1000] * 50)
        harness.settle()
        fill_up(disk)
        harness.stop()
        image = harness.controller.image
        gone = {image.topics["t"].id: "t"}
        # The image that says so came before the disk was full.
        harness.controller.image = replace(image, topics={}, gone=gone, version=image.version + 1)
        harness.node = harness._new(0)
        harness.start()
        eventually(lambda: not list(Path(harness.paths[0]).glob("t-0*")))
        assert harness.node.dirs.directories[0].online
