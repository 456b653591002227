"""One segment of a log: its .log file and the two indexes, in Kafka's formats.

One thread writes; any number read. What a reader may see is bounded by the size and offset that the log published,
not by the file. Methods raise OSError, which the log wraps with its directory, and `CorruptRecord` for bytes that are
no batch.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import CorruptRecord
from storage_node.failpoints import failpoint
from storage_node.log.batch import (
    HEADER_SIZE,
    MAGIC,
    MIN_LENGTH,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    parse,
)
from storage_node.log.files import Handle, Home, Region, no_descriptor, read_exact, write_all
from storage_node.log.index import OFFSET_ENTRY, TIME_ENTRY, IndexBuilder, OffsetIndex, TimeIndex
from storage_node.log.segment_files import DELETED, INDEX, LOG, SUFFIXES, TIME_INDEX, LogClosed, SegmentFiles, file_name

__all__ = ["DELETED", "LOG", "SUFFIXES", "LogClosed", "Segment", "file_name"]

FLUSH_AFTER_RECORDS = failpoints.register("log.flush_after_records")
FLUSH_AFTER_INDEX = failpoints.register("log.flush_after_index")

_SPAN = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic, last offset delta: as much of a header as finding one's way takes."""
_REMEMBERED_POSITIONS = 64
_MAX_RELATIVE = 2**31 - 1


