"""`.lock`: one process per log directory, held by flock for the life of the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from storage_node.directories.errors import DirectoryInUse

__all__ = ["FILE", "DirectoryLock"]

FILE: Final = ".lock"


class DirectoryLock:
    """The lock of a log directory; the kernel releases it when the process dies."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = str(directory)
        self._path = Path(directory) / FILE
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock and write the process id to the file. Raises DirectoryInUse, OSError."""
        while self._fd is None:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder removes the file: the lock counts only if the name still leads to this file.
                if self._is_current(fd):
                    # The process id only serves diagnostics, so a full disk must not prevent the lock.
                    with contextlib.suppress(OSError):
                        os.ftruncate(fd, 0)
                        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                    self._fd, fd = fd, -1
            except BlockingIOError:
                raise DirectoryInUse(self.directory, _pid(fd)) from None
            finally:
                if fd >= 0:
                    os.close(fd)

    def release(self) -> None:
        """Remove the file and release the lock, if it is held."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with contextlib.suppress(OSError):
            if self._is_current(fd):
                self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)

    def _is_current(self, fd: int) -> bool:
        ours = os.fstat(fd)
        try:
            named = self._path.lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(named.st_mode) and (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _pid(fd: int) -> int | None:
    try:
        text = os.pread(fd, 32, 0).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None
