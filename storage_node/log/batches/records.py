"""Validation of the records inside a batch, and searches in them by timestamp."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage_node.errors import CorruptRecord
from storage_node.log.batches.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Buffer
from storage_node.log.batches.record_columns import all_of, columns, runs_and_columns
from storage_node.log.batches.record_runs import LEAST_RUN, LEAST_STRETCH, NEAR, Run, run_of
from storage_node.log.batches.unpacking import NONE, TooLarge, unpack
from storage_node.small_first import pace


class Seen(NamedTuple):
    """A summary of all records of a batch: their oldest and newest timestamps in ms, -1 if they have none."""

    oldest: int
    newest: int
    in_order: bool
    """Whether the offset deltas are 0, 1, 2 and so on."""


class Bounds(NamedTuple):
    """Limits of a validation that is stricter than the general ones."""

    unpacked: int
    """Decompressed bytes of a batch."""
    headers: int
    """Record headers that have to be walked over."""


#: Up to so many bytes are copied, since reading single bytes through a memoryview is slower.
_COPIED = 64 << 10
_FAR = 1 << 62


def look_through(batch: Buffer, header: BatchHeader, bounds: Bounds | None = None) -> Seen | None:
    """Read all records of a batch (given from its header on) and return their summary; None for an unknown compression.

    Raises ValueError for records that a consumer cannot read, and `TooLarge`.
    """
    most_bytes, most_headers = bounds or (None, None)
    records: Buffer = memoryview(batch)[HEADER_SIZE : header.length]
    count, base, compression = header.count, header.base_timestamp, header.compression
    if compression == NONE:
        if len(records) <= _COPIED:
            records = bytes(records)
        if count < LEAST_STRETCH:
            return _seen_few(records, count, base, most_headers)
    chunks = unpack(records, compression, most_bytes)
    if chunks is None:
        return None
    oldest = newest = NO_TIMESTAMP
    first = 0
    in_order = True
    runs = _near(base)
    packed = compression != NONE
    for found in runs_and_columns(chunks, count, packed=packed, runs=runs, most_headers=most_headers):
        if bounds is None:
            pace()
        if isinstance(found, Run):
            oldest = base + found.low if oldest == NO_TIMESTAMP else min(oldest, base + found.low)
            newest = max(newest, base + found.high)
            first += found.count
            continue
        offsets_now, times_now = found
        if isinstance(offsets_now, list) or isinstance(times_now, list):
            in_order = in_order and list(offsets_now) == list(range(first, first + len(offsets_now)))
            low, high = _bounds_of_few(list(times_now), base)
        else:
            in_order = in_order and bool((offsets_now == np.arange(first, first + len(offsets_now))).all())
            low, high = _bounds(times_now, base)
        first += len(offsets_now)
        if low != NO_TIMESTAMP:
            oldest = low if oldest == NO_TIMESTAMP else min(oldest, low)
        newest = max(newest, high)
    return Seen(oldest, newest, in_order)


def _near(base: int) -> bool:
    """Return whether no timestamp of a run can be -1 or overflow Java's long."""
    return NEAR < base < _FAR


def _seen_few(records: Buffer, count: int, base: int, most_headers: int | None) -> Seen:
    if count >= LEAST_RUN and _near(base):
        run = run_of(records, 0, 0, count)
        if run is not None and run.count == count and run.end == len(records):
            return Seen(base + run.low, base + run.high, True)
    offsets, times = all_of(records, count, most_headers)
    oldest, newest = _bounds_of_few(times, base)
    return Seen(oldest, newest, offsets == list(range(count)))


def _bounds_of_few(times: Sequence[int], base: int) -> tuple[int, int]:
    oldest, newest = base + min(times), base + max(times)
    if oldest > NO_TIMESTAMP and newest < 1 << 63:
        return oldest, newest
    stamps = [_wrapped(base + delta) for delta in times]
    return min((stamp for stamp in stamps if stamp != NO_TIMESTAMP), default=NO_TIMESTAMP), max(NO_TIMESTAMP, *stamps)


def _wrapped(timestamp: int) -> int:
    """Return a timestamp wrapped around as Java's long addition does."""
    return (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)


def _bounds(deltas: np.ndarray[tuple[int], np.dtype[np.int64]], base: int) -> tuple[int, int]:
    low, high = int(deltas.min()) + base, int(deltas.max()) + base
    if low > NO_TIMESTAMP and high < 1 << 63:
        return low, high
    stamps = deltas + np.int64(base)
    there = stamps[stamps != NO_TIMESTAMP]
    return int(there.min()) if len(there) else NO_TIMESTAMP, int(stamps.max())


class _NotKnown(Exception):
    """The batch's compression type is unknown."""


def _search(batch: Buffer, header: BatchHeader, timestamp: int, from_offset: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after both, or None.

    Raises `CorruptRecord`, `TooLarge`, `_NotKnown`.
    """
    chunks = unpack(memoryview(batch)[HEADER_SIZE : header.length], header.compression)
    if chunks is None:
        raise _NotKnown
    base, stamped = header.base_timestamp, header.is_log_append_time
    try:
        for rows in columns(chunks, header.count, packed=header.compression != NONE, exact=False):
            offsets, times = np.asarray(rows[0], np.int64), np.asarray(rows[1], np.int64)
            stamps = np.full_like(times, header.max_timestamp) if stamped else times + np.int64(base)
            fits = (stamps >= timestamp) & (offsets >= from_offset - header.base_offset)
            place = int(fits.argmax())
            if fits[place]:
                return header.base_offset + int(offsets[place]), int(stamps[place])
    except ValueError as exc:
        raise CorruptRecord(f"the records of the batch with base offset {header.base_offset} cannot be read") from exc
    return None


def first_at_or_after(batch: Buffer, header: BatchHeader, timestamp: int, from_offset: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after both; the base offset if it cannot be decompressed.

    Raises `CorruptRecord` for records that cannot be read.
    """
    try:
        return _search(batch, header, timestamp, from_offset)
    except (TooLarge, _NotKnown):
        known = header.base_timestamp if header.base_timestamp >= timestamp else header.max_timestamp
        return max(header.base_offset, from_offset), known


def first_newest(batch: Buffer, header: BatchHeader) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record with the batch's max timestamp; of the last record if unknown.

    Raises `CorruptRecord` for records that cannot be read.
    """
    found = None
    with contextlib.suppress(TooLarge, _NotKnown):
        found = _search(batch, header, header.max_timestamp, header.base_offset)
    return found or (header.last_offset, header.max_timestamp)
