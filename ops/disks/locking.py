"""Whether a broker runs on a log directory, and the locks that keep one from starting.

Apache Kafka locks `.lock` with fcntl (Java's FileChannel.tryLock), a storage node with flock; neither sees the other's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from storage_node.directories.lock import FILE

__all__ = ["DirectoryBusy", "held", "holder"]

_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits: type, whence, start, length, pid


class DirectoryBusy(Exception):
    """A broker or node runs on a log directory; the message has the directory and, if known, the process."""


def holder(directory: str) -> str:
    """Return which process holds a directory's lock, as text; "" if none does. Changes nothing. Raises OSError."""
    try:
        fd = os.open(Path(directory) / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    try:
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, pid = _FLOCK.unpack(asked)
        if kind != fcntl.F_UNLCK:
            return f"process {pid}"
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            return f"process {text}" if text.isdecimal() else "another process"
        return ""
    finally:
        os.close(fd)


@contextlib.contextmanager
def held(directories: Iterable[str]) -> Iterator[None]:
    """Hold both kinds of lock on all directories while the block runs; `.lock` stays, as after Apache Kafka.

    A directory that cannot be written, on a disk that is failing, is only checked. Raises DirectoryBusy, OSError.
    """
    with contextlib.ExitStack() as locks:
        for directory in directories:
            if by := holder(directory):
                raise DirectoryBusy(f"log directory {directory} is in use by {by}; stop that broker first")
            try:
                fd = os.open(Path(directory) / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError:
                continue
            locks.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DirectoryBusy(f"log directory {directory} is in use by another process") from error
        yield
