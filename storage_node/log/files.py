"""The few file operations that a log is made of, all relative to the log's directory.

A log's directory is renamed while it is in use (a move does this twice), so every name is looked up through a
descriptor of the directory, which follows the rename; one that was closed to save descriptors is found again by its
inode. Descriptors close when the last one who holds them lets go, never under a reader's hands.

A full disk found at a write is `NoRoom`; the same errno from a flush stays a plain OSError, since it means lost bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from typing import Protocol

from storage_node.directories.atomic import full_is_no_room
from storage_node.log.batch import Buffer
from storage_node.log.open_files import Handle, open_files

__all__ = ["Handle", "Home", "Region", "Source", "no_descriptor", "read_exact", "write_all"]

_TRIES = 4
"""How often a directory is looked for that is renamed while it is looked for."""


class Source(Protocol):
    """A file that is opened again when it is needed, if need be."""

    @property
    def file(self) -> Handle:
        """The open file."""


class Region:
    """Bytes of a file that nobody changes any more: a part of what a log has published.

    It keeps the file open, so that they stay what they are when the file is renamed, moved or deleted; but not where
    too many are open, and then a file that was deleted meanwhile is `LogClosed`.
    """

    __slots__ = ("_handle", "_source", "count", "position")

    def __init__(self, source: Source, position: int, count: int, handle: Handle | None = None) -> None:
        """`handle`: the open file, where it is to stay open."""
        self._source = source
        self._handle = handle
        self.position = position
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` of the bytes from `start` on; fewer only if the file ends before them. Raises OSError."""
        file = self._handle or self._source.file
        return read_exact(file.fd, min(count, self.count - start), self.position + start)


class Home:
    """A log's directory; raises OSError, which callers wrap.

    It is opened when it is needed and known by its inode: whoever renames it need not tell, as long as it stays in the
    same parent. `path` is where it is looked for first.
    """

    dirty = False

    def __init__(self, path: str) -> None:
        self.loading = threading.Lock()
        """Held while a segment's indexes are read: there must never be two, one appended to and one looked at."""
        self.path = path
        self.opened = open_files(os.path.dirname(path))  # noqa: PTH120  # as text, once for each log
        handle = _open_folder(path)
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
        """Open the directory that was opened first, by whichever name it has now."""
        for _ in range(_TRIES):
            try:
                handle = _open_folder(self.path)
                if _identity(handle) == self._identity:
                    return handle
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
            # It has another name, and who gave it that has not said so yet.
            parent = os.path.dirname(self.path)  # noqa: PTH120
            with os.scandir(parent) as entries:
                found = next((entry.name for entry in entries if entry.inode() == self._identity[1]), None)
            if found is None:
                break
            self.path = os.path.join(parent, found)  # noqa: PTH118
        raise FileNotFoundError(errno.ENOENT, "the folder of an open log is not there any more", self.path)

    def open(self, name: str, flags: int = os.O_RDWR) -> Handle:
        """Open a file in the directory; a symlink is not followed: ELOOP, which says nothing about the disk."""
        folder = self._open()
        try:
            with full_is_no_room():
                return Handle(os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=folder.fd))
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
            raise _symlink(name) from exc

    def look(self, name: str) -> os.stat_result:
        """What a file is, without opening it; a symlink is ELOOP as in `open`."""
        folder = self._open()
        found = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise _symlink(name)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return found

    def names(self) -> list[str]:
        """The names of all files in the directory."""
        folder = self._open()
        return os.listdir(folder.fd)  # noqa: PTH208  # by descriptor

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        folder = self._open()
        try:
            os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, new_name: str) -> bool:
        """Rename a file, replacing what has the new name; False when it is not there."""
        folder = self._open()
        try:
            with full_is_no_room():
                os.rename(name, new_name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        folder = self._open()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.fd)

    def read(self, name: str) -> bytes | None:
        """The whole content of a file; None when it is not there."""
        try:
            handle = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        return read_exact(handle.fd, os.fstat(handle.fd).st_size, 0)

    def write(self, name: str, data: bytes, *, sync: bool) -> None:
        """Replace a file's content by way of `<name>.tmp`, flushed first if `sync`; the directory is not flushed."""
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
        """Flush the directory itself: names of files made, renamed or removed before."""
        folder = self._open()
        os.fsync(folder.fd)


def _open_folder(path: str) -> Handle:
    return Handle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW))


def _identity(handle: Handle) -> tuple[int, int]:
    found = os.fstat(handle.fd)
    return found.st_dev, found.st_ino


def _symlink(name: str) -> OSError:
    message = f"{name} is a symbolic link, which is not followed; put the file in its place"
    return OSError(errno.ELOOP, message, name)


def no_descriptor(error: OSError) -> bool:
    """Whether a file could not even be opened, for want of a descriptor: nothing was done to it."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def write_all(fd: int, data: Buffer, position: int) -> None:
    """Write all of `data` at `position`: one call, unless the system takes less."""
    with full_is_no_room():
        written = os.pwritev(fd, [data], position)
        while written < len(data):
            written += os.pwritev(fd, [memoryview(data)[written:]], position + written)


def read_exact(fd: int, count: int, position: int) -> bytes:
    """Up to `count` bytes at `position`; fewer only at the end of the file."""
    data = os.pread(fd, count, position)
    if len(data) == count or not data:
        return data
    parts = [data]
    got = len(data)
    while got < count and (more := os.pread(fd, count - got, position + got)):
        parts.append(more)
        got += len(more)
    return b"".join(parts)
