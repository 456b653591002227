"""The tool itself: it passes things through, and each fault is what it says."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Disk, needs_fuse

pytestmark = [pytest.mark.fuse, needs_fuse]


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    disk = Disk(tmp_path_factory.mktemp("disk"), "d")
    yield disk
    disk.close()


@pytest.fixture
def disk(mounted: Disk) -> Iterator[Disk]:
    mounted.heal()
    yield mounted
    mounted.heal()


def test_it_is_a_file_system(disk: Disk) -> None:
    folder = disk.path / "t-0"
    folder.mkdir()
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fd = os.open("a.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=opened)
    assert os.pwrite(fd, b"x" * 300_000, 0) == 300_000
    os.fsync(opened)
    folder.rename(disk.path / "t-0.delete")
    assert os.pwrite(fd, b"end", 300_000) == 3
    os.fdatasync(fd)
    assert os.fstat(fd).st_size == 300_003 and os.pread(fd, 10, 299_999) == b"xend"
    assert os.listdir(opened) == ["a.log"] and os.statvfs(disk.path).f_bavail > 0
    os.ftruncate(fd, 5)
    (disk.path / "t-0.delete" / "a.log").unlink()
    (disk.path / "t-0.delete").rmdir()  # while both are open
    assert os.pread(fd, 10, 0) == b"xxxxx"
    os.close(fd)
    os.close(opened)
    assert list(disk.path.iterdir()) == []
    inode = disk.path.stat().st_ino
    time.sleep(0.01)
    assert disk.path.stat().st_ino == inode


def test_error_on_the_third_write_to_a_path_and_on_no_other(disk: Disk) -> None:
    a, b = (disk.path / "a.log").open("wb", buffering=0), (disk.path / "b.log").open("wb", buffering=0)
    with disk.failing("write", path=r"/a\.log$", after=2, count=1, errno=errno.ENOSPC):
        for number in range(4):
            b.write(b"1")
            if number == 2:
                with pytest.raises(OSError, match="No space left"):
                    a.write(b"1")
            else:
                a.write(b"1")
        assert disk.hits == 1
    a.close()
    b.close()
    assert ((disk.path / "a.log").stat().st_size, (disk.path / "b.log").stat().st_size) == (3, 4)


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("mkdir", lambda d: (d / "new").mkdir()),
        ("rename", lambda d: (d / "x").rename(d / "y")),
        ("unlink", lambda d: (d / "x").unlink()),
        ("create", lambda d: (d / "z").write_bytes(b"")),
        ("open", lambda d: (d / "x").read_bytes()),
        ("readdir", lambda d: list(d.iterdir())),
        ("statfs", os.statvfs),
        ("getattr", lambda d: (d / "x").stat()),
        ("fsyncdir", lambda d: _sync(d)),
    ],
)
def test_each_operation_fails_on_its_own(disk: Disk, op: str, call: object) -> None:
    (disk.path / "x").write_bytes(b"")
    with disk.failing(op, errno=errno.EROFS), pytest.raises(OSError) as caught:
        call(disk.path)  # type: ignore[operator]
    assert caught.value.errno == errno.EROFS
    (disk.path / "x").stat()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def test_delay_and_a_bandwidth(disk: Disk) -> None:
    with disk.failing("mkdir", delay=0.2):
        began = time.monotonic()
        (disk.path / "late").mkdir()
        assert time.monotonic() - began > 0.19
    with disk.failing("write", rate=1e6), (disk.path / "slow").open("wb", buffering=0) as file:
        began = time.monotonic()
        for _ in range(10):
            file.write(b"x" * 50_000)
        assert 0.45 < time.monotonic() - began < 30


def test_what_hangs_comes_back_and_can_be_killed(disk: Disk) -> None:
    file = (disk.path / "h").open("wb", buffering=0)
    done = threading.Event()

    def write() -> None:
        file.write(b"x")
        done.set()

    with disk.failing("write", hang=True):
        thread = threading.Thread(target=write)
        thread.start()
        child = subprocess.Popen([sys.executable, "-c", f"open({str(disk.path / 'k')!r}, 'w').write('x')"])
        deadline = time.monotonic() + 60
        while disk.hanging < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.kill()
        assert child.wait(30) == -9
        assert not done.is_set()
        (disk.path / "other").mkdir()  # only writes hang
    assert done.wait(30)
    thread.join()
    file.close()
    assert (disk.path / "h").read_bytes() == b"x"


def test_flush_that_fails_once_then_succeeds_has_lost_the_data(disk: Disk) -> None:
    with (disk.path / "f").open("wb", buffering=0) as file:
        file.write(b"a" * 100)
        os.fsync(file.fileno())
        file.write(b"b" * 100)
        with disk.failing("fsync", "fdatasync", count=1, errno=errno.EIO, drop=True):
            with pytest.raises(OSError, match="Input/output"):
                os.fsync(file.fileno())
            os.fsync(file.fileno())
        assert (disk.path / "f").read_bytes() == b"a" * 100 + b"b" * 100  # the cache still has it
    assert disk.evict() == 100
    assert (disk.path / "f").read_bytes() == b"a" * 100 + bytes(100)


def test_operations_are_noted_in_order(disk: Disk) -> None:
    disk.trace()
    (disk.path / "n").mkdir()
    (disk.path / "n").rmdir()
    changes = [(op, path) for op, path in disk.trace(False) if op in ("mkdir", "rmdir")]
    assert changes == [("mkdir", "/n"), ("rmdir", "/n")]
