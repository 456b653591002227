"""The envelope of Produce requests and responses, decoded and encoded with struct; records stay a view of the frame."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from storage_node.log.admission import Produced, is_zstandard
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.leaders import Leader, endpoints
from storage_node.protocol.request import Request
from storage_node.replication.leading import LeaderState
from storage_node.wire.codec import MAX_PARTITIONS, Cursor
from storage_node.wire.primitives import array, short_message, string

_RESULT = struct.Struct(">ihqqq")
_RESULT_V4 = struct.Struct(">ihqq")


class Rejection(NamedTuple):
    """Why an inspected batch is rejected.

    Not the exception: its traceback refers back to the item, a reference cycle that would keep the request in memory.
    """

    code: ErrorCode
    message: str


@dataclass(slots=True)
class Item:
    """One partition's records and the result of their append."""

    topic: str
    partition: int
    records: memoryview | None
    topic_id: bytes = b""
    leader: Leader | None = None
    error: int = 0
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    message: str = ""
    for_all: bool = False
    """Whether the response waits for all in-sync replicas (acks=all)."""
    next_offset: int = -1
    """The offset after the last record."""
    state: LeaderState | None = None
    """The leader state that reports when the followers have the records."""
    heavy: bool = False
    """Whether the records may be expensive to validate, and are not validated yet."""
    long: bool = False
    """Whether the validation has proved expensive."""
    inspected: Produced | Rejection | None = None
    """The result of a validation by a thread for expensive batches."""


class ProduceCall(NamedTuple):
    """A request's envelope."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    items: list[Item]
    elements: int = 0


def parse(request: Request, most: int = MAX_PARTITIONS) -> ProduceCall:
    """Decode the envelope; raises MalformedRequest, or TooManyElements if there are more than `most`."""
    flexible, by_id = request.version >= 9, request.version >= 13
    view = request.frame if isinstance(request.frame, memoryview) else memoryview(request.frame)
    cursor = Cursor(view, request.position, most)
    zstandard = request.version >= 7
    transactional_id = cursor.string(flexible)
    acks = cursor.int16()
    timeout = cursor.int32()
    items: list[Item] = []
    for _ in range(cursor.count(flexible)):
        topic, topic_id = cursor.topic(flexible, by_id)
        for _ in range(cursor.count(flexible)):
            partition = cursor.int32()
            size = cursor.varint() - 1 if flexible else cursor.int32()
            records = None
            if size >= 0:
                start = cursor.position
                cursor.skip(size)
                records = view[start : cursor.position]
            if flexible:
                cursor.tagged()
            item = Item(topic, partition, records, topic_id)
            if not zstandard and records and is_zstandard(records):
                # Consumers of that age cannot read Zstandard (KIP-110).
                item.error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                item.message = f"Produce version {request.version} is not allowed to use Zstandard"
            items.append(item)
        if flexible:
            cursor.tagged()
    return ProduceCall(transactional_id, acks, timeout, items, cursor.elements)


def encode(version: int, items: list[Item]) -> bytes:
    """Encode the response body."""
    flexible = version >= 9
    topics: dict[str | bytes, list[Item]] = {}
    for item in items:
        topics.setdefault(item.topic_id or item.topic, []).append(item)
    out = bytearray(array(len(topics), flexible))
    for name, rows in topics.items():
        out += (name if isinstance(name, bytes) else string(name, flexible)) + array(len(rows), flexible)
        for row in rows:
            if version >= 5:
                out += _RESULT.pack(row.partition, row.error, row.base_offset, row.append_time, row.log_start)
            else:
                out += _RESULT_V4.pack(row.partition, row.error, row.base_offset, row.append_time)
            if version >= 8:
                # No errors of single records (KIP-467), but a message with each error.
                null = b"\x00" if flexible else b"\xff\xff"
                out += array(0, flexible) + (string(short_message(row.message), flexible) if row.error else null)
            if flexible:
                out += row.leader.tagged(0) if row.leader is not None and version >= 10 else b"\x00"
        if flexible:
            out += b"\x00"
    out += b"\x00\x00\x00\x00"
    if flexible:
        out += endpoints(item.leader for item in items) if version >= 10 else b"\x00"
    return bytes(out)
