"""Flushing a log: which of its bytes are on disk, and what follows from a flush that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import LogFlushError
from storage_node.failpoints import failpoint
from storage_node.log.context import LogContext
from storage_node.log.files import no_descriptor
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.segment import Segment
from storage_node.log.segments import LogSegments

_T = TypeVar("_T")

FLUSH_AFTER_FILES = failpoints.register("log.flush_after_files")
FLUSH_AFTER_NAMES = failpoints.register("log.flush_after_names")


class Flusher:
    """The flushes of one log; they may run beside appends. What changes flushed files holds `lock`.

    After a failed fsync the kernel may have dropped the dirty pages, and a second fsync would report success although
    the data is lost. So no flush is tried again after a failed one: each raises `LogFlushError`.
    """

    __slots__ = ("_context", "_failed", "_flushed_ms", "_producers", "_segments", "lock", "recovery_point")

    def __init__(self, context: LogContext, segments: LogSegments, producers: ProducerStateManager) -> None:
        self._context = context
        self._segments = segments
        self._producers = producers
        self.lock = threading.Lock()
        self.recovery_point = 0
        """The offset before which everything is on disk."""
        self._flushed_ms = 0
        self._failed = False

    def begin(self, recovery_point: int, now_ms: int) -> None:
        """Begin with what a start found to be on disk; `flush.ms` counts from now on."""
        self.recovery_point = recovery_point
        self._flushed_ms = now_ms

    def flush(self) -> None:
        """See `Log.flush`."""
        with self.lock:
            self._context.refuse_closed()
            # The end offset is read before the segments, so that the segments hold everything before it.
            end = self._segments.published[0]
            self._flush(self._segments.all, end)

    def flush_records(self) -> None:
        """See `Log.flush_records`."""
        with self.lock:
            self._context.refuse_closed()
            self.guarded(lambda: [segment.flush(indexes=False) for segment in self._segments.all if segment.dirty])

    def flush_closed_segments(self) -> None:
        """See `Log.flush_closed_segments`."""
        with self.lock:
            if self._context.closed:
                return
            segments = self._segments.all
            if self.recovery_point < segments[-1].base_offset:
                self._flush(segments[:-1], min(segments[-1].base_offset, self._segments.published[0]))

    def flush_if_due(self, now_ms: int) -> bool:
        """See `Log.flush_if_due`."""
        before, end = self.recovery_point, self._segments.published[0]
        if before < end and now_ms - self._flushed_ms >= self._context.config.flush_ms:
            with self.lock:
                if not self._context.closed:
                    self._flush(self._segments.all, end)
            self._flushed_ms = now_ms
        else:
            self.flush_closed_segments()
        return self.recovery_point > before

    def settle(self) -> None:
        """Flush everything and write a producer snapshot; the caller holds `lock`.

        Raises `LogFlushError`, `NotEnoughSpace`.
        """
        context, segments = self._context, self._segments
        end = segments.published[0]
        segments.active.seal()
        self._flush(segments.all, end)
        try:
            self._producers.flush_snapshot(end)
        except OSError as exc:
            if not isinstance(exc, NoRoom):
                self._note_failure(exc)
            raise context.wrapped(LogFlushError, exc, "writing the producers of", "for the producers of") from exc

    def _flush(self, segments: Sequence[Segment], end: int) -> None:
        # Every segment is flushed, even after one whose indexes found the disk full.
        complete = self.guarded(lambda: [segment.flush() for segment in segments if segment.dirty])
        if all(complete):
            self.recovery_point = max(self.recovery_point, end)

    def guarded(self, flush: Callable[[], _T]) -> _T:
        """Flush files by `flush`, then the directory if names are new; the caller holds `lock`.

        Raises `LogFlushError`, and after a failure on every later call.
        """
        context = self._context
        if self._failed:
            raise LogFlushError(context.directory, f"flushing the log of {context.tp} (a flush failed before)")
        try:
            done = flush()
            if context.names_dirty:
                context.names_dirty = False
                failpoint(FLUSH_AFTER_FILES)
                context.home.sync()
                failpoint(FLUSH_AFTER_NAMES)
        except OSError as exc:
            context.names_dirty = True
            self._note_failure(exc)
            raise context.wrapped(LogFlushError, exc, "flushing the log of") from exc
        return done

    def _note_failure(self, exc: OSError) -> None:
        # Without a descriptor no fsync was called: dirty data stays dirty, and the next flush writes it.
        self._failed = not no_descriptor(exc)
