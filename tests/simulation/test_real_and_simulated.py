"""The simulated disks in ordinary use: every operation answers what it answers on a real disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.directories.atomic import rename_new
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "e", "e/f", "e/f/a", "n" * 256])
DATA = st.binary(max_size=12)
OPERATION = st.one_of(
    st.tuples(st.just("append"), NAMES, DATA),
    st.tuples(st.just("write_text"), NAMES),
    st.tuples(st.just("pwrite"), NAMES, DATA, st.integers(0, 20)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 20)),
    st.tuples(st.just("exclusive"), NAMES),
    st.tuples(st.just("read"), NAMES, st.integers(0, 10), st.integers(0, 10)),
    st.tuples(st.just("mkdir"), NAMES),
    st.tuples(st.just("rmdir"), NAMES),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("rename_new"), NAMES, NAMES),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("rmtree"), NAMES),
    st.tuples(st.just("iterdir"), NAMES),
    st.tuples(st.just("by_descriptor"), NAMES, NAMES),
    st.tuples(st.just("keep_open"), NAMES, DATA),
)


class Player:
    """Does operations below a folder and says what came of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kept: list[int] = []

    def play(self, name: str, *arguments: object) -> object:
        paths = [self.root / part if isinstance(part, str) else part for part in arguments]
        try:
            return getattr(self, name)(*paths)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def append(self, path: Path, data: bytes) -> object:
        with path.open("ab") as file:
            file.write(data)
            return file.tell()

    def write_text(self, path: Path) -> object:
        path.write_text("text\n")
        return path.read_text()

    def pwrite(self, path: Path, data: bytes, at: int) -> object:
        fd = os.open(path, os.O_RDWR)
        try:
            return os.pwritev(fd, [data, b"!"], at), os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END)
        finally:
            os.close(fd)

    def truncate(self, path: Path, size: int) -> object:
        os.truncate(path, size)
        return path.stat().st_size

    def exclusive(self, path: Path) -> object:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return True

    def read(self, path: Path, count: int, at: int) -> object:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return os.read(fd, count), os.read(fd, count), os.pread(fd, count, at)
        finally:
            os.close(fd)

    def mkdir(self, path: Path) -> object:
        return path.mkdir()

    def rmdir(self, path: Path) -> object:
        return path.rmdir()

    def unlink(self, path: Path) -> object:
        return path.unlink()

    def rename(self, path: Path, new: Path) -> object:
        path.rename(new)
        return path.exists(), new.is_dir(), new.is_symlink()

    def rename_new(self, path: Path, new: Path) -> object:
        return rename_new(path, new)

    def link(self, path: Path, new: Path) -> object:
        os.link(path, new)
        return new.stat().st_nlink

    def rmtree(self, path: Path) -> object:
        return shutil.rmtree(path)

    def iterdir(self, path: Path) -> object:
        with os.scandir(path) as entries:
            seen = sorted((entry.name, entry.is_dir(), entry.stat().st_size * entry.is_file()) for entry in entries)
        assert [name for name, _, _ in seen] == sorted(entry.name for entry in path.iterdir())
        return seen

    def by_descriptor(self, path: Path, new: Path) -> object:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fd = os.open("x", os.O_RDWR | os.O_CREAT, dir_fd=folder)
            os.write(fd, b"x")
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.stat("y", dir_fd=folder, follow_symlinks=False)
                raise AssertionError("it should not be there")
            os.rename("x", "y", src_dir_fd=folder, dst_dir_fd=folder)
            with contextlib.suppress(OSError):
                path.rename(new)
            os.unlink("y", dir_fd=folder)
            os.fsync(folder)
            return sorted(os.listdir(folder))  # noqa: PTH208  # by descriptor
        finally:
            os.close(folder)

    def keep_open(self, path: Path, data: bytes) -> object:
        fd = os.open(path, os.O_RDWR)
        self.kept.append(fd)
        fcntl.flock(fd, fcntl.LOCK_SH)
        for other in self.kept:
            os.write(other, data)
        return [os.fstat(other).st_size for other in self.kept]

    def tree(self) -> object:
        return sorted(
            (str(path.relative_to(self.root)), path.is_file() and path.read_bytes()) for path in self.root.rglob("*")
        )

    def end(self) -> None:
        for fd in self.kept:
            os.close(fd)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATION, max_size=25))
def test_ordinary_operations_do_what_they_do_on_a_real_disk(operations: list[tuple[object, ...]]) -> None:
    machine = Machine("a")
    with tempfile.TemporaryDirectory() as folder, simulated(machine):
        real, fake = Player(Path(folder)), Player(Path("/sim/a"))
        try:
            for name, *arguments in operations:
                assert isinstance(name, str)
                assert fake.play(name, *arguments) == real.play(name, *arguments), name
            assert fake.tree() == real.tree()
        finally:
            real.end()
            fake.end()
    disk = machine.disks["a"]
    used = disk.used
    disk.restore(disk.state)
    assert disk.used == used
    disk.sync()
    assert [state.tree() for state in disk.power_loss_states()] == [disk.tree()]
