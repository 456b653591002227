"""Disks that fail or fill up during a move, and sources that are damaged: what is lost is the move, never a record."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.errors import LogDirectoryOffline, NotEnoughSpace, StorageError, Superseded
from storage_node.log.config import LogConfig
from storage_node.model.moves import MoveState
from storage_node.move.copying import flusher
from storage_node.move.status import MoveStatus
from storage_node.move.swap import Swapper
from storage_node.replicas import marker as markers
from tests.storage_node.move.harness import CONFIG, TP, Make, SmallNode, batch, eventually, values
from tests.support.needs import needs_root


def caught_up(node: SmallNode) -> MoveStatus:
    node.add()
    node.fill(100)
    status = node.engine.create(TP, node.path("b"), owner="run")
    node.engine.start_copy(TP, status.claim)
    return node.engine.wait(TP, status.claim, 10)


def state(node: SmallNode) -> tuple[str, str]:
    status = node.engine.status(TP)
    assert status is not None
    return str(status.state), status.error


@pytest.mark.conformance(64, 109)
@pytest.mark.feature("113-17")
@pytest.mark.parametrize("which", ["a", "b"])
def test_move_stops_when_a_directory_goes_offline(which: str, make: Make) -> None:
    node = make(rate=200_000)
    partition = node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
    node.dir(which).fail("the disk died")
    ended = node.engine.wait(TP, status.claim, 30)
    assert (ended.state, ended.error) == (MoveState.FAILED, "LogDirOffline")
    assert "the disk died" in ended.message and node.path(which) in ended.message
    assert (node.dir("b").path / "t-0.move").exists()
    with pytest.raises(LogDirectoryOffline):
        node.engine.create(TP, node.path("b"))
    if which == "b":
        assert partition.future is None
        assert partition.append(batch(b"x")).base_offset == 1000  # the replica lives on


def test_replica_moves_elsewhere_while_the_copy_is_on_a_dead_disk(make: Make, tmp_path: Path) -> None:
    node = make(names="abc")
    status = caught_up(node)
    node.dir("b").fail("the disk died")
    node.engine.cancel(TP, status.claim)
    node.move("c")
    node.close()
    node = make(names="abc")  # the disk is back: its copy is older than what was asked for since
    assert node.partitions[TP].directory is node.dir("c")
    eventually(lambda: node.listing() == {"a": ["t-0.delete"], "b": [], "c": ["t-0"]})


def test_copy_whose_final_name_may_not_be_durable_is_in_no_directory_in_use(make: Make) -> None:
    """The disk is good, but the flush of the name failed (for lack of descriptors): the source is taken back, and no
    start may find the copy under the replica's name.
    """
    node = make()
    status = caught_up(node)
    armed: dict[str, str | Callable[[], object]] = {"swap.after_target_renamed": "raise:EMFILE"}
    with failpoints.active(armed), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert node.dir("a").online and not node.dir("b").online
    partition = node.partitions[TP]
    assert partition.directory is node.dir("a") and partition.append(batch(b"x")).base_offset == 100


@pytest.mark.parametrize("renamed", [True, False])
def test_source_whose_name_is_not_known_is_not_served(renamed: bool, make: Make) -> None:
    """Nor is anything else in a directory that is bad; one of which a folder is gone is asked, and stays."""
    node = make()
    status = caught_up(node)
    here, away = node.dir("a").path / "t-0", node.dir("a").path / "lost+found"
    # The flush fails after the rename, or the rename itself fails.
    armed: dict[str, str | Callable[[], object]] = {"swap.after_source_renamed": "raise"}
    if not renamed:
        armed = {"swap.after_seal": lambda: here.rename(away)}
    with failpoints.active(armed), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert node.dir("a").online != renamed and node.dir("b").online
    assert state(node) == ("failed", "LogDirOffline" if renamed else "NodeFailure")
    assert (TP in node.partitions) == renamed
    node.close()
    if not renamed:
        away.rename(here)
    after = make()
    assert len(values(after.partitions[TP].log)) == 100
    assert after.partitions[TP].directory is after.dir("b" if renamed else "a")


@pytest.mark.parametrize("point", ["swap.after_source_flushed", "swap.after_target_renamed"])
def test_target_that_fails_at_its_rename_gives_the_source_back_two_generations_higher(
    point: str, make: Make, tmp_path: Path
) -> None:
    node = make()
    status = caught_up(node)
    partition = node.partitions[TP]
    # The target's own rename fails where the name is taken, or its flush fails after the rename.
    blocker = tmp_path / "b" / "t-0"
    armed: dict[str, str | Callable[[], object]] = {point: "raise"}
    if taken := point == "swap.after_source_flushed":
        armed = {point: lambda: blocker.mkdir()}
    with failpoints.active(armed), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    # A name that is taken says nothing about the disk (KAFKA-16082), a flush that fails does.
    assert node.dir("a").online and node.dir("b").online == taken
    assert state(node) == ("failed", "NodeFailure" if taken else "LogDirOffline")
    assert node.listing()["a"] == ["t-0"] and partition.generation == 2
    marker = markers.read(tmp_path / "a" / "t-0")
    assert marker is not None and (marker.state, marker.generation) == ("CURRENT", 2)
    assert partition.append(batch(b"after")).base_offset == 100
    node.close()
    if blocker.exists() and not any(blocker.iterdir()):
        blocker.rmdir()
    after = make()
    assert b"after" in values(after.partitions[TP].log)[-1]
    assert after.partitions[TP].directory is after.dir("a")


def taken_name(node: SmallNode) -> dict[str, str | Callable[[], object]]:
    """Somebody makes a folder of the replica's name on the target when the source has lost its own."""
    return {"swap.after_source_flushed": lambda: (node.dir("b").path / "t-0").mkdir()}


