"""The file operations of a log, all relative to the log's directory.

A move renames a log's directory twice while the log is in use, so every name is resolved through a descriptor of the
directory, which stays valid over a rename; a directory whose descriptor was closed to save descriptors is found by
its inode. A descriptor is closed when its last holder releases it, never while a reader uses it.

A write that finds the disk full raises `NoRoom`; the same errno from a flush stays a plain OSError, because it means
lost data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from typing import Protocol

from storage_node.directories.atomic import full_is_no_room
from storage_node.directories.signs import repeats
from storage_node.log.batches.batch import Buffer
from storage_node.log.open_files import Handle, OpenFiles, open_files

__all__ = ["Handle", "Home", "Region", "Source", "no_descriptor", "pread", "read_exact", "write_all"]

_TRIES = 4
"""Attempts to open a directory that is renamed concurrently."""


class Source(Protocol):
    """A file that is reopened on demand."""

    @property
    def file(self) -> Handle:
        """The open file."""


class Region:
    """A range of a file's bytes that no longer change: a part of what a log has published.

    It holds the file open, so that the bytes stay readable after a rename, a move or a deletion. While too many files
    are open it does not; reading a file that was deleted meanwhile then raises `LogClosed`.
    """

    __slots__ = ("_handle", "_source", "count", "position")

    def __init__(self, source: Source, position: int, count: int, handle: Handle | None = None) -> None:
        """`handle`: the open file, if it is to stay open."""
        self._source = source
        self._handle = handle
        self.position = position
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int) -> bytes:
        """Return up to `count` bytes from `start` on; fewer only at the end of the file. Raises OSError."""
        file = self._handle or self._source.file
        return read_exact(file.fd, min(count, self.count - start), self.position + start)


class Home:
    """A log's directory; raises OSError, which callers wrap.

    It is opened on demand and identified by its inode: code that renames it need not notify this object, as long as
    the directory stays in the same parent. `path` is the first path tried.
    """

    dirty = False

    def __init__(self, path: str) -> None:
        self.loading = threading.Lock()
        """Held while a segment's indexes are loaded, so that a writer and a reader never use two copies of them."""
        self.path = path
        self.opened = open_files(os.path.dirname(path))  # noqa: PTH120  # as text, once for each log
        handle = _open_folder(path, self.opened)
        self._identity = _identity(handle)
        self._folder: Handle | None = handle
        self.opened.folders.keep(self, handle)

    def kept_open(self) -> Handle | None:
        return self._folder

    def let_go(self, handle: Handle) -> None:
        if self._folder is handle:
            self._folder = None

    def _open(self) -> Handle:
        handle = self._folder
        if handle is None:
            handle = self._folder = self._find()
            self.opened.folders.keep(self, handle)
        else:
            handle.used = True
        return handle

    def _find(self) -> Handle:
        """Open the directory that was opened first, under its present name."""
        for _ in range(_TRIES):
            try:
                handle = _open_folder(self.path, self.opened)
                if _identity(handle) == self._identity:
                    return handle
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
            # The directory was renamed, and `relocated` was not called yet.
            parent = os.path.dirname(self.path)  # noqa: PTH120
            with os.scandir(parent) as entries:
                found = next((entry.name for entry in entries if entry.inode() == self._identity[1]), None)
            if found is None:
                break
            self.path = os.path.join(parent, found)  # noqa: PTH118
        raise FileNotFoundError(errno.ENOENT, "the directory of an open log does not exist any more", self.path)

    def open(self, name: str, flags: int = os.O_RDWR) -> Handle:
        """Open a file in the directory. A symlink is not followed: ELOOP, which is not a failure of the disk."""
        folder = self._open()
        try:
            with full_is_no_room():
                found = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=folder.fd)
            return self.opened.handle(found)
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
            raise _symlink(name) from exc

    def look(self, name: str) -> os.stat_result:
        """Return a file's stat without opening it; a symlink is ELOOP as in `open`."""
        folder = self._open()
        found = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise _symlink(name)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return found

    def names(self) -> list[str]:
        """Return the names of all files in the directory."""
        folder = self._open()
        return os.listdir(folder.fd)  # noqa: PTH208  # by descriptor

    def exists(self, name: str) -> bool:
        """Return whether a file of that name exists."""
        folder = self._open()
        try:
            os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, new_name: str) -> bool:
        """Rename a file, replacing an existing one; return False if it does not exist."""
        folder = self._open()
        try:
            with full_is_no_room():
                os.rename(name, new_name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a file, if it exists."""
        folder = self._open()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.fd)

    def read(self, name: str) -> bytes | None:
        """Return the whole content of a file; None if it does not exist."""
        try:
            handle = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        return read_exact(handle.fd, os.fstat(handle.fd).st_size, 0)

    def write(self, name: str, data: bytes, *, sync: bool) -> None:
        """Replace a file's content through `<name>.tmp`, flushed first if `sync`; the directory is not flushed."""
        temporary = name + ".tmp"
        handle = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(handle.fd, data, 0)
            if sync:
                os.fsync(handle.fd)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        self.rename(temporary, name)

    def sync(self) -> None:
        """Flush the directory itself: the names of files created, renamed or removed before."""
        folder = self._open()
        os.fsync(folder.fd)


def _open_folder(path: str, opened: OpenFiles) -> Handle:
    return opened.handle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW))


def _identity(handle: Handle) -> tuple[int, int]:
    found = os.fstat(handle.fd)
    return found.st_dev, found.st_ino


def _symlink(name: str) -> OSError:
    message = f"{name} is a symbolic link, which is not followed; put the file in its place"
    return OSError(errno.ELOOP, message, name)


def no_descriptor(error: OSError) -> bool:
    """Return whether opening a file failed for lack of a descriptor: nothing was done to the file."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def write_all(fd: int, data: Buffer, position: int) -> None:
    """Write all of `data` at `position`, in one call unless the kernel writes less.

    After EIO it writes the same bytes to the same place once more (KIP-18, question 4): only a flush decides whether
    they are on disk, and a flush is never repeated.
    """
    with full_is_no_room():
        written = _pwrite(fd, data, position)
        while written < len(data):
            written += _pwrite(fd, memoryview(data)[written:], position + written)


def read_exact(fd: int, count: int, position: int) -> bytes:
    """Return up to `count` bytes at `position`; fewer only at the end of the file. After EIO it reads once more."""
    data = pread(fd, count, position)
    if len(data) == count or not data:
        return data
    parts = [data]
    got = len(data)
    while got < count and (more := pread(fd, count - got, position + got)):
        parts.append(more)
        got += len(more)
    return b"".join(parts)


def pread(fd: int, count: int, position: int) -> bytes:
    """Read as `os.pread` does, once more after EIO: batches have a CRC, so that wrong bytes are noticed."""
    try:
        return os.pread(fd, count, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        repeats.note(fd)
        return os.pread(fd, count, position)


def _pwrite(fd: int, data: Buffer, position: int) -> int:
    try:
        return os.pwritev(fd, [data], position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        repeats.note(fd)
        return os.pwritev(fd, [data], position)
