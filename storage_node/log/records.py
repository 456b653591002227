"""Looking inside a batch: how many records it really holds, and which of them has a timestamp."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from storage_node.errors import CorruptRecord
from storage_node.log.batch import HEADER_SIZE, BatchHeader, Buffer
from storage_node.log.unpacking import NONE, TooLarge, Unpacked, unpack

_Source = Buffer | Unpacked


def _varint(data: _Source, position: int) -> tuple[int, int]:
    """A zigzag varint at `position`: its value and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def timestamps(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]] | None:
    """(offset, timestamp) of every record of a batch; None if its compression is not known.

    Raises `CorruptRecord` (also while iterating) for records that cannot be read, and `TooLarge` while iterating.
    """
    payload = unpack(memoryview(batch)[HEADER_SIZE : header.length], header.compression)
    return None if payload is None else _walk(payload, header)


def _walk(payload: _Source, header: BatchHeader) -> Iterator[tuple[int, int]]:
    position = 0
    try:
        for _ in range(header.count):
            length, start = _varint(payload, position)
            delta_ms, after = _varint(payload, start + 1)
            delta, _end = _varint(payload, after)
            timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + delta_ms
            yield header.base_offset + delta, timestamp
            if length <= 0:
                raise ValueError("a record without a length")
            position = start + length
    except (IndexError, ValueError) as exc:
        raise CorruptRecord(f"the records of the batch with base offset {header.base_offset} cannot be read") from exc


def holds_its_count(batch: Buffer, header: BatchHeader) -> bool:
    """Whether an uncompressed batch, from its header on, holds exactly as many records as its header says.

    Only the records' lengths are looked at; one that is longer than its batch, or ends before it, does not count. A
    compressed batch is believed: unpacking it costs more than all the rest of an append.
    """
    if header.compression != NONE:
        return True
    data, position, end = batch, HEADER_SIZE, header.length
    try:
        for _ in range(header.count):
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
            else:
                # Two bytes hold the length of all but the largest records.
                second = data[position + 1]
                if second < 0x80:
                    position += 2 + ((second << 6) | ((byte & 0x7F) >> 1))
                else:
                    length, position = _varint(data[:end], position)
                    position += length
                    if length < 0:
                        return False
                    byte = 0
            # The lowest bit is the sign: no record has a negative length.
            if byte & 1:
                return False
        return position == end
    except (IndexError, ValueError):
        return False


def first_at_or_after(batch: Buffer, header: BatchHeader, timestamp: int, from_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after both; the base offset where it is not unpacked."""
    rows = timestamps(batch, header)
    if rows is not None:
        with contextlib.suppress(TooLarge):
            return next((row for row in rows if row[1] >= timestamp and row[0] >= from_offset), None)
    known = header.base_timestamp if header.base_timestamp >= timestamp else header.max_timestamp
    return max(header.base_offset, from_offset), known
