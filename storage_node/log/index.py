"""Kafka's offset index and time index of a segment, in memory, with their file format.

`.index`: (offset relative to the segment's base offset, position in the .log), 4 bytes each; an entry's offset is the
last offset of the batch at its position. `.timeindex`: (largest timestamp so far, 8 bytes; relative offset of the last
record of the batch that has it, 4 bytes). An append never writes the files: entries stay in memory until the segment
is flushed, and recovery rebuilds from the .log those that a crash loses.

One thread appends while others look up. Appending only extends the columns; truncating replaces them by copies, in
one assignment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from storage_node.log.batches.batch import NO_TIMESTAMP, BatchHeader

OFFSET_ENTRY = 8
TIME_ENTRY = 12
_SWAP = sys.byteorder == "little"
_TIME = struct.Struct(">qi")


class OffsetIndex:
    """The offset index: the position from which to search a segment for an offset."""

    __slots__ = ("_columns", "written")

    def __init__(self, data: bytes = b"") -> None:
        pairs = array("i")
        pairs.frombytes(data)
        if _SWAP:
            pairs.byteswap()
        self._columns: tuple[array[int], array[int]] = (pairs[0::2], pairs[1::2])
        self.written = len(pairs) // 2
        """Number of entries that the file holds."""

    def __len__(self) -> int:
        return len(self._columns[1])

    def append(self, relative_offset: int, position: int) -> None:
        """Append an entry; both numbers must be larger than the last entry's."""
        offsets, positions = self._columns
        offsets.append(relative_offset)
        positions.append(position)

    def last(self) -> tuple[int, int]:
        """Return the last entry (relative offset, position), or (0, 0) if the index is empty."""
        offsets, positions = self._columns
        return (offsets[-1], positions[-1]) if positions else (0, 0)

    def lookup(self, relative_offset: int) -> int:
        """Return the position of the last entry at or before this offset; 0 if there is none."""
        offsets, positions = self._columns
        slot = bisect_right(offsets, relative_offset, 0, len(positions)) - 1
        return positions[slot] if slot >= 0 else 0

    def floor_position(self, position: int) -> int:
        """Return the largest indexed position at or before this one; 0 if there is none."""
        positions = self._columns[1]
        slot = bisect_right(positions, position) - 1
        return positions[slot] if slot >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries at or beyond this offset."""
        offsets, positions = self._columns
        keep = bisect_left(offsets, relative_offset)
        self._columns = (offsets[:keep], positions[:keep])
        self.written = min(self.written, keep)

    def encode(self, start: int = 0) -> bytes:
        """Return the entries from number `start` on in the file's format."""
        offsets, positions = self._columns
        end = len(positions)
        pairs = array("i", bytes(OFFSET_ENTRY * max(0, end - start)))
        pairs[0::2] = offsets[start:end]
        pairs[1::2] = positions[start:end]
        if _SWAP:
            pairs.byteswap()
        return pairs.tobytes()

    def sane(self, size: int) -> bool:
        """Return whether the first and last entry are consistent with rising entries into a .log of `size` bytes."""
        offsets, positions = self._columns
        if not positions:
            return True
        count = len(positions)
        return (
            positions[0] > 0
            and positions[-1] < size
            and offsets[0] >= 0
            and offsets[-1] - offsets[0] >= count - 1
            and positions[-1] - positions[0] >= count - 1
        )


class TimeIndex:
    """The time index: the offset from which to search a segment for a timestamp."""

    __slots__ = ("_columns", "written")

    def __init__(self, data: bytes = b"") -> None:
        rows = list(_TIME.iter_unpack(data))
        self._columns: tuple[array[int], array[int]] = (
            array("q", (r[0] for r in rows)),
            array("i", (r[1] for r in rows)),
        )
        self.written = len(rows)
        """Number of entries that the file holds."""

    def __len__(self) -> int:
        return len(self._columns[1])

    def last(self) -> tuple[int, int]:
        """Return the last entry (timestamp, relative offset), or (-1, 0) if the index is empty."""
        timestamps, offsets = self._columns
        return (timestamps[-1], offsets[-1]) if offsets else (NO_TIMESTAMP, 0)

    def maybe_append(self, timestamp: int, relative_offset: int) -> bool:
        """Append an entry if its timestamp is larger than the last entry's; return whether it was."""
        timestamps, offsets = self._columns
        if timestamp <= (timestamps[-1] if timestamps else NO_TIMESTAMP):
            return False
        timestamps.append(timestamp)
        offsets.append(relative_offset)
        return True

    def lookup(self, timestamp: int) -> int:
        """Return the relative offset of the last entry with a smaller timestamp; 0 if there is none.

        All records up to that offset are older than `timestamp`.
        """
        timestamps, offsets = self._columns
        slot = bisect_left(timestamps, timestamp, 0, len(offsets)) - 1
        return offsets[slot] if slot >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries at or beyond this offset."""
        timestamps, offsets = self._columns
        keep = bisect_left(offsets, relative_offset)
        self._columns = (timestamps[:keep], offsets[:keep])
        self.written = min(self.written, keep)

    def encode(self, start: int = 0) -> bytes:
        """Return the entries from number `start` on in the file's format."""
        timestamps, offsets = self._columns
        end = len(offsets)
        return b"".join(map(_TIME.pack, timestamps[start:end], offsets[start:end]))

    def sane(self) -> bool:
        """Return whether the first and last entry are consistent with rising entries."""
        timestamps, offsets = self._columns
        if not offsets:
            return True
        count = len(offsets)
        return offsets[0] >= 0 and offsets[-1] >= offsets[0] and timestamps[-1] - timestamps[0] >= count - 1


class IndexBuilder:
    """Builder of a segment's indexes, batch by batch as an append does, from nothing or from existing entries."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self.base_offset = base_offset
        self.interval = interval
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.max = (NO_TIMESTAMP, base_offset)

    def start_from(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Continue from these entries."""
        self.index, self.times = index, times
        timestamp, relative = times.last()
        self.max = (timestamp, self.base_offset + relative)

    def add(self, position: int, header: BatchHeader) -> None:
        """Index the batch at `position`."""
        if header.max_timestamp > self.max[0]:
            self.max = (header.max_timestamp, header.last_offset)
        if position - self.index.last()[1] > self.interval:
            self.index.append(header.last_offset - self.base_offset, position)
            self.times.maybe_append(self.max[0], self.max[1] - self.base_offset)

    def finish(self) -> None:
        """Append the largest timestamp to the time index."""
        self.times.maybe_append(self.max[0], self.max[1] - self.base_offset)
