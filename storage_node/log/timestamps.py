"""Searches for records by timestamp in a log's segments."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.log.batches.batch import NO_TIMESTAMP, BatchHeader
from storage_node.log.batches.records import first_at_or_after, first_newest
from storage_node.log.files import read_exact
from storage_node.log.segment import Segment

NOTHING = (-1, NO_TIMESTAMP)


def _bytes(segment: Segment, position: int, header: BatchHeader) -> bytes:
    file = segment.file
    return read_exact(file.fd, header.length, position)


def first_since(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int, log_end_offset: int
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with a timestamp at or after `timestamp` ms, or None."""
    for segment in segments:
        if segment.max_timestamp[0] < timestamp:
            continue
        size = segment.size
        index, times = segment.indexes()
        start = index.lookup(max(times.lookup(timestamp), log_start_offset - segment.base_offset))
        for position, header in segment.walk(start, size):
            if header.base_offset >= log_end_offset:
                return None
            if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
                continue
            found = first_at_or_after(_bytes(segment, position, header), header, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def newest(segments: Sequence[Segment], log_start_offset: int) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record with the largest timestamp; (-1, -1) if there is none."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        timestamp, offset = segment.max_timestamp
        if timestamp != NO_TIMESTAMP and offset >= log_start_offset and (best is None or timestamp > best[0]):
            best = timestamp, segment
    if best is None:
        return NOTHING
    timestamp, segment = best
    offset = segment.max_timestamp[1]
    position, header = segment.find(offset, segment.size)
    if header is None:
        return NOTHING
    return first_newest(_bytes(segment, position, header), header)
