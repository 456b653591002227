"""Kafka's two sparse indexes of a segment, in memory, with their file form.

`.index`: (offset relative to the segment's base, position in the .log), 4 bytes each; an entry's offset is the last
one of the batch that starts at its position. `.timeindex`: (largest timestamp so far, 8 bytes; relative offset of the
last record of the batch that has it, 4 bytes). Entries wait in memory until the segment is flushed, so that an append
never writes them: what a crash loses is rebuilt from the .log.

One thread appends while others look up. Appending only grows the columns; truncating replaces them by copies, in one
assignment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from storage_node.log.batch import NO_TIMESTAMP, BatchHeader

OFFSET_ENTRY = 8
TIME_ENTRY = 12
_SWAP = sys.byteorder == "little"
_TIME = struct.Struct(">qi")


class OffsetIndex:
    """Where to start looking for an offset in a segment."""

    __slots__ = ("_columns", "written")

    def __init__(self, data: bytes = b"") -> None:
        pairs = array("i")
        pairs.frombytes(data)
        if _SWAP:
            pairs.byteswap()
        self._columns: tuple[array[int], array[int]] = (pairs[0::2], pairs[1::2])
        self.written = len(pairs) // 2
        """How many entries the file has."""

    def __len__(self) -> int:
        return len(self._columns[1])

    def append(self, relative_offset: int, position: int) -> None:
        """Add an entry; both must be larger than the last one's."""
        offsets, positions = self._columns
        offsets.append(relative_offset)
        positions.append(position)

    def last(self) -> tuple[int, int]:
        """The last entry (relative offset, position); (0, 0) without one."""
        offsets, positions = self._columns
        return (offsets[-1], positions[-1]) if positions else (0, 0)

    def lookup(self, relative_offset: int) -> int:
        """The position of the last entry whose offset is not beyond this one; 0 without one."""
        offsets, positions = self._columns
        slot = bisect_right(offsets, relative_offset, 0, len(positions)) - 1
        return positions[slot] if slot >= 0 else 0

    def floor_position(self, position: int) -> int:
        """The largest indexed position that is not beyond this one; 0 without one."""
        positions = self._columns[1]
        slot = bisect_right(positions, position) - 1
        return positions[slot] if slot >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries from this offset on."""
        offsets, positions = self._columns
        keep = bisect_left(offsets, relative_offset)
        self._columns = (offsets[:keep], positions[:keep])
        self.written = min(self.written, keep)

    def encode(self, start: int = 0) -> bytes:
        """The file form of the entries from number `start` on."""
        offsets, positions = self._columns
        end = len(positions)
        pairs = array("i", bytes(OFFSET_ENTRY * max(0, end - start)))
        pairs[0::2] = offsets[start:end]
        pairs[1::2] = positions[start:end]
        if _SWAP:
            pairs.byteswap()
        return pairs.tobytes()

    def sane(self, size: int) -> bool:
        """Whether the entries rise and point into a .log of `size` bytes, as far as first and last can tell."""
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
    """Where to start looking for a timestamp in a segment."""

    __slots__ = ("_columns", "written")

    def __init__(self, data: bytes = b"") -> None:
        rows = list(_TIME.iter_unpack(data))
        self._columns: tuple[array[int], array[int]] = (
            array("q", (r[0] for r in rows)),
            array("i", (r[1] for r in rows)),
        )
        self.written = len(rows)
        """How many entries the file has."""

    def __len__(self) -> int:
        return len(self._columns[1])

    def last(self) -> tuple[int, int]:
        """The last entry (timestamp, relative offset); (-1, 0) without one."""
        timestamps, offsets = self._columns
        return (timestamps[-1], offsets[-1]) if offsets else (NO_TIMESTAMP, 0)

    def maybe_append(self, timestamp: int, relative_offset: int) -> bool:
        """Add an entry if its timestamp is larger than the last one's."""
        timestamps, offsets = self._columns
        if timestamp <= (timestamps[-1] if timestamps else NO_TIMESTAMP):
            return False
        timestamps.append(timestamp)
        offsets.append(relative_offset)
        return True

    def lookup(self, timestamp: int) -> int:
        """The relative offset of the last entry whose timestamp is less than this one; 0 without one.

        Everything up to that offset is older than `timestamp`.
        """
        timestamps, offsets = self._columns
        slot = bisect_left(timestamps, timestamp, 0, len(offsets)) - 1
        return offsets[slot] if slot >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Drop the entries from this offset on."""
        timestamps, offsets = self._columns
        keep = bisect_left(offsets, relative_offset)
        self._columns = (timestamps[:keep], offsets[:keep])
        self.written = min(self.written, keep)

    def encode(self, start: int = 0) -> bytes:
        """The file form of the entries from number `start` on."""
        timestamps, offsets = self._columns
        end = len(offsets)
        return b"".join(map(_TIME.pack, timestamps[start:end], offsets[start:end]))

    def sane(self) -> bool:
        """Whether the entries rise (as far as first and last can tell)."""
        timestamps, offsets = self._columns
        if not offsets:
            return True
        count = len(offsets)
        return offsets[0] >= 0 and offsets[-1] >= offsets[0] and timestamps[-1] - timestamps[0] >= count - 1


class IndexBuilder:
    """Builds a segment's indexes batch by batch, exactly as appending does, from nothing or from existing entries."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self.base_offset = base_offset
        self.interval = interval
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.max = (NO_TIMESTAMP, base_offset)

    def start_from(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Go on from these entries."""
        self.index, self.times = index, times
        timestamp, relative = times.last()
        self.max = (timestamp, self.base_offset + relative)

    def add(self, position: int, header: BatchHeader) -> None:
        """Take note of the batch at `position`."""
        if header.max_timestamp > self.max[0]:
            self.max = (header.max_timestamp, header.last_offset)
        if position - self.index.last()[1] > self.interval:
            self.index.append(header.last_offset - self.base_offset, position)
            self.times.maybe_append(self.max[0], self.max[1] - self.base_offset)

    def finish(self) -> None:
        """Close the time index with the largest timestamp."""
        self.times.maybe_append(self.max[0], self.max[1] - self.base_offset)
