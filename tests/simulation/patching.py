"""Turns `os`, `io.open`, `fcntl.flock` and `time` to a simulated machine, for paths below `/sim` and its descriptors.

Everything else goes to the real functions, so `pathlib`, `shutil` and the code under test run unchanged::

    machine = Machine("a", "b")
    with simulated(machine):            # time too, unless time=False
        Path("/sim/a/x").mkdir()

Symbolic links do not exist there; making one is EPERM. `mmap` is not simulated.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import functools
import io
import os
import threading
import time as real_time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self
from unittest import mock

from storage_node.directories import atomic
from tests.simulation.disks import Inode
from tests.simulation.machine import FIRST_FD, ROOT, Machine

__all__ = ["simulated"]

_BELOW = ROOT + "/"
_AT_FDCWD = -100


def _ours(path: Any) -> str | None:
    """A path below `/sim` as text; None for all others."""
    if type(path) is not str:
        if isinstance(path, int) or path is None:
            return None
        path = os.fspath(path)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
    return path if path.startswith(_BELOW) or path == ROOT else None


def _text(path: Any) -> str:
    return os.fsdecode(os.fspath(path))


class _Entry:
    """What `os.scandir` answers."""

    def __init__(self, machine: Machine, folder: Any, name: str, inode: Inode) -> None:
        self.name = name
        self.path = name if isinstance(folder, int) else f"{folder}/{name}"
        self._machine = machine
        self._folder = folder
        self._inode = inode

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._inode.is_dir

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self._inode.is_dir

    def is_symlink(self) -> bool:
        return False

    def inode(self) -> int:
        return self._inode.number

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if isinstance(self._folder, int):
            return self._machine.stat(self.name, self._folder)
        return self._machine.stat(self.path)


class _Scan:
    """The iterator and context manager of `os.scandir`."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = iter(list(entries))

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Raw(io.RawIOBase):
    """A file object over a simulated descriptor."""

    def __init__(self, machine: Machine, fd: int, flags: int) -> None:
        self._machine = machine
        self._fd = fd
        self._flags = flags

    def fileno(self) -> int:
        return self._fd

    def readable(self) -> bool:
        return self._flags & os.O_WRONLY == 0

    def writable(self) -> bool:
        return self._flags & (os.O_WRONLY | os.O_RDWR) != 0

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._machine.read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._machine.write(self._fd, bytes(data))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._machine.seek(self._fd, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._machine.truncate(self._fd, size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._machine.close(self._fd)


_MODES = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


def _open_file(
    machine: Machine,
    path: str,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    flags = _MODES[mode.strip("bt+U")]
    if "+" in mode:
        flags = flags & ~os.O_WRONLY | os.O_RDWR
    raw = _Raw(machine, machine.open(path, flags), flags)
    if flags & os.O_APPEND:
        raw.seek(0, os.SEEK_END)
    if buffering == 0:
        return raw
    buffered: Any
    if flags & os.O_RDWR:
        buffered = io.BufferedRandom(raw)
    else:
        buffered = io.BufferedWriter(raw) if flags & os.O_WRONLY else io.BufferedReader(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)


def _functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    """The functions of `os` that have a simulated side, by name; each calls the real one for what is not ours."""
    real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}

    def by_fd(name: str, simulated: Callable[..., Any]) -> Callable[..., Any]:
        genuine = real[name]

        @functools.wraps(genuine)
        def call(fd: Any, *arguments: Any) -> Any:
            if type(fd) is not int:
                fd = fd if isinstance(fd, int) or not hasattr(fd, "fileno") else fd.fileno()
            return simulated(fd, *arguments) if fd >= FIRST_FD else genuine(fd, *arguments)

        return call

    def by_path(name: str, simulated: Callable[..., Any]) -> Callable[..., Any]:
        genuine = real[name]

        @functools.wraps(genuine)
        def call(path: Any = ".", *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            ours = _ours(path)
            if ours is not None:
                return simulated(ours, *arguments, **options)
            if dir_fd is not None and dir_fd >= FIRST_FD:
                return simulated(_text(path), *arguments, dir_fd=dir_fd, **options)
            if dir_fd is not None:
                options["dir_fd"] = dir_fd
            return genuine(path, *arguments, **options)

        return call

    def by_two(name: str, simulated: Callable[..., Any]) -> Callable[..., Any]:
        genuine = real[name]

        @functools.wraps(genuine)
        def call(path: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **o: Any) -> Any:
            first = _ours(path) is not None or (src_dir_fd or 0) >= FIRST_FD
            second = _ours(new) is not None or (dst_dir_fd or 0) >= FIRST_FD
            if first != second:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path), None, str(new))
            if first:
                return simulated(_text(path), _text(new), src_dir_fd, dst_dir_fd)
            return genuine(path, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **o)

        return call

    def stat(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return machine.stat(path, dir_fd)

    def lstat(path: str, *, dir_fd: int | None = None) -> os.stat_result:
        return machine.stat(path, dir_fd)

    def stat_any(path: Any, **options: Any) -> Any:
        if isinstance(path, int):
            return machine.fstat(path) if path >= FIRST_FD else real["stat"](path, **options)
        return stat_path(path, **options)

    stat_path = by_path("stat", stat)

    def access(path: str, mode: int, *, dir_fd: int | None = None, **_: Any) -> bool:
        return machine.access(path, dir_fd)

    def any_fd(name: str, simulated: Callable[[Any], Any]) -> Callable[..., Any]:
        genuine = real[name]

        @functools.wraps(genuine)
        def call(path: Any = ".") -> Any:
            ours = path if isinstance(path, int) and path >= FIRST_FD else _ours(path)
            return genuine(path) if ours is None else simulated(ours)

        return call

    def truncate(path: str, size: int) -> None:
        fd = machine.open(path, os.O_WRONLY)
        try:
            machine.truncate(fd, size)
        finally:
            machine.close(fd)

    def utime(path: str, times: Any = None, *, ns: Any = None, dir_fd: int | None = None, **_: Any) -> None:
        machine.utime(path, ns[1] if ns else round(times[1] * 1e9) if times else machine.clock.time_ns(), dir_fd)

    def read_into(fd: int, buffers: Iterable[Any], offset: int | None = None, _flags: int = 0) -> int:
        count = 0
        for buffer in buffers:
            view = memoryview(buffer)
            data = machine.read(fd, len(view)) if offset is None else machine.pread(fd, len(view), offset + count)
            view[: len(data)] = data
            count += len(data)
        return count

    def copy(source: int, target: int, count: int, source_at: int | None, target_at: int | None) -> int:
        """Either side may be real."""
        data = os.read(source, count) if source_at is None else os.pread(source, count, source_at)
        return os.write(target, data) if target_at is None else os.pwrite(target, data, target_at)

    def copy_file_range(src: int, dst: int, count: int, offset_src: Any = None, offset_dst: Any = None) -> int:
        if src < FIRST_FD and dst < FIRST_FD:
            return int(real["copy_file_range"](src, dst, count, offset_src, offset_dst))
        return copy(src, dst, count, offset_src, offset_dst)

    def sendfile(out_fd: int, in_fd: int, offset: Any, count: int, *more: Any, **options: Any) -> int:
        if out_fd < FIRST_FD and in_fd < FIRST_FD:
            return int(real["sendfile"](out_fd, in_fd, offset, count, *more, **options))
        return copy(in_fd, out_fd, count, offset, None)

    def refuse(path: str, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    def no_link(path: str, *, dir_fd: int | None = None) -> str:
        machine.stat(path, dir_fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    def symlink(src: Any, dst: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> None:
        if _ours(dst) is not None or (dir_fd or 0) >= FIRST_FD:
            refuse(str(dst))
        real["symlink"](src, dst, *arguments, dir_fd=dir_fd, **options)

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        ours = _ours(path)
        if ours is not None:
            return machine.open(ours, flags, mode)
        if dir_fd is not None and dir_fd >= FIRST_FD:
            return machine.open(_text(path), flags, mode, dir_fd=dir_fd)
        return int(real["open"](path, flags, mode, dir_fd=dir_fd))

    def names(path: Any) -> list[str]:
        return [name for name, _ in machine.names(path)]

    def scan(path: Any) -> _Scan:
        return _Scan(_Entry(machine, path, name, inode) for name, inode in machine.names(path))

    def joined(buffers: Iterable[Any]) -> bytes:
        return b"".join(buffers)

    return {
        "open": open_,
        "close": by_fd("close", machine.close),
        "read": by_fd("read", machine.read),
        "pread": by_fd("pread", machine.pread),
        "readv": by_fd("readv", read_into),
        "preadv": by_fd("preadv", read_into),
        "write": by_fd("write", lambda fd, data: machine.write(fd, bytes(data))),
        "pwrite": by_fd("pwrite", lambda fd, data, at: machine.pwrite(fd, bytes(data), at)),
        "writev": by_fd("writev", lambda fd, data: machine.write(fd, joined(data))),
        "pwritev": by_fd("pwritev", lambda fd, data, at, *_: machine.pwrite(fd, joined(data), at)),
        "lseek": by_fd("lseek", machine.seek),
        "fstat": by_fd("fstat", machine.fstat),
        "fsync": by_fd("fsync", machine.fsync),
        "fdatasync": by_fd("fdatasync", lambda fd: machine.fsync(fd, "fdatasync")),
        "ftruncate": by_fd("ftruncate", machine.truncate),
        "posix_fadvise": by_fd("posix_fadvise", lambda fd, *_: machine.advise(fd)),
        "posix_fallocate": by_fd("posix_fallocate", machine.allocate),
        "stat": stat_any,
        "lstat": by_path("lstat", lstat),
        "access": by_path("access", access),
        "truncate": by_path("truncate", truncate),
        "mkdir": by_path("mkdir", machine.mkdir),
        "rmdir": by_path("rmdir", machine.rmdir),
        "unlink": by_path("unlink", machine.unlink),
        "remove": by_path("remove", machine.unlink),
        "readlink": by_path("readlink", no_link),
        "chmod": by_path("chmod", lambda path, mode, **_: None),
        "utime": by_path("utime", utime),
        "symlink": symlink,
        "rename": by_two("rename", machine.rename),
        "replace": by_two("replace", machine.rename),
        "link": by_two("link", machine.link),
        "listdir": any_fd("listdir", names),
        "scandir": any_fd("scandir", scan),
        "statvfs": any_fd("statvfs", machine.statvfs),
        "copy_file_range": copy_file_range,
        "sendfile": sendfile,
    }


def _renameat2(machine: Machine) -> Callable[..., int] | None:
    """The system call as `storage_node.directories.atomic` makes it: 0, or -1 with errno set."""
    genuine = atomic._renameat2()

    def call(from_fd: int, source: bytes, to_fd: int, target: bytes, flags: int) -> int:
        path, new = os.fsdecode(source), os.fsdecode(target)
        if _ours(path) is None and _ours(new) is None:
            return -1 if genuine is None else genuine(from_fd, source, to_fd, target, flags)
        try:
            machine.rename(path, new, replace=not flags & 1)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1
        return 0

    return call


def _timed(machine: Machine, name: str) -> Callable[..., Any]:
    """A function of `time` by the machine's clock, for this thread. What other tests have left running in threads of
    their own lives by the real one, and would make the simulated one go on.
    """
    simulated, genuine, here = getattr(machine.clock, name), getattr(real_time, name), threading.get_ident()

    @functools.wraps(genuine)
    def call(*arguments: Any) -> Any:
        return simulated(*arguments) if threading.get_ident() == here else genuine(*arguments)

    return call


@contextlib.contextmanager
def simulated(machine: Machine, *, time: bool = True) -> Iterator[Machine]:
    """Within the block the machine's disks are at `/sim/<name>`, and (`time`) its clock is the clock."""
    genuine_open, genuine_flock = io.open, fcntl.flock

    def open_file(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        ours = _ours(file)
        if ours is None:
            return genuine_open(file, mode, buffering, *more, **options)
        named = dict(zip(("encoding", "errors", "newline"), more, strict=False)) | options
        return _open_file(
            machine, ours, mode, buffering, named.get("encoding"), named.get("errors"), named.get("newline")
        )

    def flock(fd: Any, operation: int) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if number < FIRST_FD:
            genuine_flock(fd, operation)
        else:
            machine.lock(number, bool(operation & fcntl.LOCK_EX), bool(operation & fcntl.LOCK_UN))

    call = _renameat2(machine)
    functions = _functions(machine)
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(os, name, function))
        stack.enter_context(mock.patch.object(io, "open", open_file))
        stack.enter_context(mock.patch.object(builtins, "open", open_file))
        stack.enter_context(mock.patch.object(fcntl, "flock", flock))
        stack.enter_context(mock.patch.object(atomic, "_renameat2", lambda: call))
        if time:
            for name in ("monotonic", "monotonic_ns", "time", "time_ns", "sleep"):
                stack.enter_context(mock.patch.object(real_time, name, _timed(machine, name)))
        # What `shutil` found out when it was imported holds for the simulated functions as well.
        for names in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            added = {functions[f.__name__] for f in names if f.__name__ in functions} - names
            names |= added
            stack.callback(names.difference_update, added)
        yield machine
