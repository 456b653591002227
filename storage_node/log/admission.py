"""What a leader does to produced batches before they are written: checks, offsets, leader epoch, producer sequences.

No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage_node.errors import CorruptRecord, ErrorCode, RequestRefused
from storage_node.log.batch import (
    CRC_FIELD,
    CRC_START,
    EPOCH_FIELD,
    LEADER_EPOCH_AT,
    NO_PRODUCER,
    OFFSET_FIELD,
    BatchHeader,
    Buffer,
    crc_of,
    headers,
    verify,
)
from storage_node.log.config import LOG_APPEND_TIME, LogConfig
from storage_node.log.producer_state import AppendedBatch, Producer, ProducerState
from storage_node.log.records import holds_its_count

_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_APPEND_TIME_BIT = 0x08

Batches = list[tuple[int, BatchHeader]]


@dataclass(frozen=True, slots=True)
class Admitted:
    """Bytes to write, and positions and headers of the batches in them; with `duplicates` there is nothing to write."""

    data: bytearray
    batches: Batches
    duplicates: tuple[AppendedBatch, ...] = ()


def admit_produced(
    records: Buffer, *, offset: int, leader_epoch: int, config: LogConfig, producers: ProducerState, now_ms: int
) -> Admitted:
    """Check produced batches and give them offsets from `offset` on.

    Raises `CorruptRecord`, `OutOfOrderSequence`, `InvalidProducerEpoch`, or `RequestRefused` with MESSAGE_TOO_LARGE,
    INVALID_TIMESTAMP or INVALID_RECORD.
    """
    data = bytearray(records)
    view = memoryview(data)
    batches: Batches = []
    duplicates: list[AppendedBatch] = []
    pending: dict[int, Producer] = {}
    stamped = config.message_timestamp_type == LOG_APPEND_TIME
    for position, header in headers(data):
        verify(data, position, header)
        _refuse_unproducible(header, config)
        if not stamped:
            _refuse_untimely(header, config, now_ms)
        if not holds_its_count(view[position:], header):
            raise RequestRefused(
                f"A record batch says {header.count} records and holds another number", ErrorCode.INVALID_RECORD
            )
        if header.producer_id != NO_PRODUCER:
            known = pending.get(header.producer_id) or producers.get(header.producer_id)
            duplicate = known.duplicate_of(header) if known else None
            if duplicate is not None:
                duplicates.append(duplicate)
                continue
            if known is not None:
                known.refuse_unless_next(header)
        OFFSET_FIELD.pack_into(data, position, offset)
        EPOCH_FIELD.pack_into(data, position + LEADER_EPOCH_AT, leader_epoch)
        if stamped:
            header = _stamp(data, position, header, now_ms)
        header = header._replace(base_offset=offset, leader_epoch=leader_epoch)
        if header.producer_id != NO_PRODUCER:
            known = pending.get(header.producer_id) or producers.get(header.producer_id)
            pending[header.producer_id] = (known or Producer(header.producer_epoch)).appended(header)
        offset = header.next_offset
        batches.append((position, header))
    if duplicates and batches:
        raise RequestRefused(
            "one append holds batches that were appended before and batches that were not", ErrorCode.INVALID_RECORD
        )
    if not duplicates and not batches:
        raise CorruptRecord("an append without a record batch")
    return Admitted(data, batches, tuple(duplicates))


def _refuse_unproducible(header: BatchHeader, config: LogConfig) -> None:
    if header.length > config.max_message_bytes:
        raise RequestRefused(
            f"The record batch size of {header.length} bytes exceeds max.message.bytes of {config.max_message_bytes}",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    wrong = None
    if header.count != header.last_offset_delta + 1:
        wrong = f"says {header.count} records, its offsets are those of {header.last_offset_delta + 1}"
    elif header.is_control:
        wrong = "is a control batch, which clients may not write"
    elif header.is_transactional:
        wrong = "is part of a transaction; transactions are not supported"
    elif header.producer_id != NO_PRODUCER and (header.base_sequence < 0 or header.producer_epoch < 0):
        wrong = f"has producer id {header.producer_id} without a sequence or an epoch"
    if wrong is not None:
        raise RequestRefused(f"A record batch {wrong}", ErrorCode.INVALID_RECORD)


def _refuse_untimely(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """By the batch's newest and first timestamps: records are not looked into. -1 is none."""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for time in (header.base_timestamp, header.max_timestamp):
        if time != -1 and not earliest <= time <= latest:
            raise RequestRefused(
                f"Timestamp {time} of a record batch is out of range. The timestamp should be within "
                f"[{earliest}, {latest}]",
                ErrorCode.INVALID_TIMESTAMP,
            )


def _stamp(data: bytearray, position: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Set the append time (LogAppendTime), which is inside what the CRC covers."""
    attributes = header.attributes | _APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(data, position + _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, position + _MAX_TIMESTAMP_AT, now_ms)
    crc = crc_of(data, position, header.length)
    CRC_FIELD.pack_into(data, position + CRC_START - CRC_FIELD.size, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


class UnexpectedAppendOffset(RequestRefused):
    """A copied batch does not follow the log's end."""

    code = ErrorCode.INVALID_RECORD


def admit_copied(records: Buffer, *, offset: int, empty: bool) -> Batches:
    """Check copied batches, which keep their offsets; the first may begin before `offset` only if the log is empty.

    Then it may be one that holds `offset`: a log whose start lies inside a batch is copied from that batch on. Raises
    `CorruptRecord`, `UnexpectedAppendOffset`.
    """
    batches = list(headers(records))
    expected = offset
    for position, header in batches:
        verify(records, position, header)
        if header.base_offset < expected:
            straddles = empty and position == 0 and header.next_offset > offset
            if not straddles:
                raise UnexpectedAppendOffset(
                    f"a batch with base offset {header.base_offset} does not follow offset {expected}"
                )
        expected = header.next_offset
    return batches
