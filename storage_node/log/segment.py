"""A segment of a log: its .log file and its two indexes, in Kafka's formats.

One thread writes; any number read. The size and offset that the log published, not the file, bound what a reader may
see. Methods raise OSError, which the log wraps with its directory, and `CorruptRecord` for bytes that are not a valid
batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import CorruptRecord
from storage_node.failpoints import failpoint
from storage_node.log.batches.batch import (
    HEADER_SIZE,
    MAGIC,
    MIN_LENGTH,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    parse,
)
from storage_node.log.files import Handle, Home, Region, no_descriptor, pread, read_exact, write_all
from storage_node.log.index import OFFSET_ENTRY, TIME_ENTRY, IndexBuilder, OffsetIndex, TimeIndex
from storage_node.log.segment_files import DELETED, INDEX, LOG, SUFFIXES, TIME_INDEX, LogClosed, SegmentFiles, file_name

__all__ = ["DELETED", "LOG", "SUFFIXES", "LogClosed", "Segment", "file_name"]

FLUSH_AFTER_RECORDS = failpoints.register("log.flush_after_records")
FLUSH_AFTER_INDEX = failpoints.register("log.flush_after_index")

_SPAN = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic, last offset delta: the part of a header that a search needs."""
_REMEMBERED_POSITIONS = 64
_MAX_RELATIVE = 2**31 - 1


