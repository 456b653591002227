"""Reading a log: whole batches from an offset on, and searches by timestamp, beside its writer and without a lock."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from storage_node.errors import LogReadError, OffsetOutOfRange
from storage_node.log import timestamps
from storage_node.log.context import LogContext
from storage_node.log.files import Region
from storage_node.log.segment import Segment
from storage_node.log.segments import LogSegments

#: Bytes counted for an offset in a sealed segment: more than any fetch.min.bytes, as in Apache Kafka's DelayedFetch.
PLENTY = 2**62


@dataclass(frozen=True, slots=True)
class FetchedData:
    """Whole batches. `base_offset` is the first one's, at or before the offset read; `next_offset` follows them."""

    data: bytes
    base_offset: int
    next_offset: int
    region: Region | None = field(default=None, compare=False)
    """Location of all bytes, to read the rest or to read them again; None if there are none."""


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


class Reader:
    """The reads of one log, at any time on any thread: they use what the log has published, and nothing else."""

    __slots__ = ("_context", "_segments")

    def __init__(self, context: LogContext, segments: LogSegments) -> None:
        self._context = context
        self._segments = segments

    def read(self, offset: int, max_bytes: int, upto: int | None, min_one: bool, at_once: int | None) -> FetchedData:
        """See `Log.read`."""
        log = self._segments
        end, segments, active_size = log.published
        if offset == end:
            return FetchedData(b"", offset, offset)
        if not log.log_start_offset <= offset < end:
            raise OffsetOutOfRange(
                f"Received request for offset {offset} for partition {self._context.tp}, "
                f"but we only have log segments in the range {log.log_start_offset} to {end}"
            )
        limit = end if upto is None or upto > end else upto
        if offset >= limit:
            return FetchedData(b"", offset, offset)
        count = len(segments)
        number = count - 1
        if offset < segments[number].base_offset:
            number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        try:
            while True:
                segment = segments[number]
                number += 1
                last = number == count
                # A segment's data ends where the next segment begins, even if offsets are missing in between.
                stop, stop_offset = (active_size, end) if last else (segment.size, segments[number].base_offset)
                if limit < stop_offset:
                    stop, straddling = segment.find(limit, stop)
                    stop_offset = limit if straddling is None else straddling.base_offset
                    last = True
                found = segment.read(offset, max_bytes, stop, stop_offset, min_one=min_one, at_once=at_once)
                if found is not None:
                    return FetchedData(*found)
                if last:
                    return FetchedData(b"", offset, offset)
        except OSError as exc:
            raise self._context.wrapped(LogReadError, exc, "reading the log of") from exc

    def available(self, offset: int, upto: int | None) -> int:
        """See `Log.available`."""
        log = self._segments
        end, segments, active_size = log.published
        if not log.log_start_offset <= offset <= end:
            raise OffsetOutOfRange(f"{self._context.tp} has offsets from {log.log_start_offset} to {end}, not {offset}")
        limit = end if upto is None or upto > end else upto
        if offset >= limit:
            return 0
        number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        last = number == len(segments) - 1
        if not last and limit > segments[number + 1].base_offset:
            return PLENTY
        segment = segments[number]
        try:
            return segment.bytes_from(offset, active_size if last else segment.size, limit if limit < end else None)
        except OSError as exc:
            raise self._context.wrapped(LogReadError, exc, "measuring the log of") from exc

    def offset_for_timestamp(self, ms: int) -> tuple[int, int] | None:
        """See `Log.offset_for_timestamp`."""
        end, segments, _ = self._segments.published
        try:
            return timestamps.first_since(segments, ms, self._segments.log_start_offset, end)
        except OSError as exc:
            raise self._context.wrapped(LogReadError, exc, "searching the log of") from exc

    def max_timestamp(self) -> tuple[int, int]:
        """See `Log.max_timestamp`."""
        try:
            return timestamps.newest(self._segments.published[1], self._segments.log_start_offset)
        except OSError as exc:
            raise self._context.wrapped(LogReadError, exc, "searching the log of") from exc
