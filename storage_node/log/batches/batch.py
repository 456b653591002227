"""Kafka's record batch, version 2: its header, its checks, and a builder for tests and benchmarks.

Only headers are parsed here; `records` reads what is inside a batch. All numbers are big-endian. The CRC-32C covers
everything from the attributes on, so that a broker can rewrite base offset and partition leader epoch without
recomputing it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import crc32c as _crc32c

from storage_node.errors import CorruptRecord

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
"""The 61 bytes of the header, from base offset to record count."""
HEADER_SIZE = HEADER.size
PREFIX_SIZE = 12
"""The base offset and the length field itself, which the length does not include."""
MIN_LENGTH = HEADER_SIZE - PREFIX_SIZE
CRC_START = 21
"""Position of the first byte that the CRC covers."""
LEADER_EPOCH_AT = 12
MAGIC = 2
NO_PRODUCER = -1
NO_TIMESTAMP = -1

OFFSET_FIELD = struct.Struct(">q")
EPOCH_FIELD = struct.Struct(">i")
CRC_FIELD = struct.Struct(">I")

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


class BatchHeader(NamedTuple):
    """The header of a batch. A named tuple rather than a dataclass, since the hot path creates one per batch.

    `length` is that of the whole batch in bytes, including the base offset and the length field. Timestamps are
    milliseconds since the epoch; -1 means none.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the protocol's name; tuple.count is not used on headers

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The compression type: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamp: every record then has the batch's max timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch, such as a transaction marker."""
        return bool(self.attributes & _CONTROL_BIT)


def parse(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position` without checking it; the buffer must hold all of its 61 bytes."""
    base_offset, length, *rest = HEADER.unpack_from(buffer, position)
    return BatchHeader(base_offset, length + PREFIX_SIZE, *rest)


def problem(header: BatchHeader) -> str | None:
    """Return what is invalid in a header by itself (magic, length, counts, offsets), or None."""
    if header.magic != MAGIC:
        return f"magic {header.magic} instead of {MAGIC}"
    if header.length < HEADER_SIZE:
        return f"a length of {header.length} bytes, less than a header"
    if header.last_offset_delta < 0 or header.count < 0:
        return f"a last offset delta of {header.last_offset_delta} and {header.count} records"
    if header.base_offset < 0:
        return f"a base offset of {header.base_offset}"
    return None


def headers(buffer: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of every batch from `start` to the end of the buffer.

    Raises `CorruptRecord` at an invalid header and at a batch that the buffer does not hold entirely.
    """
    end = len(buffer)
    position = start
    unpack = HEADER.unpack_from
    while position < end:
        if end - position < HEADER_SIZE:
            raise CorruptRecord(f"{end - position} bytes at position {position} are less than a batch's header")
        fields = unpack(buffer, position)
        header = BatchHeader(fields[0], fields[1] + PREFIX_SIZE, *fields[2:])
        if header.magic != MAGIC or header.length < HEADER_SIZE or header.last_offset_delta < 0 or header.count < 0:
            raise CorruptRecord(f"the batch at position {position} has {problem(header)}")
        if position + header.length > end:
            raise CorruptRecord(
                f"the batch at position {position} has {header.length} bytes, but only {end - position} are present"
            )
        yield position, header
        position += header.length


def checksum(data: Buffer) -> int:
    """Return the CRC-32C."""
    return int(_crc32c.crc32c(data))


def crc_of(buffer: Buffer, position: int, length: int) -> int:
    """Return the CRC-32C of the batch of `length` bytes at `position`, computed from its bytes."""
    return checksum(memoryview(buffer)[position + CRC_START : position + length])


def verify(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check the CRC-32C of the batch at `position`; raises `CorruptRecord`."""
    found = crc_of(buffer, position, header.length)
    if found != header.crc:
        raise CorruptRecord(
            f"the batch with base offset {header.base_offset} at position {position} has CRC {header.crc:#010x}, "
            f"its bytes have {found:#010x}"
        )


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _optional(field: bytes | None) -> bytes:
    return _varint(-1) if field is None else _varint(len(field)) + field


def _record(index: int, delta_ms: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join((b"\0", _varint(delta_ms), _varint(index), _optional(key), _optional(value), _varint(0)))
    return _varint(len(body)) + body


def build_batch(
    values: Iterable[bytes | None],
    *,
    base_offset: int = 0,
    timestamp: int = 0,
    timestamps: Iterable[int] | None = None,
    keys: Iterable[bytes | None] | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """Build an uncompressed batch of these values, for tests and benchmarks.

    `timestamp` is the first record's in milliseconds, and each next record is a millisecond later; `timestamps` sets
    them individually.
    """
    rows = list(values)
    times = list(timestamps) if timestamps is not None else [timestamp + i for i in range(len(rows))]
    names = list(keys) if keys is not None else [None] * len(rows)
    first = times[0] if times else timestamp
    body = b"".join(_record(i, times[i] - first, names[i], value) for i, value in enumerate(rows))
    out = bytearray(HEADER_SIZE + len(body))
    out[HEADER_SIZE:] = body
    HEADER.pack_into(
        out, 0, base_offset, len(out) - PREFIX_SIZE, leader_epoch, MAGIC, 0, attributes, max(len(rows) - 1, 0), first,
        max(times, default=first), producer_id, producer_epoch, base_sequence, len(rows),
    )  # fmt: skip
    CRC_FIELD.pack_into(out, CRC_START - 4, crc_of(out, 0, len(out)))
    return bytes(out)
