"""Stream a source segment's bytes into a copy: read ahead, validated, returned block by block.

A stream ends with its segment. It is valid until the copy is truncated: a truncation of the source is applied to the
copy too, and blocks that were read before it are not written.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from storage_node.errors import CorruptRecord, LogReadError
from storage_node.log.blocks import Walked
from storage_node.log.log import Log
from storage_node.log.segment import Segment
from storage_node.move.copying.blocks import HOT_TAIL, WINDOW, Buffers, Source
from storage_node.move.copying.walk import BatchWalk
from storage_node.move.future import FutureLog

DEPTH = 2
"""Reads in progress while a block is written: a disk does more in parallel than in sequence."""


@dataclass(slots=True)
class Block:
    """Validated bytes that come next in the copy; valid until the next block is requested."""

    data: memoryview
    walked: Walked


@dataclass(slots=True)
class Part:
    """Bytes of the source for one read, and the buffer for them.

    `hot`: the bytes are likely in the page cache.
    """

    buffer: memoryview
    count: int
    position: int
    hot: bool
    turn: int


class InOrder:
    """A sequencer that validates parts in the order of their turns, in the thread that completes the sequence.

    Nothing behind a part that is unreadable or corrupt is validated.
    """

    def __init__(self, walk: BatchWalk) -> None:
        self._walk = walk
        self._lock = threading.Lock()
        self._next = 0
        self._brought: dict[int, memoryview | None] = {}
        self._checked: dict[int, Walked | CorruptRecord] = {}
        self._failed = False

    def bring(self, turn: int, data: memoryview | None) -> None:
        """Accept the bytes of a part; None if they could not be read."""
        with self._lock:
            self._brought[turn] = data
            while self._next in self._brought:
                self._checked[self._next] = self._check(self._brought.pop(self._next))
                self._next += 1

    def result(self, turn: int) -> Walked:
        """Return the result for the part of this turn; it and all earlier ones were brought. Raises `CorruptRecord`."""
        found = self._checked.pop(turn)
        if isinstance(found, CorruptRecord):
            raise found
        return found

    def _check(self, data: memoryview | None) -> Walked | CorruptRecord:
        if data is not None and not self._failed:
            try:
                return self._walk.feed(data)
            except CorruptRecord as error:
                self._failed = True
                return error
        self._failed = True
        return CorruptRecord("what comes before cannot be copied")


class Stream:
    """A stream of blocks, created by `open_stream`; `version` is the copy's at that time. Not thread-safe.

    The threads that read ahead also validate ahead, in order, because the copier's thread writes.
    """

    def __init__(
        self,
        source: Log,
        segment: Segment,
        position: int,
        walk: BatchWalk,
        version: int,
        buffers: Buffers,
        reads: Executor | None,
    ) -> None:
        self.version = version
        self._log = source
        self._segment = segment
        self._position = position
        self._walk = walk
        self._buffers = buffers
        self._reads = reads
        self._source = Source(segment)
        self._ahead: deque[tuple[Part, Future[memoryview]]] = deque()
        self._planned = 0
        self._checks = InOrder(walk)
        self._written: memoryview | None = None
        self._took: list[tuple[int, float]] = []  # bytes and seconds of each read; several threads append

    @property
    def measured(self) -> tuple[int, float]:
        """Bytes read so far, and the seconds of the reads, ahead or not."""
        took = list(self._took)
        return sum(count for count, _ in took), sum(seconds for _, seconds in took)

    @property
    def expected(self) -> int:
        """The offset up to which batches were validated; for a corrupt batch, its base offset."""
        return self._walk.expected

    def next(self, count: int) -> Block | None:
        """Return the next block of about `count` bytes; None at the end of this segment's data.

        Raises `CorruptRecord` and LogReadError.
        """
        if self._written is not None:
            self._buffers.give(self._written)
            self._written = None
        if self._reads is not None:
            while len(self._ahead) <= DEPTH and (part := self._plan(count)) is not None:
                self._ahead.append((part, self._reads.submit(self._read_and_check, part)))
        if self._ahead:
            part, reading = self._ahead.popleft()
            self._written = part.buffer
            data = reading.result()
        else:
            single = self._plan(count)
            if single is None:
                return None
            part = single
            self._written = part.buffer
            data = self._read_and_check(part)
        self._give_back(part.position)
        return Block(data, self._checks.result(part.turn))

    def close(self) -> None:
        """Return the buffers to the pool, except those that a hanging read may still fill."""
        while self._ahead:
            part, reading = self._ahead.pop()
            if reading.cancel() or reading.done():
                self._buffers.give(part.buffer)
        if self._written is not None:
            self._buffers.give(self._written)
            self._written = None
        self._give_back(self._position + WINDOW)

    def _give_back(self, position: int) -> None:
        if self._source.behind(position):
            if self._reads is not None:
                self._reads.submit(self._source.give_back, position)
            else:
                self._source.give_back(position)

    def _plan(self, count: int) -> Part | None:
        """Return what to read next; None at the end of the segment's data."""
        _end, segments, active_bytes = self._log.published
        active = segments[-1] is self._segment
        left = (active_bytes if active else self._segment.size) - self._position
        if left <= 0:
            return None
        wanted = min(count, left)
        part = Part(self._buffers.take(count), wanted, self._position, active and left <= HOT_TAIL, self._planned)
        self._planned += 1
        self._position += wanted
        return part

    def _read_and_check(self, part: Part) -> memoryview:
        data: memoryview | None = None
        try:
            data = self._read(part)
        finally:
            self._checks.bring(part.turn, data)
        return data

    def _read(self, part: Part) -> memoryview:
        began = time.monotonic()
        try:
            got = self._source.read(part.buffer, part.count, part.position, hot=part.hot)
        except OSError as exc:
            raise LogReadError(self._log.directory, f"reading the log of {self._log.tp}") from exc
        self._took.append((got, time.monotonic() - began))
        if got < part.count:
            raise CorruptRecord(f"the file ends {part.count - got} bytes too early")
        return part.buffer[:got]


def open_stream(source: Log, copy: FutureLog, buffers: Buffers, reads: Executor | None) -> Stream | None:
    """Return a stream from the end of the copy; None when there is nothing to read, or the copy was truncated
    meanwhile.

    The copy rolls a segment wherever the source has one. Raises `CorruptRecord` and StorageErrors.
    """
    version, at = copy.version, copy.log_end_offset
    try:
        found = _find(source, at)
        if found is None:
            return None
        segment, position, first = found
        with copy.writing:
            if copy.deferred or copy.version != version or copy.log_end_offset != at:
                return None
            copy.cut()
            into = copy.begin(segment.base_offset if position == 0 else None, first)
            walk = BatchWalk(
                position=into.size,
                base_offset=into.base_offset,
                expected=at,
                interval=into.interval,
                entry=into.indexes()[0].last()[1],
                largest=into.max_timestamp,
                epoch=copy.leader_epochs.latest,
            )
            if not copy.size:
                walk.straddling()
            return Stream(source, segment, position, walk, version, buffers, reads)
    except OSError as exc:
        raise LogReadError(source.directory, f"reading the log of {source.tp}") from exc


def _find(source: Log, at: int) -> tuple[Segment, int, int] | None:
    """Return the segment, position and base offset of the first batch that reaches `at`."""
    end, segments, active_bytes = source.published
    if at >= end:
        return None
    number = max(0, bisect_right(segments, at, key=lambda segment: segment.base_offset) - 1)
    for segment in segments[number:]:
        position, header = segment.find(at, active_bytes if segment is segments[-1] else segment.size)
        if header is not None:
            return segment, position, header.base_offset
    return None