@pytest.mark.parametrize("number", ["EMFILE", "EEXIST"])
@pytest.mark.parametrize("unsealed", [True, False])
def test_copy_that_could_not_be_swapped_in_is_never_the_older_one_that_wins(
    number: str, unsealed: bool, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal or the rename failed on a good disk: both directories stay online, the source goes on to be written."""
    node = make()
    status = caught_up(node)
    armed = taken_name(node) if number == "EEXIST" else {"swap.after_seal": "raise:EMFILE"}
    if not unsealed:
        monkeypatch.setattr(Swapper, "_unseal", lambda *_: False)
    with failpoints.active(armed), pytest.raises(StorageError) as told:
        node.engine.swap(TP, status.claim)
    if number == "EEXIST":
        (tmp_path / "b" / "t-0").rmdir()
    assert isinstance(told.value.__cause__, OSError)  # which is what the disk is judged by
    assert node.dir("a").online and node.dir("b").online
    failed = node.engine.status(TP)
    assert failed is not None and (failed.error, f"({number})" in failed.message) == ("NodeFailure", True)
    node.partitions[TP].append(batch(b"after"))
    node.engine.start_copy(TP, status.claim)
    node.engine.wait(TP, status.claim, 30)
    if not unsealed:
        with pytest.raises(Superseded):
            node.engine.swap(TP, status.claim)
        # Asked for again it is the younger one.
        node.finish(node.engine.create(TP, node.path("b"), owner="run").claim)
    else:
        marker = markers.read(tmp_path / "b" / "t-0.move")
        assert marker is not None and (marker.state, marker.generation) == ("COPYING", 3)
        node.finish(status.claim)
    assert node.partitions[TP].generation == 3
    node.close()
    after = make()
    assert after.partitions[TP].directory is after.dir("b")
    assert b"after" in values(after.partitions[TP].log)[-1]


@pytest.mark.parametrize("point", ["undo.after_marker", "undo.after_renamed"])
@pytest.mark.parametrize("bad", [True, False])
def test_source_that_cannot_be_given_its_name_back_is_not_served(
    point: str, bad: bool, make: Make, tmp_path: Path
) -> None:
    """The replica goes offline alone, unless the disk is bad."""
    node = make()
    status = caught_up(node)
    partition = node.partitions[TP]
    armed = {**taken_name(node), point: "raise" if bad else "raise:EMFILE"}
    with failpoints.active(armed), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert node.dir("a").online != bad and node.dir("b").online
    if not bad:
        assert TP not in node.partitions
        with pytest.raises(LogDirectoryOffline, match="cannot be taken back"):
            partition.append(batch(b"nowhere"))
    node.close()
    (tmp_path / "b" / "t-0").rmdir()
    after = make()
    assert len(values(after.partitions[TP].log)) == 100


def test_source_without_a_new_marker_is_served_when_the_seal_is_taken_back(make: Make, tmp_path: Path) -> None:
    node = make()
    status = caught_up(node)
    armed = {"swap.after_seal": "raise:EMFILE", "undo.after_marker": "raise:EMFILE"}
    with failpoints.active(armed), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert node.dir("a").online and node.dir("b").online
    sealed = markers.read(tmp_path / "b" / "t-0.move")
    assert sealed is not None and sealed.state == "COPYING"
    node.partitions[TP].append(batch(b"after"))
    node.close()
    after = make()
    assert after.partitions[TP].directory is after.dir("a")
    assert b"after" in values(after.partitions[TP].log)[-1]


@pytest.mark.parametrize("number", ["EMFILE", "ENOENT"])
def test_copy_that_ends_on_a_good_disk_can_be_tried_again(number: str, make: Make) -> None:
    node = make()
    node.add()
    node.fill(100)
    status = node.engine.create(TP, node.path("b"))

    def fails() -> None:
        raise StorageError(node.path("b"), "opening a segment") from OSError(getattr(errno, number), "no")

    with failpoints.active({"copy.after_chunk": fails}):
        node.engine.start_copy(TP, status.claim)
        ended = node.engine.wait(TP, status.claim, 60)
    assert (ended.state, ended.error) == (MoveState.FAILED, "NodeFailure")
    assert node.path("b") in ended.message and f"({number})" in ended.message
    assert node.dir("a").online and node.dir("b").online
    node.finish(status.claim)


def test_seal_that_fails_leaves_the_source_two_generations_higher(make: Make) -> None:
    node = make()
    status = caught_up(node)
    with failpoints.active({"swap.after_seal": "raise"}), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert node.listing()["a"] == ["t-0"] and node.dir("a").online and not node.dir("b").online
    assert node.partitions[TP].generation == 2
    node.partitions[TP].append(batch(b"after"))
    node.close()
    after = make()
    assert b"after" in values(after.partitions[TP].log)[-1]
    after.finish(after.engine.create(TP, after.path("b"), owner="run").claim)
    assert b"after" in values(after.partitions[TP].log)[-1] and after.listing()["b"] == ["t-0"]


def test_failed_flush_of_the_copy_takes_the_target_offline(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "INTERVAL", 50_000)
    node = make()
    node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"), throttle=2_000_000)
    with failpoints.active({"copy.before_flush": "raise:ENOSPC"}):  # no space reported by a flush is a failed flush
        node.engine.start_copy(TP, status.claim, 2_000_000)
        node.engine.wait(TP, status.claim, 20)
    assert state(node) == ("failed", "LogDirOffline")
    assert not node.dir("b").online and node.dir("a").online


@pytest.mark.parametrize("moment", ["create.after_mkdir", "create.after_renamed"])
def test_failing_target_at_the_beginning(moment: str, make: Make) -> None:
    node = make()
    partition = node.add()
    with failpoints.active({moment: "raise"}), pytest.raises(StorageError):
        node.engine.create(TP, node.path("b"))
    assert not node.dir("b").online
    assert partition.future is None and node.engine.statuses() == []


@pytest.mark.conformance(63)
def test_corrupt_source_fails_the_move_and_names_file_and_offset(make: Make, tmp_path: Path) -> None:
    node = make(config=LogConfig(segment_bytes=20_000, file_delete_delay_ms=0))
    partition = node.add()
    node.fill(100)
    [base] = [s.base_offset for s in partition.log.segments if s.base_offset <= 50][-1:]
    path = tmp_path / "a" / "t-0" / f"{base:020d}.log"
    with path.open("r+b") as file:
        file.seek((50 - base) * 1070 + 500)
        file.write(b"?")
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    ended = node.engine.wait(TP, status.claim, 10)
    assert (ended.state, ended.error) == (MoveState.FAILED, "CorruptSource")
    assert str(path) in ended.message and "offset 50" in ended.message
    assert node.dir("a").online and node.dir("b").online
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})
    assert partition.append(batch(b"x")).base_offset == 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "b"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", path], check=True, capture_output=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.root
@needs_root
def test_full_target(make: Make, small_disk: Path) -> None:
    node = make(config=LogConfig(segment_bytes=200_000, file_delete_delay_ms=0))
    partition = node.add()
    node.fill(6000)
    with pytest.raises(NotEnoughSpace, match=str(small_disk)):
        node.engine.create(TP, node.path("b"))
    assert node.listing()["b"] == []
    # It fits when it is asked for, and fills up while it is copied.
    partition.truncate_to(500)
    node.engine.set_node_rate(300_000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    node.fill(6000)
    node.engine.set_node_rate(None)
    ended = node.engine.wait(TP, status.claim, 20)
    assert (ended.state, ended.error) == (MoveState.FAILED, "TargetFull")
    assert node.dir("b").online and node.dir("a").online
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})
    assert node.engine.wait(TP, status.claim, 1).state is MoveState.FAILED
    assert partition.append(batch(b"x")).base_offset == 6500
    partition.truncate_to(500)
    node.move("b")  # there is room again


@pytest.mark.root
@needs_root
def test_no_room_for_the_folder_itself(make: Make, small_disk: Path) -> None:
    node = make(config=CONFIG)
    node.add()
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(NotEnoughSpace):
        node.engine.create(TP, node.path("b"))
    assert node.dir("b").online and node.listing()["b"] == []
