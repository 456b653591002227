"""Flushes a copy while it is being written: beside it, in a thread of its own, every 16 MiB, on a quick disk every 32.

Unpaced, the system writes back in bursts that stall every other flush on the disk for hundreds of milliseconds; and a
copy that was never flushed makes the seal wait for all of it. After a flush the copied pages are given back to the
system, so that copying cold data does not push out what consumers read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path

from storage_node import failpoints
from storage_node.directories.atomic import fsync_dir, io_errors
from storage_node.errors import LogFlushError
from storage_node.failpoints import failpoint
from storage_node.move.pauses import Pauses

INTERVAL = 16 << 20
LEAST = 2 * INTERVAL
"""Bytes that may wait for a flush while another is under way, on any disk: a throttled copy stands still for no flush
that is a little late."""
MOST = 96 << 20
"""Bytes that may wait for a flush while another is under way, on a disk that takes them in a moment."""
MOMENT = 0.25

BEFORE_FLUSH = failpoints.register("copy.before_flush")


class PacedFlush:
    """The flushes of one copy; used by one copier. A flush that failed is never tried again."""

    def __init__(
        self,
        executor: Executor,
        directory: str,
        path: Path,
        measured: Callable[[int, float], None] = lambda *_: None,
        pauses: Pauses | None = None,
    ) -> None:
        """`measured` is told of each flush: how many bytes, and the seconds that writing and flushing them took.

        With `pauses` flushes give way to swaps.
        """
        self._pauses = pauses
        self._executor = executor
        self._directory = directory
        self._path = path
        self._fds: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._under_way: Future[None] | None = None
        self._bytes = 0
        self._seconds = 0.0
        self._interval, self._most = INTERVAL, LEAST
        self._measured = measured

    def wrote(self, files: list[str], count: int, seconds: float = 0.0) -> float:
        """Note `count` bytes written into `files` (names) in `seconds`; answers the seconds this had to wait for an
        earlier flush.

        Raises LogFlushError for a flush that failed.
        """
        self._dirty.update(files)
        for name in files:
            if name not in self._fds:
                # Opened before the bytes are flushed, so that this descriptor sees every write-back error from now on.
                with (
                    io_errors(self._directory, f"opening {self._path.name}/{name}"),
                    contextlib.suppress(FileNotFoundError),
                ):
                    self._fds[name] = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC)
        self._bytes += count
        self._seconds += seconds
        if self._bytes < self._interval or (self._bytes < self._most and self._flushing):
            return 0.0
        waited = self.drain()
        self._start(files[-1] if files else "")
        return waited

    def drain(self) -> float:
        """Wait for the flush under way; answers the seconds. Raises LogFlushError."""
        if self._under_way is None:
            return 0.0
        began = time.monotonic()
        under_way, self._under_way = self._under_way, None
        under_way.result()
        return time.monotonic() - began

    @property
    def _flushing(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    @property
    def flushed(self) -> bool:
        """Whether a flush has just ended well and none is under way."""
        return self._under_way is None

    @property
    def unflushed(self) -> tuple[int, float]:
        """The bytes that no flush has begun with yet, and the seconds that writing them took."""
        return self._bytes, self._seconds

    def close(self) -> None:
        """Wait for the flush under way and let go of the files. Raises LogFlushError: also of a copy that is stopped,
        or failed for another reason, a flush that failed says that the disk is bad.
        """
        try:
            self.drain()
        finally:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _start(self, active: str) -> None:
        fds = [self._fds[name] for name in self._dirty if name in self._fds]
        done = [name for name in self._fds if name != active]
        closing = [self._fds.pop(name) for name in done]
        self._dirty.clear()
        count, self._bytes = self._bytes, 0
        seconds, self._seconds = self._seconds, 0.0
        self._under_way = self._executor.submit(self._flush_in_turn, fds, closing, count, seconds)

    def _flush_in_turn(self, fds: list[int], closing: list[int], count: int, seconds: float) -> None:
        if self._pauses is None:
            self._flush(fds, closing, count, seconds)
            return
        self._pauses.give_way()
        with self._pauses.working():
            self._flush(fds, closing, count, seconds)

    def _flush(self, fds: list[int], closing: list[int], count: int, seconds: float) -> None:
        began = time.monotonic()
        try:
            failpoint(BEFORE_FLUSH)
            for fd in fds:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            fsync_dir(self._path)
            took = time.monotonic() - began
            most = waiting(count, took)
            self._interval, self._most = min(2 * INTERVAL, most), max(LEAST, most)
            self._measured(count, seconds + took)
        except OSError as error:
            raise LogFlushError(self._directory, f"flushing the copy {self._path.name}") from error
        finally:
            for fd in closing:
                os.close(fd)


def waiting(count: int, seconds: float) -> int:
    """Bytes that may be written while a flush is under way, when one of `count` bytes took `seconds`: what a flush
    takes in a moment, so that neither a seal nor a cancel waits long for it.
    """
    return max(INTERVAL, min(MOST, int(count * MOMENT / max(seconds, 1e-3))))
