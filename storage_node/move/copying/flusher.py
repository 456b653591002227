"""Flush a copy while it is being written, in a thread of its own: every 16 MiB, on a fast disk every 32.

Without paced flushes the system writes back in bursts that stall every other flush on the disk for hundreds of
milliseconds, and the seal waits for a flush of the whole copy. After a flush the copied pages are dropped, so that a
copy of cold data does not evict what consumers read.
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
from storage_node.move.copying.pauses import Pauses

INTERVAL = 16 << 20
LEAST = 2 * INTERVAL
"""Bytes that may wait for a flush while another is in progress, on any disk, so that a slightly late flush does not
delay a throttled copy.
"""
MOST = 96 << 20
"""Bytes that may wait for a flush while another is in progress, on a disk that flushes them in a `MOMENT`."""
MOMENT = 0.25

BEFORE_FLUSH = failpoints.register("copy.before_flush")


class PacedFlush:
    """The flushes of one copy, for one copier. A flush that failed is never retried."""

    def __init__(
        self,
        executor: Executor,
        directory: str,
        path: Path,
        measured: Callable[[int, float], None] = lambda *_: None,
        pauses: Pauses | None = None,
    ) -> None:
        """Create the flusher; it calls `measured` after each flush with its bytes and the seconds of writing and
        flushing.

        With `pauses` flushes pause during swaps.
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
        """Note `count` bytes written into `files` (names) in `seconds`; return the seconds of waiting for an earlier
        flush.

        Raises LogFlushError for a flush that failed.
        """
        self._dirty.update(files)
        for name in files:
            if name not in self._fds:
                # The file is opened before the bytes are flushed, so that this descriptor reports every later
                # write-back error.
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
        """Wait for the flush in progress; return the seconds. Raises LogFlushError."""
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
        """Whether the last flush has succeeded and none is in progress."""
        return self._under_way is None

    @property
    def unflushed(self) -> tuple[int, float]:
        """The bytes that no flush covers yet, and the seconds that writing them took."""
        return self._bytes, self._seconds

    def close(self) -> None:
        """Wait for the flush in progress and close the files.

        Raises LogFlushError, also for a copy that is stopped or has failed for another reason: a failed flush proves
        that the disk is bad.
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
    """Return the bytes that may be written during a flush, given that a flush of `count` bytes took `seconds`.

    They are what a flush takes in a `MOMENT`, so that neither a seal nor a cancel waits long for it.
    """
    return max(INTERVAL, min(MOST, int(count * MOMENT / max(seconds, 1e-3))))