class Segment(SegmentFiles):
    """A segment; `size` is the bytes of whole batches in its .log, `created_ms` when it was made or first seen."""

    def __init__(self, home: Home, base_offset: int, interval: int, *, created_ms: int, create: bool = False) -> None:
        super().__init__(home, base_offset, create=create)
        self.interval = interval
        """Bytes between two entries of the indexes."""
        self.created_ms = created_ms
        self.first_timestamp: int | None = None
        self._max: tuple[int, int] | None = (NO_TIMESTAMP, base_offset) if create else None
        self._index: OffsetIndex | None = OffsetIndex() if create else None
        self._time_index: TimeIndex | None = TimeIndex() if create else None
        self._positions: dict[int, int] = {}

    # Indexes

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, read on first use, and rebuilt from the .log if a file is missing or cannot be one."""
        index, times = self._index, self._time_index
        if index is None or times is None:
            with self.home.loading:
                index, times = self._index, self._time_index
                if index is None or times is None:
                    index, times = self.stored_indexes() or self._rebuild()
                    self._time_index, self._index = times, index
        return index, times

    def stored_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Both indexes as their files have them; None if a file is missing or cannot be one."""
        raw = self.home.read(file_name(self.base_offset, INDEX))
        raw_times = self.home.read(file_name(self.base_offset, TIME_INDEX))
        if raw is None or raw_times is None or len(raw) % OFFSET_ENTRY or len(raw_times) % TIME_ENTRY:
            return None
        index, times = OffsetIndex(raw), TimeIndex(raw_times)
        if not index.sane(self.size) or not times.sane() or (self.size and not len(times) and not self._untimed()):
            return None
        return index, times

    def _untimed(self) -> bool:
        """Whether the segment's first batch has no timestamp, as then the time index may be empty."""
        try:
            return self.header_at(0).max_timestamp == NO_TIMESTAMP
        except CorruptRecord:
            return False

    def _rebuild(self) -> tuple[OffsetIndex, TimeIndex]:
        builder = IndexBuilder(self.base_offset, self.interval)
        for position, header in self.walk(0, self.size):
            builder.add(position, header)
        builder.finish()
        self.dirty = True
        return builder.index, builder.times

    def adopt(self, builder: IndexBuilder) -> None:
        """Take over what a recovery has built."""
        self._index, self._time_index = builder.index, builder.times
        self._max = builder.max
        self._positions = {}
        self.dirty = True

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of the batch that has it; (-1, base offset) without one."""
        if self._max is None:
            timestamp, relative = self._last_time_entry() or self.indexes()[1].last()
            self._max = (timestamp, self.base_offset + relative)
        return self._max

    def _last_time_entry(self) -> tuple[int, int] | None:
        """The last entry of the .timeindex read alone, since retention asks every segment; None if in doubt."""
        try:
            fd = self.home.open(file_name(self.base_offset, TIME_INDEX), os.O_RDONLY)
            size = os.fstat(fd.fd).st_size
            last = read_exact(fd.fd, TIME_ENTRY, size - TIME_ENTRY) if size and size % TIME_ENTRY == 0 else b""
        except FileNotFoundError:
            return None
        timestamp, relative = TimeIndex(last).last()
        return (timestamp, relative) if timestamp > 0 and relative >= 0 else None

    def rolling_timestamp(self) -> int:
        """The timestamp of the first batch, from which its age for rolling counts; -1 when there is none."""
        if self.first_timestamp is None and self.size:
            self.first_timestamp = self.header_at(0).max_timestamp
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    # Writing

    def append(self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> None:
        """Write these batches in one call and index them.

        `batches` are positions, the first being that of `data`, and headers of all batches in it. On an error the
        file is cut back to what it held.
        """
        file = self.file
        start = self.size
        try:
            write_all(file.fd, data, start)
        except OSError:
            # What was written of it may hold whole batches: a later, shorter append would leave them behind its own
            # end.
            os.ftruncate(file.fd, start)
            raise
        interval = self.interval
        index, times = self.indexes()
        base = self.base_offset
        max_timestamp, max_offset = self.max_timestamp
        last_entry = index.last()[1]
        offset_of_data = start - batches[0][0]
        for at, header in batches:
            if header.max_timestamp > max_timestamp:
                max_timestamp, max_offset = header.max_timestamp, header.last_offset
            position = at + offset_of_data
            if position - last_entry > interval:
                index.append(header.last_offset - base, position)
                times.maybe_append(max_timestamp, max_offset - base)
                last_entry = position
        self._max = (max_timestamp, max_offset)
        self.size = start + len(data)
        # After the write: a flush that began before it must not take the mark away.
        self.dirty = True

    def extended(self, end: int, entries: Iterable[tuple[int, int, int, int]], largest: tuple[int, int]) -> None:
        """Take note of whole batches up to position `end` that were checked and written by other means.

        `entries` are their index entries: position, last offset, largest timestamp so far and the offset that has it;
        `largest` are the last two after all of them.
        """
        index, times = self.indexes()
        base = self.base_offset
        for position, offset, timestamp, timestamp_offset in entries:
            index.append(offset - base, position)
            times.maybe_append(timestamp, timestamp_offset - base)
        self._max = largest
        self.size = end
        self.dirty = True

    def full(
        self, more: int, header: BatchHeader, *, segment_bytes: int, segment_ms: int, index_bytes: int, now_ms: int
    ) -> bool:
        """Whether this batch needs a new segment; `more`: its size and that of what is to be written before it."""
        size = self.size + more
        if header.last_offset - self.base_offset > _MAX_RELATIVE:
            return True
        if size == header.length:
            self.first_timestamp = header.max_timestamp
            return False
        if size > segment_bytes:
            return True
        first = self.rolling_timestamp()
        age = header.max_timestamp - first if first >= 0 and header.max_timestamp >= 0 else now_ms - self.created_ms
        if age > segment_ms:
            return True
        index, times = self.indexes()
        return len(index) >= index_bytes // OFFSET_ENTRY or len(times) >= index_bytes // TIME_ENTRY - 1

    def seal(self) -> None:
        """Make the time index end with the largest timestamp, as a segment that is not written to any more has it."""
        timestamp, offset = self.max_timestamp
        if self.indexes()[1].maybe_append(timestamp, offset - self.base_offset):
            self.dirty = True

    def truncate(self, offset: int) -> int:
        """Drop every batch that reaches `offset`; answers the offset at which the segment then ends."""
        position, header = self.find(offset, self.size)
        if header is None:
            return offset
        end = min(offset, header.base_offset)
        index, times = self.indexes()
        self._positions = {}
        self.size = position
        self.dirty = True
        index.truncate(end - self.base_offset)
        times.truncate(end - self.base_offset)
        file = self.file
        os.ftruncate(file.fd, position)
        if position == 0:
            self.first_timestamp = None
        timestamp, relative = times.last()
        largest = (timestamp, self.base_offset + relative)
        for _, kept in self.walk(index.last()[1], position):
            if kept.max_timestamp > largest[0]:
                largest = (kept.max_timestamp, kept.last_offset)
        self._max = largest
        return end

    def flush(self, *, indexes: bool = True) -> bool:
        """Bring .log and, if wanted, indexes to the disk; without them the segment stays `dirty`.

        False if there was no room, or no descriptor, for the indexes, which a start rebuilds.
        """
        try:
            file = self.file
        except LogClosed:
            return True
        self.dirty = not indexes
        os.fdatasync(file.fd)
        failpoint(FLUSH_AFTER_RECORDS)
        if not indexes:
            return False
        index, times = self._index, self._time_index
        if index is None or times is None or self.removed:
            return True
        try:
            for suffix, entries, width in ((INDEX, index, OFFSET_ENTRY), (TIME_INDEX, times, TIME_ENTRY)):
                self._flush_index(suffix, entries, width)
                failpoint(FLUSH_AFTER_INDEX)
        except OSError as exc:
            if not isinstance(exc, NoRoom) and not no_descriptor(exc):
                raise
            self.dirty = True
            return False
        return True

    def _flush_index(self, suffix: str, entries: OffsetIndex | TimeIndex, width: int) -> None:
        written = entries.written
        data = entries.encode(written)
        handle = self.home.open(file_name(self.base_offset, suffix), os.O_RDWR | os.O_CREAT)
        end = written * width + len(data)
        size = os.fstat(handle.fd).st_size
        if data:
            write_all(handle.fd, data, written * width)
        if size > end:
            os.ftruncate(handle.fd, end)
        if data or size > end:
            os.fdatasync(handle.fd)
        entries.written = end // width

    # Reading

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch at `position`; raises `CorruptRecord`."""
        file = self.file
        data = os.pread(file.fd, HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            raise self._damaged(position)
        header = parse(data)
        if header.magic != MAGIC or header.length < HEADER_SIZE:
            raise self._damaged(position)
        return header

    def _span(self, file: Handle, position: int, end: int) -> tuple[int, int, int]:
        """(base offset, length, next offset) of the batch at `position`, all before `end`; raises `CorruptRecord`."""
        data = os.pread(file.fd, _SPAN.size, position)
        if len(data) == _SPAN.size:
            base, length, magic, delta = _SPAN.unpack(data)
            if magic == MAGIC and MIN_LENGTH <= length <= end - position - PREFIX_SIZE and delta >= 0:
                return base, length + PREFIX_SIZE, base + delta + 1
        raise self._damaged(position)

    def _damaged(self, position: int) -> CorruptRecord:
        return CorruptRecord(f"segment {file_name(self.base_offset, LOG)} has no record batch at position {position}")

    def walk(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches from `position` to `end`."""
        while position < end:
            header = self.header_at(position)
            yield position, header
            position += header.length

    def find(self, offset: int, end: int) -> tuple[int, BatchHeader | None]:
        """Position and header of the first batch before `end` that reaches `offset`; (end, None) if none."""
        file = self.file
        position = self._start_for(offset, file, end)
        while position < end:
            _base, length, next_offset = self._span(file, position, end)
            if next_offset > offset:
                return position, self.header_at(position)
            position += length
        return end, None

    def bytes_from(self, offset: int, end: int, limit: int | None = None) -> int:
        """Return how many bytes lie between the batch that holds `offset` and position `end`, or the batch that holds
        offset `limit` if that comes first. No records are read.
        """
        stop = end if limit is None else self.find(limit, end)[0]
        return max(0, stop - self.find(offset, stop)[0])

    def _start_for(self, offset: int, file: Handle, end: int) -> int:
        known = self._positions.get(offset)
        if known is not None:
            with contextlib.suppress(CorruptRecord):
                # A truncation may have put other batches there: believed only if the batch is the one.
                if self._span(file, known, end)[0] == offset:
                    return known
        return self.indexes()[0].lookup(offset - self.base_offset)

    def read(
        self, offset: int, max_bytes: int, end: int, end_offset: int, *, min_one: bool, at_once: int | None = None
    ) -> tuple[bytes, int, int, Region | None] | None:
        """(whole batches, base offset, next offset, where) from the one that has `offset`, up to position `end`.

        `end_offset` is the offset at `end`. `at_once`: only the first so many bytes are read. None without such a
        batch before `end`; no bytes if the first one does not fit in `max_bytes` and is not wanted nevertheless
        (`min_one`).
        """
        file = self.file
        position = self._start_for(offset, file, end)
        while True:
            if position >= end:
                return None
            base, length, next_offset = self._span(file, position, end)
            if next_offset > offset:
                break
            position += length
        if end - position <= max_bytes:
            cut, after = end, end_offset
        elif length >= max_bytes:
            if length > max_bytes and not min_one:
                return b"", offset, offset, None
            cut, after = position + length, next_offset
        else:
            cut, after = self._cut(file, position, position + max_bytes, end)
        count = cut - position
        wanted = count if at_once is None else min(count, at_once)
        data = read_exact(file.fd, wanted, position)
        if len(data) < wanted:
            raise self._damaged(position + len(data))
        # Whoever takes his time with what he reads must not keep more files open than may be.
        region = Region(self, position, count, None if self.home.opened.segments.crowded else file)
        positions = self._positions
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions = self._positions = {}
        positions[after] = cut
        return data, base, after, region

    def _cut(self, file: Handle, position: int, limit: int, end: int) -> tuple[int, int]:
        """The last batch boundary that is not beyond `limit`, and its offset; the batch at `position` is before it."""
        cut = max(position, self.indexes()[0].floor_position(limit))
        after = -1
        if cut > position:
            after = self._span(file, cut, end)[0]
        while True:
            _base, length, next_offset = self._span(file, cut, end)
            if cut + length > limit:
                return cut, after
            cut += length
            after = next_offset
