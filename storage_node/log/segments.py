"""The segments of a log: which files there are, what readers see of them, and which await their deletion."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from storage_node import failpoints
from storage_node.failpoints import failpoint
from storage_node.log.context import LogContext
from storage_node.log.segment import Segment

REPLACE_AFTER_SEGMENT = failpoints.register("log.replace_after_segment")

Published = tuple[int, tuple[Segment, ...], int]
"""A log end offset, the segments, and the size of the last one, all of one moment."""


class LogSegments:
    """The segments of one log. Only the log's writer changes them; readers see `published`. Methods raise OSError."""

    __slots__ = ("_context", "_removed", "_sealed", "all", "log_start_offset", "published")

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self.all: tuple[Segment, ...] = ()
        """In order, the last one is active. The tuple is replaced, never changed."""
        self.published: Published = (0, (), 0)
        """What readers see; replaced in one assignment."""
        self.log_start_offset = 0
        """The first offset that may be read; it may lie inside a batch."""
        self._sealed: tuple[tuple[Segment, ...], int] = ((), 0)
        """A tuple of segments, and the size of all but its last one."""
        self._removed: deque[tuple[int, Segment]] = deque()
        """Removed segments, and when their files are deleted (ms since the epoch)."""

    @property
    def active(self) -> Segment:
        """The segment that appends write to."""
        return self.all[-1]

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.published[0]

    @property
    def size(self) -> int:
        """Bytes of all .log files; the sum of the sealed ones is cached until the next roll."""
        segments = self.all
        known, before = self._sealed
        if known is not segments:
            before = sum(segment.size for segment in segments[:-1])
            self._sealed = segments, before
        return before + segments[-1].size

    @property
    def await_deletion(self) -> bool:
        """Whether files of removed segments are left."""
        return bool(self._removed)

    # What readers see

    def publish(self, end: int) -> None:
        """Let readers see everything before the log end offset `end`."""
        self.published = (end, self.all, self.all[-1].size)

    def shorten(self, kept: tuple[Segment, ...], end: int, position: int) -> None:
        """Keep only these segments, of which readers see the last one up to `position`, before files change."""
        self.all = kept
        self.published = (end, kept, position)

    # Files

    def create(self, base_offset: int, now_ms: int) -> Segment:
        """Create the files of a segment, which is not among `all` yet."""
        context = self._context
        interval = context.config.index_interval_bytes
        segment = Segment(context.home, base_offset, interval, created_ms=now_ms, create=True)
        segment.dirty = True
        context.names_dirty = True
        return segment

    def add(self, base_offset: int, now_ms: int) -> Segment:
        """Create a segment behind the others, which becomes the active one."""
        segment = self.create(base_offset, now_ms)
        self.all = (*self.all, segment)
        return segment

    def replace_active(self, base_offset: int, now_ms: int) -> Segment:
        """Replace the empty active segment by an empty one at another base offset."""
        *before, old = self.all
        # A process killed between creation and removal leaves both segments, possibly with the same base offset.
        while before and not before[-1].size and before[-1].base_offset >= base_offset:
            left = before.pop()
            self.all = (*before, old)
            left.remove()
            left.purge()
        segment = self.create(base_offset, now_ms)
        self.all = (*before, segment)
        failpoint(REPLACE_AFTER_SEGMENT)
        if old.base_offset != base_offset:
            old.remove()
            old.purge()
        return segment

    def remove(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Rename the files of these segments to `.deleted`; `purge` deletes them after file.delete.delay.ms."""
        due = now_ms + self._context.config.file_delete_delay_ms
        for segment in segments:
            segment.remove()
            self._removed.append((due, segment))

    def found_removed(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Take over segments whose files recovery has renamed to `.deleted`."""
        due = now_ms + self._context.config.file_delete_delay_ms
        self._removed.extend((due, segment) for segment in segments)

    def purge(self, now_ms: int) -> int:
        """Delete the files of removed segments that are due; return of how many segments."""
        count = 0
        while self._removed and self._removed[0][0] <= now_ms:
            self._removed[0][1].purge()
            self._removed.popleft()
            count += 1
        return count

    def close(self) -> None:
        """Close all files; reads in progress finish."""
        for segment in (*self.all, *(segment for _, segment in self._removed)):
            segment.close()