class Segment(SegmentFiles):
    """A segment; `size` is that of the whole batches in its .log, `created_ms` when it was created or first opened."""

    def __init__(self, home: Home, base_offset: int, interval: int, *, created_ms: int, create: bool = False) -> None:
        super().__init__(home, base_offset, create=create)
        self.interval = interval
        """Bytes of the .log between two index entries."""
        self.created_ms = created_ms
        self.first_timestamp: int | None = None
        self._max: tuple[int, int] | None = (NO_TIMESTAMP, base_offset) if create else None
        self._index: OffsetIndex | None = OffsetIndex() if create else None
        self._time_index: TimeIndex | None = TimeIndex() if create else None
        self._positions: dict[int, int] = {}

    # Indexes

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes: loaded on first use, and rebuilt from the .log if a file is missing or invalid."""
        index, times = self._index, self._time_index
        if index is None or times is None:
            with self.home.loading:
                index, times = self._index, self._time_index
                if index is None or times is None:
                    index, times = self.stored_indexes() or self._rebuild()
                    self._time_index, self._index = times, index
        return index, times

    def stored_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Return both indexes from their files; None if a file is missing or invalid."""
        raw = self.home.read(file_name(self.base_offset, INDEX))
        raw_times = self.home.read(file_name(self.base_offset, TIME_INDEX))
        if raw is None or raw_times is None or len(raw) % OFFSET_ENTRY or len(raw_times) % TIME_ENTRY:
            return None
        index, times = OffsetIndex(raw), TimeIndex(raw_times)
        if not index.sane(self.size) or not times.sane() or (self.size and not len(times) and not self._untimed()):
            return None
        return index, times

    def _untimed(self) -> bool:
        """Return whether the segment's first batch has no timestamp: the time index may then be empty."""
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
        """Take over the indexes that recovery has built."""
        self._index, self._time_index = builder.index, builder.times
        self._max = builder.max
        self._positions = {}
        self.dirty = True

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of the batch that has it; (-1, base offset) if there is none."""
        if self._max is None:
            timestamp, relative = self._last_time_entry() or self.indexes()[1].last()
            self._max = (timestamp, self.base_offset + relative)
        return self._max

    def _last_time_entry(self) -> tuple[int, int] | None:
        """Return the last entry of the .timeindex without loading it, for retention; None if it is doubtful."""
        try:
            fd = self.home.open(file_name(self.base_offset, TIME_INDEX), os.O_RDONLY)
            size = os.fstat(fd.fd).st_size
            last = read_exact(fd.fd, TIME_ENTRY, size - TIME_ENTRY) if size and size % TIME_ENTRY == 0 else b""
        except FileNotFoundError:
            return None
        timestamp, relative = TimeIndex(last).last()
        return (timestamp, relative) if timestamp > 0 and relative >= 0 else None

    def rolling_timestamp(self) -> int:
        """Return the first batch's timestamp, from which segment.ms counts; -1 if there is none."""
        if self.first_timestamp is None and self.size:
            self.first_timestamp = self.header_at(0).max_timestamp
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    # Writing

    def append(self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> None:
        """Write these batches in one call and index them.

        `batches` are the positions and headers of all batches in `data`; the first position is that of `data` itself.
        On an error the file is truncated to its previous size.
        """
        file = self.file
        start = self.size
        try:
            write_all(file.fd, data, start)
        except OSError:
            # The partial write may hold whole batches, and a later, shorter append would leave them behind its own end.
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
        # Set after the write: a flush that began before it must not clear the flag.
        self.dirty = True

    def extended(self, end: int, entries: Iterable[tuple[int, int, int, int]], largest: tuple[int, int]) -> None:
        """Add whole batches up to position `end` that a copier has checked and written.

        `entries` are their index entries: position, last offset, largest timestamp so far and its offset; `largest` is
        the largest timestamp and its offset after all of them.
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
        """Return whether this batch needs a new segment; `more`: its size plus that of the batches before it."""
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
        """Append the largest timestamp to the time index, as Kafka does when a segment becomes inactive."""
        timestamp, offset = self.max_timestamp
        if self.indexes()[1].maybe_append(timestamp, offset - self.base_offset):
            self.dirty = True

    def truncate(self, offset: int) -> int:
        """Drop every batch that reaches `offset`; return the offset at which the segment then ends."""
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
        """Flush the .log and, if wanted, the indexes; without them the segment stays `dirty`.

        Returns False if the disk was full or no descriptor was free for the indexes, which recovery rebuilds.
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
        """Return the header of the batch at `position`; raises `CorruptRecord`."""
        file = self.file
        data = pread(file.fd, HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            raise self._damaged(position)
        header = parse(data)
        if header.magic != MAGIC or header.length < HEADER_SIZE:
            raise self._damaged(position)
        return header

    def _span(self, file: Handle, position: int, end: int) -> tuple[int, int, int]:
        """Return (base offset, length, next offset) of the batch at `position`, which must end by `end`.

        Raises `CorruptRecord`.
        """
        data = pread(file.fd, _SPAN.size, position)
        if len(data) == _SPAN.size:
            base, length, magic, delta = _SPAN.unpack(data)
            if magic == MAGIC and MIN_LENGTH <= length <= end - position - PREFIX_SIZE and delta >= 0:
                return base, length + PREFIX_SIZE, base + delta + 1
        raise self._damaged(position)

    def _damaged(self, position: int) -> CorruptRecord:
        return CorruptRecord(f"segment {file_name(self.base_offset, LOG)} has no record batch at position {position}")

    def walk(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the positions and headers of the batches from `position` to `end`."""
        while position < end:
            header = self.header_at(position)
            yield position, header
            position += header.length

    def find(self, offset: int, end: int) -> tuple[int, BatchHeader | None]:
        """Return position and header of the first batch before `end` that reaches `offset`, or (end, None)."""
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
        offset `limit` if that comes first, without reading records.
        """
        stop = end if limit is None else self.find(limit, end)[0]
        return max(0, stop - self.find(offset, stop)[0])

    def _start_for(self, offset: int, file: Handle, end: int) -> int:
        known = self._positions.get(offset)
        if known is not None:
            # A truncation may have put another batch there: the position is valid only if its batch has the offset.
            try:  # each sequential read comes here, and `suppress` would take a twentieth of its time
                if self._span(file, known, end)[0] == offset:
                    return known
            except CorruptRecord:
                pass
        return self.indexes()[0].lookup(offset - self.base_offset)

    def read(
        self, offset: int, max_bytes: int, end: int, end_offset: int, *, min_one: bool, at_once: int | None = None
    ) -> tuple[bytes, int, int, Region | None] | None:
        """Return (whole batches, base offset, next offset, region) from the batch that holds `offset`, up to `end`.

        `end_offset` is the offset at position `end`. `at_once`: only the first so many bytes are read. Returns None if
        no such batch precedes `end`; no bytes if the first batch exceeds `max_bytes` without `min_one`.
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
        # While too many files are open, a slow reader must not hold another one open.
        region = Region(self, position, count, None if self.home.opened.segments.crowded else file)
        positions = self._positions
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions = self._positions = {}
        positions[after] = cut
        return data, base, after, region

    def _cut(self, file: Handle, position: int, limit: int, end: int) -> tuple[int, int]:
        """Return the last batch boundary up to `limit`, and its offset; the batch at `position` ends before `limit`."""
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
