"""The system calls of a simulated machine: on descriptors, on bytes, on names. Errors are those of Linux.

`Machine` adds the machine's own life to them.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.simulation.clock import SimulatedClock
from tests.simulation.disks import BLOCK_BYTES, INODE_BYTES, Crash, Disk, Inode, blocks

__all__ = ["FIRST_FD", "ROOT", "Calls", "Step"]

ROOT: Final = "/sim"
FIRST_FD: Final = 1 << 30
_NAME_MAX: Final = 255
_ACCESS: Final = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


class Step(NamedTuple):
    """An operation that is about to change a disk or to flush: disk, kind (see `disks.WRITES`), path, number."""

    disk: str
    op: str
    path: str
    number: int


class Opened:
    """What a descriptor stands for."""

    __slots__ = ("disk", "flags", "inode", "path", "position")

    def __init__(self, disk: Disk, inode: Inode, path: str, flags: int) -> None:
        self.disk = disk
        self.inode = inode
        self.path = path
        self.flags = flags
        self.position = 0


Place = tuple[Disk, Inode, str, str]
"""Disk, folder, name in it ("" for the disk's own folder), path for people."""


class Calls:
    """See the module."""

    # One for all machines: what is left of an earlier one's process may be collected, and closed, at any time.
    _next_fd = itertools.count(FIRST_FD)

    def __init__(self, *names: str, capacity: int | None = None, names_follow: bool = True) -> None:
        self.disks = {name: Disk(name, capacity=capacity, names_follow=names_follow) for name in names}
        self.clock = SimulatedClock()
        self.before: Callable[[Step], None] | None = None
        self.steps = 0
        self.crashed = False
        self._fds: dict[int, Opened] = {}
        self._alive_from = next(self._next_fd)
        self._locks: dict[tuple[int, int], int] = {}
        self._crash_at: int | None = None
        for disk in self.disks.values():
            disk.closed = self._close_all_on

    def _close_all_on(self, disk: Disk) -> None:
        self._fds = {fd: opened for fd, opened in self._fds.items() if opened.disk is not disk}

    # Every operation

    def _look(self, disk: Disk, op: str, path: str, inode: Inode | None = None) -> None:
        if self.crashed:
            raise Crash
        if disk.faults:
            disk.check(op, path, inode)

    def _step(self, disk: Disk, op: str, path: str, inode: Inode | None = None) -> None:
        if self.crashed:
            raise Crash
        self.steps += 1
        if self.steps == self._crash_at:
            self.crashed = True
            raise Crash
        if self.before is not None:
            try:
                self.before(Step(disk.name, op, path, self.steps))
            except Crash:
                self.crashed = True
                raise
        if disk.faults:
            disk.check(op, path, inode)

    def _now_ns(self) -> int:
        return self.clock.time_ns()

    # Paths

    def locate(self, path: str, dir_fd: int | None = None) -> Place:
        """Where a path leads; raises ENOENT, ENOTDIR, ENAMETOOLONG."""
        if dir_fd is not None and not path.startswith("/"):
            opened = self.opened(dir_fd)
            disk, folder, parts = opened.disk, opened.inode, path.split("/")
            shown = f"{opened.path}/{path}"
            if folder.links <= 0:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
        else:
            if "/." in path:
                path = os.path.normpath(path)
            parts = path[len(ROOT) + 1 :].split("/")
            found = self.disks.get(parts[0])
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            disk, folder, shown = found, found.state.root, path
            parts = parts[1:]
        if self.crashed:
            raise Crash
        parts = [part for part in parts if part and part != "."]
        if not parts:
            return disk, folder, "", shown
        for part in parts[:-1]:
            child = folder.entries.get(part)
            if child is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
            if not child.is_dir:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
            folder = child
        if not folder.is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
        return disk, folder, parts[-1], shown

    def _find(self, place: Place) -> Inode | None:
        """What a path leads to, or None; raises ENAMETOOLONG."""
        _disk, folder, name, shown = place
        if not name:
            return folder
        inode = folder.entries.get(name)
        if inode is None and len(os.fsencode(name)) > _NAME_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), shown)
        return inode

    def _inode(self, place: Place) -> Inode:
        """What a path leads to; raises ENOENT, ENAMETOOLONG."""
        inode = self._find(place)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place[3])
        return inode

    def opened(self, fd: int) -> Opened:
        """What a descriptor stands for; raises EBADF."""
        if self.crashed:
            raise Crash
        opened = self._fds.get(fd)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    # Opening and closing

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = disk, _folder, _name, shown = self.locate(path, dir_fd)
        inode = self._find(place)
        if inode is None:
            if not flags & os.O_CREAT:
                self._look(disk, "open", shown)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
            inode = self._create(place, is_dir=False)
        else:
            self._look(disk, "open", shown)
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), shown)
            if inode.is_dir and flags & (_ACCESS | os.O_CREAT):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
            if flags & os.O_DIRECTORY and not inode.is_dir:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
            if flags & os.O_TRUNC and not inode.is_dir and inode.content:
                self._resize(disk, inode, 0, shown)
        fd = next(self._next_fd)
        inode.opens += 1
        self._fds[fd] = Opened(disk, inode, shown, flags)
        return fd

    def close(self, fd: int) -> None:
        opened = self._fds.pop(fd, None)
        if opened is None:
            if fd >= self._alive_from:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return
        self._locks = {key: holder for key, holder in self._locks.items() if holder != fd}
        opened.inode.opens -= 1
        if not self.crashed:
            opened.disk.released(opened.inode)

    def _create(self, place: Place, *, is_dir: bool) -> Inode:
        disk, folder, name, shown = place
        self._step(disk, "mkdir" if is_dir else "create", shown)
        disk.take(INODE_BYTES, shown)
        inode = disk.new(is_dir, self._now_ns())
        inode.parent = folder if is_dir else None
        disk.log((folder, name, inode))
        return inode

    # Bytes

    def read(self, fd: int, count: int) -> bytes:
        opened = self.opened(fd)
        data = self._read(opened, count, opened.position)
        opened.position += len(data)
        return data

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return self._read(self.opened(fd), count, offset)

    def _read(self, opened: Opened, count: int, offset: int) -> bytes:
        if opened.inode.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if opened.flags & _ACCESS == os.O_WRONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset < 0 or count < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._look(opened.disk, "read", opened.path)
        return bytes(opened.inode.content[offset : offset + count])

    def write(self, fd: int, data: bytes) -> int:
        opened = self.opened(fd)
        position = len(opened.inode.content) if opened.flags & os.O_APPEND else opened.position
        written = self._write(opened, data, position)
        opened.position = position + written
        return written

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        opened = self.opened(fd)
        return self._write(opened, data, len(opened.inode.content) if opened.flags & os.O_APPEND else offset)

    def _write(self, opened: Opened, data: bytes, offset: int) -> int:
        if opened.flags & _ACCESS == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        disk, inode = opened.disk, opened.inode
        self._step(disk, "write", opened.path, inode)
        if not data:
            return 0
        size = len(inode.content)
        if disk.capacity is not None and offset + len(data) > blocks(size) + disk.free:
            fits = blocks(size) + disk.free // BLOCK_BYTES * BLOCK_BYTES - offset
            if fits <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[:fits]
        inode.change(offset, data)
        inode.mtime_ns = self._now_ns()
        disk.used += blocks(len(inode.content)) - blocks(size)
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        opened = self.opened(fd)
        if opened.flags & _ACCESS == os.O_RDONLY or opened.inode.is_dir or size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._resize(opened.disk, opened.inode, size, opened.path)

    def _resize(self, disk: Disk, inode: Inode, size: int, path: str) -> None:
        self._step(disk, "truncate", path, inode)
        before = len(inode.content)
        if size != before:
            inode.change(size, None)
            disk.used += blocks(size) - blocks(before)
        inode.mtime_ns = self._now_ns()

    def allocate(self, fd: int, offset: int, length: int) -> None:
        opened = self.opened(fd)
        size = len(opened.inode.content)
        self._step(opened.disk, "allocate", opened.path, opened.inode)
        if offset + length > size:
            opened.disk.take(blocks(offset + length) - blocks(size), opened.path)
            opened.inode.change(offset + length, None)

    def seek(self, fd: int, offset: int, whence: int) -> int:
        opened = self.opened(fd)
        base = {os.SEEK_SET: 0, os.SEEK_CUR: opened.position, os.SEEK_END: len(opened.inode.content)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        opened.position = base + offset
        return opened.position

    def fsync(self, fd: int, op: str = "fsync") -> None:
        opened = self.opened(fd)
        self._step(opened.disk, "fsync_dir" if opened.inode.is_dir else op, opened.path, opened.inode)
        opened.disk.flush(opened.inode)

    def advise(self, fd: int) -> None:
        self.opened(fd)

    def lock(self, fd: int, exclusive: bool, release: bool) -> None:
        opened = self.opened(fd)
        key = (opened.disk.state.device, opened.inode.number)
        if release:
            if self._locks.get(key) == fd:
                del self._locks[key]
            return
        self._look(opened.disk, "lock", opened.path)
        if self._locks.setdefault(key, fd) != fd and exclusive:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))

    # Names

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self.locate(path, dir_fd)
        if self._find(place) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place[3])
        self._create(place, is_dir=True)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        place = disk, folder, name, shown = self.locate(path, dir_fd)
        inode = self._inode(place)
        if inode.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
        self._step(disk, "unlink", shown)
        disk.log((folder, name, None))
        inode.links -= 1
        disk.released(inode)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        place = disk, folder, name, shown = self.locate(path, dir_fd)
        inode = self._inode(place)
        if not inode.is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
        if not name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), shown)
        if inode.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), shown)
        self._step(disk, "rmdir", shown)
        disk.log((folder, name, None))
        inode.links = 0
        disk.released(inode)

    def rename(
        self, path: str, new: str, dir_fd: int | None = None, new_dir_fd: int | None = None, *, replace: bool = True
    ) -> None:
        source, target = self.locate(path, dir_fd), self.locate(new, new_dir_fd)
        disk, folder, name, shown = source
        if target[0] is not disk:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), shown, None, target[3])
        inode = self._inode(source)
        there = self._find(target)
        if there is not None and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), shown, None, target[3])
        if not name or not target[2]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), shown, None, target[3])
        if there is inode:
            return
        if inode.is_dir:
            above: Inode | None = target[1]
            while above is not None:
                if above is inode:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), shown, None, target[3])
                above = above.parent
        if there is not None:
            if there.is_dir and not inode.is_dir:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown, None, target[3])
            if inode.is_dir and not there.is_dir:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown, None, target[3])
            if there.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), shown, None, target[3])
        self._step(disk, "rename", f"{shown} -> {target[3]}")
        disk.log((folder, name, None), (target[1], target[2], inode))
        if inode.is_dir:
            inode.parent = target[1]
        if there is not None:
            there.links = 0 if there.is_dir else there.links - 1
            disk.released(there)

    def link(self, path: str, new: str, dir_fd: int | None = None, new_dir_fd: int | None = None) -> None:
        source = self.locate(path, dir_fd)
        inode = self._inode(source)
        target = self.locate(new, new_dir_fd)
        if target[0] is not source[0]:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source[3], None, target[3])
        if inode.is_dir:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source[3], None, target[3])
        if self._find(target) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source[3], None, target[3])
        self._step(source[0], "link", target[3])
        source[0].log((target[1], target[2], inode))
        inode.links += 1

    def utime(self, path: str, ns: int, dir_fd: int | None = None) -> None:
        place = self.locate(path, dir_fd)
        inode = self._inode(place)
        self._step(place[0], "utime", place[3])
        inode.mtime_ns = ns

    # Looking

    def stat(self, path: str, dir_fd: int | None = None) -> os.stat_result:
        if path == ROOT:
            return _stat(Inode(1, True, 0, 0), 0)
        place = self.locate(path, dir_fd)
        self._look(place[0], "stat", place[3])
        return _stat(self._inode(place), place[0].state.device)

    def fstat(self, fd: int) -> os.stat_result:
        opened = self.opened(fd)
        self._look(opened.disk, "stat", opened.path)
        return _stat(opened.inode, opened.disk.state.device)

    def names(self, path: str | int) -> list[tuple[str, Inode]]:
        """Names and inodes in a folder, by path or descriptor."""
        if path == ROOT:
            return [(name, disk.state.root) for name, disk in self.disks.items()]
        if isinstance(path, int):
            opened = self.opened(path)
            disk, inode, shown = opened.disk, opened.inode, opened.path
        else:
            place = self.locate(path)
            disk, inode, shown = place[0], self._inode(place), place[3]
        if not inode.is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
        self._look(disk, "listdir", shown)
        return list(inode.entries.items())

    def statvfs(self, path: str | int) -> os.statvfs_result:
        if isinstance(path, int):
            disk, shown = self.opened(path).disk, self.opened(path).path
        else:
            disk, _folder, _name, shown = self.locate(path)
        self._look(disk, "statvfs", shown)
        total = disk.capacity if disk.capacity is not None else 1 << 40
        return os.statvfs_result((1, 1, total, disk.free, disk.free, 1 << 20, 1 << 20, 1 << 20, 0, _NAME_MAX))

    def access(self, path: str, dir_fd: int | None = None) -> bool:
        try:
            self.stat(path, dir_fd)
        except OSError:
            return False
        return True


def _stat(inode: Inode, device: int) -> os.stat_result:
    kind = stat.S_IFDIR | 0o755 if inode.is_dir else stat.S_IFREG | 0o644
    seconds = inode.mtime_ns // 1_000_000_000
    links = max(inode.links, 0)
    ids = (kind, inode.number, device, links, 0, 0, len(inode.content), seconds, seconds, seconds)
    return os.stat_result(ids, {"st_mtime_ns": inode.mtime_ns, "st_atime_ns": inode.mtime_ns})
