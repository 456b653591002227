"""Validation of produced and copied batches before the log writes them: checks, offsets, leader epoch, sequences.

No I/O; the counterpart of Kafka's LogValidator.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from storage_node.errors import CorruptRecord, RequestRefused
from storage_node.log.batches.batch import (
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
from storage_node.log.batches.record_columns import MOST_PACKED_RECORDS
from storage_node.log.batches.records import Bounds, Seen, look_through
from storage_node.log.batches.unpacking import NONE, ZSTD, CannotUnpack, TooLarge
from storage_node.log.config import LOG_APPEND_TIME, LogConfig
from storage_node.log.producers.state import AppendedBatch, ProducerState
from storage_node.model.error_codes import ErrorCode

#: Bytes that show a batch's format version, in every version; the smallest batch that any version allows.
LOG_OVERHEAD, LEAST_BATCH = 17, 26
#: Length, attributes, timestamp and offset deltas, key length, value length and header count of an empty record.
LEAST_RECORD = 7
MAGIC_AT = 16
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_COMPRESSION_AT, _COMPRESSION = _ATTRIBUTES_AT + 1, 0x07
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_APPEND_TIME_BIT = 0x08
LAST_EPOCH = 2**31 - 1
Batches = list[tuple[int, BatchHeader]]


#: A compressed batch of more bytes may take longer than a few milliseconds to unpack: up to a thousand times as many
#: bytes come of it, and of Zstandard almost any number of so few.
FEW_BYTES = 4096
#: Records that are checked within a few milliseconds.
FEW_RECORDS = 10_000
#: What the listener's thread validates of a batch within a few milliseconds; almost no client sends a larger batch.
AT_ONCE = Bounds(unpacked=1 << 20, headers=20_000)


class Produced(NamedTuple):
    """A produced batch that `inspect` has validated."""

    records: Buffer
    header: BatchHeader
    seen: Seen


@dataclass(frozen=True, slots=True)
class Admitted:
    """Bytes to append, with the position and header of each batch in them; empty for a `duplicate`."""

    data: bytearray
    batches: Batches
    duplicate: AppendedBatch | None = None


def takes_long(records: Buffer) -> bool:
    """Return whether `inspect` may take more than a few milliseconds, judged by the batch's header alone."""
    if len(records) < HEADER_SIZE:
        return False
    if records[_COMPRESSION_AT] & _COMPRESSION == NONE and len(records) <= FEW_RECORDS * LEAST_RECORD:
        return False  # as almost every batch, without decoding its header
    header = parse(records, 0)
    if header.compression == NONE:
        return header.count > FEW_RECORDS
    many = FEW_RECORDS < header.count <= MOST_PACKED_RECORDS
    return many or header.compression == ZSTD or len(records) > FEW_BYTES


class TakesLong(Exception):
    """The validation of a batch takes more than a few milliseconds."""


def inspect_at_once(records: Buffer, config: LogConfig) -> Produced:
    """Validate like `inspect`, but raise `TakesLong` for a batch that takes more than a few milliseconds."""
    return inspect(records, config, AT_ONCE)


def inspect(records: Buffer, config: LogConfig, bounds: Bounds | None = None) -> Produced:
    """Validate what a producer sent for one partition: exactly one whole batch, whose records every consumer can read.

    Needs neither the log nor its lock, and takes as long as decompression does. Raises `CorruptRecord`;
    `RequestRefused` with MESSAGE_TOO_LARGE, INVALID_RECORD, or UNKNOWN_SERVER_ERROR for data that cannot be
    decompressed, as Apache Kafka responds; `TakesLong` for a batch that exceeds `bounds`.
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
        # MESSAGE_TOO_LARGE makes the client split the batch.
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
    """Return the header of the only batch that a produce request holds for a partition (see KAFKA-2617)."""
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
    """Return whether the first batch is compressed with Zstandard; False for bytes that are not a batch."""
    if len(records) < HEADER_SIZE:
        return False
    header = parse(records)
    return header.magic == MAGIC and header.compression == ZSTD


def admit_produced(
    produced: Produced, *, offset: int, leader_epoch: int, config: LogConfig, producers: ProducerState, now_ms: int
) -> Admitted:
    """Assign the offset and leader epoch to a produced batch, or return the append that it duplicates.

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
        # The time index and every timestamp lookup use the header's max timestamp.
        header = _stamp(data, header, header.attributes & ~_APPEND_TIME_BIT, seen.newest)
    header = header._replace(base_offset=offset, leader_epoch=leader_epoch)
    return Admitted(data, [(0, header)])


def _refuse_unproducible(header: BatchHeader) -> None:
    wrong = None
    if header.base_offset != 0:
        wrong = f"has the base offset {header.base_offset} instead of 0"
    elif header.count <= 0 or header.count != header.last_offset_delta + 1:
        wrong = f"has {header.count} records in its header, but offsets for {header.last_offset_delta + 1}"
    elif header.is_control:
        wrong = "is a control batch, which clients may not write"
    elif header.is_transactional:
        wrong = "is part of a transaction; transactions are not supported"
    elif header.producer_id != NO_PRODUCER and (header.base_sequence < 0 or header.producer_epoch < 0):
        wrong = f"has producer id {header.producer_id} without a sequence or an epoch"
    if wrong is not None:
        raise RequestRefused(f"A record batch {wrong}", ErrorCode.INVALID_RECORD)


def _refuse_untimely(seen: Seen, config: LogConfig, now_ms: int) -> None:
    """Reject timestamps out of message.timestamp.{before,after}.max.ms; -1 means that a record has no timestamp."""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for time in (seen.oldest, seen.newest):
        if time != NO_TIMESTAMP and not earliest <= time <= latest:
            raise RequestRefused(
                f"Timestamp {time} of a record is out of range. The timestamp should be within [{earliest}, {latest}]",
                ErrorCode.INVALID_TIMESTAMP,
            )


def _stamp(data: bytearray, header: BatchHeader, attributes: int, timestamp: int) -> BatchHeader:
    """Set the attributes and the max timestamp, and recompute the CRC, which covers both."""
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc_of(data, 0, header.length)
    CRC_FIELD.pack_into(data, CRC_START - CRC_FIELD.size, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp, crc=crc)


class UnexpectedAppendOffset(RequestRefused):
    """A copied batch does not follow the log end offset."""

    code = ErrorCode.INVALID_RECORD


def admit_copied(records: Buffer, *, offset: int, empty: bool, epoch: int = LAST_EPOCH) -> Batches:
    """Validate copied batches, which keep their offsets, and return them with their positions.

    Only an empty log accepts a first batch that begins before `offset`, if the batch holds `offset`: a log whose log
    start offset lies inside a batch is copied from that batch on. `epoch`: the leader epoch under which they were
    fetched. Raises `CorruptRecord`, `UnexpectedAppendOffset`, or `RequestRefused` with FENCED_LEADER_EPOCH for a
    batch of a later epoch.
    """
    batches = list(headers(records))
    expected = offset
    for position, header in batches:
        verify(records, position, header)
        if header.leader_epoch > epoch:
            # The sender lost the leadership, truncated and appended while it responded (KAFKA-18723). If the copy
            # appended this batch, it would not detect later that the batches before it diverge from the new leader's.
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
