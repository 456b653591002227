"""The few file operations that a log is made of, all relative to an open directory.

A log's directory is renamed while it is in use (a move does this twice), so every name is looked up through a
descriptor of the directory, which follows the rename. Descriptors close when the last one who holds them lets go,
never under a reader's hands.

A full disk found at a write is `NoRoom`; the same errno from a flush stays a plain OSError, since it means lost bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading

from storage_node.directories.atomic import full_is_no_room
from storage_node.errors import ErrorCode, RequestRefused
from storage_node.log.batch import Buffer


class Handle:
    """An open descriptor that closes with its last reference."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        # What had to be durable was flushed before; there is nobody left to tell.
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Region:
    """Bytes of an open file that nobody changes any more: a part of what a log has published.

    It keeps the file open, so that they stay what they are when the file is renamed, moved or deleted.
    """

    __slots__ = ("count", "handle", "position")

    def __init__(self, handle: Handle, position: int, count: int) -> None:
        self.handle = handle
        self.position = position
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` of the bytes from `start` on; fewer only if the file ends before them. Raises OSError."""
        return read_exact(self.handle.fd, min(count, self.count - start), self.position + start)


class Home:
    """A log's directory, open; raises OSError, which callers wrap."""

    __slots__ = ("_handle", "loading")

    def __init__(self, path: str) -> None:
        self.loading = threading.Lock()
        """Held while a segment's indexes are read: there must never be two, one appended to and one looked at."""
        self._handle = Handle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW))

    def open(self, name: str, flags: int = os.O_RDWR) -> Handle:
        """Open a file in the directory; raises `RequestRefused` for a symlink, which says nothing about the disk."""
        try:
            with full_is_no_room():
                return Handle(os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=self._handle.fd))
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
            message = f"{name} is a symbolic link, which is not followed; put the file in its place"
            raise RequestRefused(message, ErrorCode.KAFKA_STORAGE_ERROR) from exc

    def names(self) -> list[str]:
        """The names of all files in the directory."""
        return os.listdir(self._handle.fd)  # noqa: PTH208  # by descriptor

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        try:
            os.stat(name, dir_fd=self._handle.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, new_name: str) -> bool:
        """Rename a file, replacing what has the new name; False when it is not there."""
        try:
            with full_is_no_room():
                os.rename(name, new_name, src_dir_fd=self._handle.fd, dst_dir_fd=self._handle.fd)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle.fd)

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
        os.fsync(self._handle.fd)


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
