"""The way of a source segment's bytes into a copy: read ahead, checked, handed out block by block.

A stream ends where its segment does, and is good as long as nobody shortens the copy: whoever truncates the source
tells the copy, too, and what was read before that is not written any more.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from storage_node.errors import CorruptRecord, LogReadError
from storage_node.log.log import Log
from storage_node.log.segment import Segment
from storage_node.move.blocks import ALIGNMENT, DIRECT_FROM, HOT_TAIL, Buffers, Source, Target
from storage_node.move.future import FutureLog
from storage_node.move.walk import BatchWalk, Walked


@dataclass(slots=True)
class Block:
    """Bytes that come next in the copy, checked; good until the next but one is asked for."""

    data: memoryview
    walked: Walked


class Stream:
    """Made by `open_stream`. `version` is the copy's when it was; not thread-safe but for its own reading ahead."""

    def __init__(
        self,
        source: Log,
        segment: Segment,
        position: int,
        target: Target,
        walk: BatchWalk,
        version: int,
        buffers: Buffers,
        reads: Executor | None,
    ) -> None:
        self.version = version
        self.target = target
        self._log = source
        self._segment = segment
        self._position = position
        self._walk = walk
        self._buffers = buffers
        self._reads = reads
        self._source = Source(segment)
        self._pair: list[memoryview] = []
        self._turn = 0
        self._ahead: Future[Block | None] | None = None

    @property
    def expected(self) -> int:
        """Up to this offset batches were checked; of one that is damaged, where it begins."""
        return self._walk.expected

    def next(self, count: int) -> Block | None:
        """The next block of about `count` bytes; None at the end of what there is in this segment.

        Raises `CorruptRecord`, and LogReadError.
        """
        ahead, self._ahead = self._ahead, None
        block = self._read(count) if ahead is None else ahead.result()
        if block is not None and self._reads is not None and self._left() > 0:
            self._ahead = self._reads.submit(self._read, count)
        return block

    def close(self) -> None:
        """Let go of the buffers, unless a read that hangs may still fill one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.cancel() or ahead.done():
            for buffer in self._pair:
                self._buffers.give(buffer)
        self._pair = []

    def _left(self) -> int:
        """Bytes of the segment that are published and not read yet."""
        _end, segments, active_bytes = self._log.published
        return (active_bytes if segments[-1] is self._segment else self._segment.size) - self._position

    def _read(self, count: int) -> Block | None:
        left = self._left()
        if left <= 0:
            return None
        active = self._log.published[1][-1] is self._segment
        wanted = min(count, left)
        if self._position % ALIGNMENT and left > DIRECT_FROM and count > ALIGNMENT:
            wanted = min(wanted, ALIGNMENT - self._position % ALIGNMENT)  # from then on in whole blocks
        buffer = self._buffer(count)
        try:
            got = self._source.read(buffer, wanted, self._position, hot=active and left <= HOT_TAIL)
        except OSError as exc:
            raise LogReadError(self._log.directory, f"reading the log of {self._log.tp}") from exc
        if got < wanted:
            raise CorruptRecord(f"the file ends {wanted - got} bytes too early")
        self._position += got
        data = buffer[:got]
        return Block(data, self._walk.feed(data))

    def _buffer(self, count: int) -> memoryview:
        """One of two in turn: while one is written, the other is read into."""
        self._turn = 1 - self._turn
        while len(self._pair) < 2:
            self._pair.append(self._buffers.take(count))
        if len(self._pair[self._turn]) < count:
            self._buffers.give(self._pair[self._turn])
            self._pair[self._turn] = self._buffers.take(count)
        return self._pair[self._turn]


def open_stream(source: Log, copy: FutureLog, buffers: Buffers, reads: Executor | None) -> Stream | None:
    """A stream that begins at the end of the copy; None when there is nothing to read, or the copy was cut meanwhile.

    The copy gets a segment wherever the source has one. Raises `CorruptRecord` and StorageErrors.
    """
    version, at = copy.version, copy.log_end_offset
    try:
        found = _find(source, at)
        if found is None:
            return None
        segment, position, first = found
        with copy.writing:
            if copy.version != version or copy.log_end_offset != at:
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
                epoch=copy.latest_epoch,
            )
            if not copy.size:
                walk.straddling()
            return Stream(source, segment, position, copy.target(into), walk, version, buffers, reads)
    except OSError as exc:
        raise LogReadError(source.directory, f"reading the log of {source.tp}") from exc


def _find(source: Log, at: int) -> tuple[Segment, int, int] | None:
    """The segment, position and base offset of the first batch that reaches `at`."""
    end, segments, active_bytes = source.published
    if at >= end:
        return None
    number = max(0, bisect_right(segments, at, key=lambda segment: segment.base_offset) - 1)
    for segment in segments[number:]:
        position, header = segment.find(at, active_bytes if segment is segments[-1] else segment.size)
        if header is not None:
            return segment, position, header.base_offset
    return None
