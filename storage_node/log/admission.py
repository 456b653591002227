"""What a leader does to produced batches before they are written: checks, offsets, leader epoch, producer sequences.

No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from storage_node.errors import CorruptRecord, ErrorCode, RequestRefused
from storage_node.log.batch import (
    CRC_FIELD,
    CRC_START,
    EPOCH_FIELD,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    MAGIC,
    NO_PRODUCER,
    NO_TIMESTAMP,
    OFFSET_FIELD,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    crc_of,
    headers,
    parse,
    verify,
)
from storage_node.log.config import LOG_APPEND_TIME, LogConfig
from storage_node.log.producer_state import AppendedBatch, ProducerState
from storage_node.log.record_columns import MOST_PACKED_RECORDS
from storage_node.log.records import Bounds, Seen, look_through
from storage_node.log.unpacking import NONE, ZSTD, CannotUnpack, TooLarge

#: As much as tells of which format a batch is, in all formats; the least that any of them takes.
LOG_OVERHEAD, LEAST_BATCH = 17, 26
#: A record's length, attributes, two deltas, the lengths of key and value, and the number of headers.
LEAST_RECORD = 7
MAGIC_AT = 16
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_APPEND_TIME_BIT = 0x08
LAST_EPOCH = 2**31 - 1
Batches = list[tuple[int, BatchHeader]]


#: Bytes of a compressed batch that may unpack to a thousand times as much within a few milliseconds; Zstandard needs
#: next to none for any size.
FEW_BYTES = 4096
#: Records that are checked within a few milliseconds.
FEW_RECORDS = 10_000
#: What of a batch is looked through within a few milliseconds. Clients send next to no batch that has more.
AT_ONCE = Bounds(unpacked=1 << 20, headers=20_000)


class Produced(NamedTuple):
    """A batch of a producer that was looked through; see `inspect`."""

    records: Buffer
    header: BatchHeader
    seen: Seen


@dataclass(frozen=True, slots=True)
class Admitted:
    """Bytes to write, and positions and headers of the batches in them; nothing is written for a `duplicate`."""

    data: bytearray
    batches: Batches
    duplicate: AppendedBatch | None = None


def takes_long(records: Buffer) -> bool:
    """Whether `inspect` may take more than a few milliseconds, as far as the header of the batch shows."""
    if len(records) < HEADER_SIZE:
        return False
    header = parse(records, 0)
    if header.compression == NONE:
        return len(records) > FEW_RECORDS * LEAST_RECORD and header.count > FEW_RECORDS
    many = FEW_RECORDS < header.count <= MOST_PACKED_RECORDS
    return many or header.compression == ZSTD or len(records) > FEW_BYTES


class TakesLong(Exception):
    """Looking through a batch takes more than a few milliseconds."""


def inspect_at_once(records: Buffer, config: LogConfig) -> Produced:
    """Return what `inspect` does, within a few milliseconds. Raises `TakesLong` where it takes more."""
    return inspect(records, config, AT_ONCE)


def inspect(records: Buffer, config: LogConfig, bounds: Bounds | None = None) -> Produced:
    """Check what a producer sent for one partition: one batch, whole, whose records all consumers can read.

    Needs neither the log nor its lock, and takes as long as unpacking does. Raises `CorruptRecord`, or `RequestRefused`
    with MESSAGE_TOO_LARGE, INVALID_RECORD, or UNKNOWN_SERVER_ERROR for what cannot be unpacked, as Apache Kafka does;
    `TakesLong` for what is beyond `bounds`.
    """
    header = _only_batch(records)
    verify(records, 0, header)
    if header.length > config.max_message_bytes:
        raise RequestRefused(
            f"The record batch size of {header.length} bytes exceeds max.message.bytes of {config.max_message_bytes}",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    _refuse_unproducible(header)
    try:
        seen = look_through(records, header, bounds)
    except TooLarge as exc:
        if bounds is not None:
            raise TakesLong from None
        # A client that is told this divides the batch.
        raise RequestRefused(f"A record batch {exc}", ErrorCode.MESSAGE_TOO_LARGE) from exc
    except CannotUnpack as exc:
        raise RequestRefused(f"A record batch cannot be unpacked: {exc}", ErrorCode.UNKNOWN_SERVER_ERROR) from exc
    except ValueError as exc:
        raise RequestRefused(f"A record batch has {exc}", ErrorCode.INVALID_RECORD) from exc
    if seen is None:
        raise RequestRefused(
            f"A record batch has compression type {header.compression}, which does not exist",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    if not seen.in_order and header.compression != NONE:
        raise RequestRefused(
            "A compressed record batch has offsets that do not rise by one", ErrorCode.UNKNOWN_SERVER_ERROR
        )
    return Produced(records, header, seen)


def _only_batch(records: Buffer) -> BatchHeader:
    """The header of the one batch that a produce request holds for a partition (KAFKA-2617 and its successors)."""
    size = len(records)
    if size < LOG_OVERHEAD:
        raise RequestRefused("a produce request holds exactly one record batch, not none", ErrorCode.INVALID_RECORD)
    length, magic = _LENGTH.unpack_from(records, _LENGTH_AT)[0] + PREFIX_SIZE, records[MAGIC_AT]
    if length < LEAST_BATCH or magic > MAGIC:
        raise CorruptRecord(f"a batch of {length} bytes with magic {magic}")
    if magic != MAGIC:
        raise RequestRefused(f"a record batch with magic {magic} instead of {MAGIC}", ErrorCode.INVALID_RECORD)
    if length > size:
        raise RequestRefused(f"{size} bytes of a batch of {length}: it is not whole", ErrorCode.INVALID_RECORD)
    if length < HEADER_SIZE:
        raise CorruptRecord(f"a batch of {length} bytes, less than a header")
    if length < size:
        if size - length >= LOG_OVERHEAD and (
            _LENGTH.unpack_from(records, length + _LENGTH_AT)[0] + PREFIX_SIZE >= LEAST_BATCH
            and records[length + MAGIC_AT] <= MAGIC
        ):
            raise RequestRefused(
                "a produce request holds exactly one record batch for each partition", ErrorCode.INVALID_RECORD
            )
        raise CorruptRecord(f"{size - length} bytes behind a record batch are none")
    return parse(records)


def is_zstandard(records: Buffer) -> bool:
    """Whether the first batch is compressed with Zstandard; False for what is no batch."""
    if len(records) < HEADER_SIZE:
        return False
    header = parse(records)
    return header.magic == MAGIC and header.compression == ZSTD


def admit_produced(
    produced: Produced, *, offset: int, leader_epoch: int, config: LogConfig, producers: ProducerState, now_ms: int
) -> Admitted:
    """Give a produced batch its offset, unless its timestamps or its producer's state say otherwise.

    Raises `OutOfOrderSequence`, `InvalidProducerEpoch`, or `RequestRefused` with INVALID_TIMESTAMP.
    """
    header, seen = produced.header, produced.seen
    stamped = config.message_timestamp_type == LOG_APPEND_TIME
    if not stamped:
        _refuse_untimely(seen, config, now_ms)
    elif header.is_log_append_time:
        raise RequestRefused("A producer has set the timestamp type to LogAppendTime", ErrorCode.INVALID_TIMESTAMP)
    if header.producer_id != NO_PRODUCER:
        known = producers.get(header.producer_id)
        duplicate = known.duplicate_of(header) if known else None
        if duplicate is not None:
            return Admitted(bytearray(), [], duplicate)
        if known is not None:
            known.refuse_unless_next(header)
    data = bytearray(produced.records)
    OFFSET_FIELD.pack_into(data, 0, offset)
    EPOCH_FIELD.pack_into(data, LEADER_EPOCH_AT, leader_epoch)
    if stamped:
        header = _stamp(data, header, header.attributes | _APPEND_TIME_BIT, now_ms)
    elif header.max_timestamp != seen.newest or header.is_log_append_time:
        # The time index and every search by time go by the header.
        header = _stamp(data, header, header.attributes & ~_APPEND_TIME_BIT, seen.newest)
    header = header._replace(base_offset=offset, leader_epoch=leader_epoch)
    return Admitted(data, [(0, header)])


def _refuse_unproducible(header: BatchHeader) -> None:
    wrong = None
    if header.base_offset != 0:
        wrong = f"has the base offset {header.base_offset} instead of 0"
    elif header.count <= 0 or header.count != header.last_offset_delta + 1:
        wrong = f"says {header.count} records, its offsets are those of {header.last_offset_delta + 1}"
    elif header.is_control:
        wrong = "is a control batch, which clients may not write"
    elif header.is_transactional:
        wrong = "is part of a transaction; transactions are not supported"
    elif header.producer_id != NO_PRODUCER and (header.base_sequence < 0 or header.producer_epoch < 0):
        wrong = f"has producer id {header.producer_id} without a sequence or an epoch"
    if wrong is not None:
        raise RequestRefused(f"A record batch {wrong}", ErrorCode.INVALID_RECORD)


def _refuse_untimely(seen: Seen, config: LogConfig, now_ms: int) -> None:
    """-1 is no timestamp."""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for time in (seen.oldest, seen.newest):
        if time != NO_TIMESTAMP and not earliest <= time <= latest:
            raise RequestRefused(
                f"Timestamp {time} of a record is out of range. The timestamp should be within [{earliest}, {latest}]",
                ErrorCode.INVALID_TIMESTAMP,
            )


def _stamp(data: bytearray, header: BatchHeader, attributes: int, timestamp: int) -> BatchHeader:
    """Set attributes and the largest timestamp, which are inside what the CRC covers."""
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc_of(data, 0, header.length)
    CRC_FIELD.pack_into(data, CRC_START - CRC_FIELD.size, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp, crc=crc)


class UnexpectedAppendOffset(RequestRefused):
    """A copied batch does not follow the log's end."""

    code = ErrorCode.INVALID_RECORD


