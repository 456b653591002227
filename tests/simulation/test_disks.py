"""The simulated disks: what a crash leaves is what was measured on ext4 and XFS, and what fails is what may fail."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_node.directories.atomic import fsync_dir, write_atomic
from storage_node.directories.errors import DirectoryInUse
from storage_node.directories.lock import DirectoryLock
from tests.simulation.disks import BLOCK_BYTES, FLUSHES, INODE_BYTES, WRITES, Crash
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated

A, B = Path("/sim/a"), Path("/sim/b")


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine("a", "b")
    with simulated(machine):
        yield machine


def outcomes(machine: Machine, look: Callable[[], str]) -> set[str]:
    """What `look` says after each thing a power loss may leave."""
    found = set()
    for states in list(machine.power_loss_states()):
        machine.restore(states)
        found.add(look())
    return found


def settled(machine: Machine) -> None:
    for disk in machine.disks.values():
        disk.sync()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def listing() -> str:
    return " ".join(f"{path.parent.name}:{path.name}" for disk in (A, B) for path in sorted(disk.iterdir()))


def write(path: Path, data: bytes, *, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, data)
    if sync:
        os.fsync(fd)
    os.close(fd)


# The measured table: what a power loss leaves is among the outcomes, and what a flush promised is in all of them.


@pytest.fixture
def swap(machine: Machine) -> Machine:
    (A / "tp").mkdir()
    (B / "tp.move").mkdir()
    settled(machine)
    return machine


def renames(*flushes: str) -> None:
    (A / "tp").rename(A / "tp.delete")
    if "a first" in flushes:
        fsync_dir(A)
    (B / "tp.move").rename(B / "tp")
    if "a" in flushes:
        fsync_dir(A)
    if "b" in flushes:
        fsync_dir(B)


def test_swap_without_flushes_may_be_undone_on_either_disk(swap: Machine) -> None:
    renames()
    assert outcomes(swap, listing) == {"a:tp b:tp.move", "a:tp b:tp", "a:tp.delete b:tp.move", "a:tp.delete b:tp"}


def test_swap_flushed_on_the_target_alone_may_leave_two_current_copies(swap: Machine) -> None:
    renames("b")
    assert outcomes(swap, listing) == {"a:tp b:tp", "a:tp.delete b:tp"}


def test_swap_flushed_on_the_source_alone_may_leave_none(swap: Machine) -> None:
    renames("a")
    assert outcomes(swap, listing) == {"a:tp.delete b:tp.move", "a:tp.delete b:tp"}


def test_swap_flushed_in_order_is_whole(swap: Machine) -> None:
    renames("a first", "b")
    assert outcomes(swap, listing) == {"a:tp.delete b:tp"}


def test_file_that_was_not_flushed_may_be_there_with_no_bytes_in_a_renamed_directory(swap: Machine) -> None:
    write(A / "tp" / "f", b"data", sync=False)
    renames("a")
    assert outcomes(swap, lambda: str((A / "tp.delete" / "f").read_bytes())) == {"b''", "b'data'"}


def test_append_that_was_not_flushed_may_be_lost(machine: Machine) -> None:
    write(A / "f", b"old", sync=True)
    write(A / "f", b"new", sync=False)
    assert outcomes(machine, lambda: (A / "f").read_text()) == {"old", "oldnew"}


@pytest.mark.parametrize("over", [False, True])
def test_checkpoint_that_was_not_flushed_before_its_rename_may_be_empty(machine: Machine, over: bool) -> None:
    if over:
        write(A / "c", b"old", sync=True)
    settled(machine)
    write(A / "c.tmp", b"new", sync=False)
    (A / "c.tmp").rename(A / "c")
    fsync_dir(A)
    assert outcomes(machine, lambda: (A / "c").read_text()) == {"", "new"}


def test_checkpoint_written_atomically_is_old_or_new_and_then_new(machine: Machine) -> None:
    write(A / "c", b"old", sync=True)
    settled(machine)
    seen: set[str] = set()
    for step in range(1, 20):
        before = machine.snapshot()
        machine.crash_at(step)
        try:
            write_atomic(A / "c", b"new")
        except Crash:
            seen |= outcomes(machine, lambda: (A / "c").read_text())
            machine.restore(before)
            continue
        break
    assert seen == {"old", "new"}
    assert outcomes(machine, lambda: (A / "c").read_text()) == {"new"}


@pytest.mark.parametrize(("follow", "left"), [(True, {"f"}), (False, {"", "f"})])
def test_flushed_file_without_a_flush_of_its_directory(follow: bool, left: set[str]) -> None:
    machine = Machine("a", names_follow=follow)
    with simulated(machine):
        write(A / "f", b"x", sync=True)
        assert outcomes(machine, lambda: " ".join(names(A))) == left


def test_flush_persists_what_came_before_in_the_journal(machine: Machine) -> None:
    (A / "old").mkdir()
    settled(machine)
    (A / "old").rename(A / "new")
    write(A / "unrelated", b"x", sync=True)
    assert outcomes(machine, lambda: " ".join(names(A))) == {"new unrelated"}


def test_renamed_directory_needs_a_flush_of_the_one_above(machine: Machine) -> None:
    (A / "old").mkdir()
    settled(machine)
    (A / "old").rename(A / "new")
    fsync_dir(A / "new")
    assert outcomes(machine, lambda: " ".join(names(A))) == {"old", "new"}


def test_flush_that_failed_is_followed_by_flushes_that_lie(machine: Machine) -> None:
    write(A / "f", b"1", sync=True)
    machine.disks["a"].fail(errno.EIO, FLUSHES, times=1, drop=True)
    fd = os.open(A / "f", os.O_RDWR | os.O_APPEND)
    os.write(fd, b"2")
    with pytest.raises(OSError, match="Input/output"):
        os.fsync(fd)
    os.write(fd, b"3")
    os.fsync(fd)
    assert (A / "f").read_bytes() == b"123"  # from memory
    assert outcomes(machine, lambda: str((A / "f").read_bytes())) == {str(b"1\x003")}


def test_random_loss_is_never_less_than_what_was_flushed(machine: Machine) -> None:
    write(A / "f", b"old", sync=True)
    for choice in range(5):
        before = machine.snapshot()
        write(A / "f", b"-more", sync=False)
        machine.power_loss(lambda n, c=choice: min(c, n - 1))  # type: ignore[misc]
        assert (A / "f").read_bytes()[:3] == b"old"
        machine.restore(before)


# Crashes of the process


def test_kill_loses_no_bytes_but_descriptors_and_locks(machine: Machine) -> None:
    lock = DirectoryLock(A)
    lock.acquire()
    with pytest.raises(DirectoryInUse):
        DirectoryLock(A).acquire()
    fd = os.open(A / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x")
    machine.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"y")
    os.close(fd)  # by a destructor of the dead process
    DirectoryLock(A).acquire()
    assert (A / "f").read_bytes() == b"x"
    assert "" in outcomes(machine, lambda: "".join(names(A)))


def test_after_a_crash_nothing_of_the_process_reaches_the_disk(machine: Machine) -> None:
    machine.crash_at(2)
    with pytest.raises(Crash):
        try:
            (A / "one").mkdir()
            (A / "two").mkdir()
        finally:
            with pytest.raises(Crash):
                (A / "clean-up").mkdir()
    machine.kill()
    assert names(A) == ["one"]


def test_every_step_is_told_before_it_happens(machine: Machine) -> None:
    seen: list[str] = []
    machine.before = lambda step: seen.append(f"{step.op} {step.path.removeprefix('/sim/')}")
    write_atomic(A / "c", b"x")
    assert seen == ["create a/c.tmp", "write a/c.tmp", "fsync a/c.tmp", "rename a/c.tmp -> /sim/a/c", "fsync_dir a"]


# Other trouble


def test_faults_by_operation_path_and_number(machine: Machine) -> None:
    disk = machine.disks["a"]
    fault = disk.fail(errno.EROFS, WRITES, path="/x")
    (A / "y").mkdir()
    with pytest.raises(OSError, match="Read-only"):
        (A / "x").mkdir()
    disk.heal(fault)
    disk.fail(errno.EIO, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            names(A)
    assert names(A) == ["y"]
    assert (B / "x").mkdir() is None


def test_full_disk_takes_a_part_and_renames_still_work() -> None:
    room = INODE_BYTES + 2 * BLOCK_BYTES
    machine = Machine("a", capacity=room)
    with simulated(machine):
        fd = os.open(A / "f", os.O_RDWR | os.O_CREAT)
        assert os.write(fd, b"x" * 2 * BLOCK_BYTES) == 2 * BLOCK_BYTES
        with pytest.raises(OSError, match="No space"):
            os.write(fd, b"x")
        os.ftruncate(fd, BLOCK_BYTES + 1)
        assert os.pwrite(fd, b"x" * 2 * BLOCK_BYTES, BLOCK_BYTES) == BLOCK_BYTES
        with pytest.raises(OSError, match="No space"):
            (A / "d").mkdir()
        os.fsync(fd)
        (A / "f").rename(A / "g")
        (A / "g").unlink()
        assert os.statvfs(A).f_bavail == 0  # still open
        os.close(fd)
        assert os.statvfs(A).f_bavail == room


def test_unmounted_disk_is_an_empty_folder_until_it_is_back(machine: Machine) -> None:
    write(A / "f", b"x", sync=False)
    identity = A.stat().st_dev
    machine.disks["a"].unmount()
    assert not list(A.iterdir())
    assert A.stat().st_dev != identity
    machine.disks["a"].mount()
    assert (A / "f").read_bytes() == b"x"
    assert A.stat().st_dev == identity


def test_time_passes_only_when_it_is_told_to(machine: Machine) -> None:
    began, wall = time.monotonic(), time.time_ns()
    time.sleep(2.5)  # time: of the simulation
    machine.clock.advance(1)
    assert time.monotonic() - began == 3.5
    assert time.time_ns() - wall == 3_500_000_000