def admit_copied(records: Buffer, *, offset: int, empty: bool, epoch: int = LAST_EPOCH) -> Batches:
    """Check copied batches, which keep their offsets; the first may begin before `offset` only if the log is empty.

    Then it may be one that holds `offset`: a log whose start lies inside a batch is copied from that batch on. `epoch`:
    the leader epoch that they were fetched under. Raises `CorruptRecord`, `UnexpectedAppendOffset`, or `RequestRefused`
    with FENCED_LEADER_EPOCH for a batch of a later epoch.
    """
    batches = list(headers(records))
    expected = offset
    for position, header in batches:
        verify(records, position, header)
        if header.leader_epoch > epoch:
            # Its sender lost the leadership, truncated and appended while it sent (KAFKA-18723): with this batch the
            # copy would never learn that those before it may be others than the new leader's.
            raise RequestRefused(
                f"a batch at offset {header.base_offset} is of leader epoch {header.leader_epoch}, which is later than "
                f"{epoch}, under which it was fetched",
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        if header.base_offset < expected:
            straddles = empty and position == 0 and header.next_offset > offset
            if not straddles:
                raise UnexpectedAppendOffset(
                    f"a batch with base offset {header.base_offset} does not follow offset {expected}"
                )
        expected = header.next_offset
    return batches
