"""A follower's requests and their responses: Fetch version 17 by topic id, ListOffsets version 5; with struct.

In a fetch session a request names only the partitions that have changed since the last one. Every length in a response
is checked against the bytes present.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storage_node.wire.primitives import array, string, varint

FETCH, FETCH_VERSION = 1, 17
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 5
LATEST, EARLIEST = -1, -2
#: (id, epoch) of a full fetch that requests no session (KIP-227).
NO_SESSION = (0, -1)
#: A topic id and a partition number.
Key = tuple[bytes, int]

_HEAD = struct.Struct(">hhi")
_FETCH_HEAD = struct.Struct(">iiibii")
ROW = struct.Struct(">iiqiqiB")
"""Partition, leader epoch, offset, last fetched epoch, log start, max bytes, no tagged fields."""
_ANSWER = struct.Struct(">i")
_FETCH_ANSWER = struct.Struct(">ihi")
_EMPTY = struct.Struct(">ihqqqBiBB")
_FIXED = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_STATE = struct.Struct(">iq")
_OFFSET_ROW = struct.Struct(">ihqqi")
_SPAN = struct.Struct(">qiibIhi")
_PREFIX = 12
_SMALLEST = 61
_ID = 16


class BadResponse(ValueError):
    """Bytes that are not a valid response to the request; the caller closes the connection."""


class FetchRow(NamedTuple):
    """A partition's part of a Fetch response. `records` lies in the connection's buffer, valid until the next receive.

    `diverging`: the epoch and its end offset at the leader, to which the follower truncates (KIP-595); `leader`: the
    current leader and its epoch, if the responding node does not lead.
    """

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: memoryview
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None


class AskedRow(NamedTuple):
    """A partition's part of a Fetch request: `fetched` is the epoch of the follower's last record."""

    epoch: int
    offset: int
    fetched: int
    start: int
    most: int


def fetch_request(
    correlation: int,
    rows: Iterable[tuple[Key, AskedRow]],
    *,
    client: str,
    replica: int,
    broker_epoch: int,
    wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session: tuple[int, int] = NO_SESSION,
    forgotten: Iterable[Key] = (),
) -> bytearray:
    """Return a Fetch request, preceded by its size; `session` is the session's id and epoch (KIP-227)."""
    out = bytearray(4)
    out += _HEAD.pack(FETCH, FETCH_VERSION, correlation) + len(client).to_bytes(2, "big") + client.encode() + b"\0"
    out += _FETCH_HEAD.pack(wait_ms, min_bytes, max_bytes, 0, *session)
    topics: dict[bytes, list[bytes]] = {}
    for (topic_id, number), row in rows:
        packed = ROW.pack(number, row.epoch, row.offset, row.fetched, row.start, row.most, 0)
        topics.setdefault(topic_id, []).append(packed)
    out += array(len(topics), True)
    for topic_id, found in topics.items():
        out += topic_id + array(len(found), True) + b"".join(found) + b"\0"
    gone: dict[bytes, list[int]] = {}
    for topic_id, number in forgotten:
        gone.setdefault(topic_id, []).append(number)
    out += array(len(gone), True)
    for topic_id, numbers in gone.items():
        out += topic_id + array(len(numbers), True) + struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
    out += string("", True)
    state = _STATE.pack(replica, broker_epoch) + b"\0"
    out += b"\x01\x01" + varint(len(state)) + state
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return out


def read_session(view: memoryview, correlation: int) -> tuple[int, int]:
    """Return the error and the session id of a Fetch response; raises BadResponse."""
    reader = _Reader(view)
    reader.correlation(correlation, flexible=True)
    _throttled, error, session = reader.take(_FETCH_ANSWER)
    return error, session


def read_response(view: memoryview, correlation: int) -> Iterator[FetchRow]:
    """Return the rows of a Fetch response; raises BadResponse, also for an error of the whole request."""
    reader = _Reader(view)
    reader.correlation(correlation, flexible=True)
    _throttled, error, _session = reader.take(_FETCH_ANSWER)
    if error:
        raise BadResponse(f"the leader rejected the fetch with error {error}")
    return _rows(reader)


def _rows(reader: _Reader) -> Iterator[FetchRow]:
    view, end = reader.view, reader.end
    nothing = view[:0]
    for _ in range(reader.count()):
        topic_id = bytes(reader.bytes(_ID))
        for _ in range(reader.count()):
            at = reader.at
            if at + _EMPTY.size <= end:
                number, error, mark, _stable, start, aborted, _, size, tags = _EMPTY.unpack_from(view, at)
                if aborted <= 1 and size <= 1 and not tags:
                    reader.at = at + _EMPTY.size
                    yield FetchRow(topic_id, number, error, mark, start, nothing)
                    continue
            number, error, mark, _stable, start = reader.take(_FIXED)
            for _ in range(reader.count()):
                reader.bytes(16)
                reader.skip_tags()
            reader.bytes(4)
            size = reader.varint() - 1
            records = reader.bytes(size) if size > 0 else nothing
            diverging = leader = None
            for tag, value in reader.tags():
                if tag == 0 and len(value) >= _DIVERGING.size:
                    diverging = _DIVERGING.unpack_from(value)
                elif tag == 1 and len(value) >= _LEADER.size:
                    leader = _LEADER.unpack_from(value)
            yield FetchRow(topic_id, number, error, mark, start, records, diverging, leader)
        reader.skip_tags()
    reader.skip_tags()


class _Reader:
    """A position in a response, bounded by its end. Raises BadResponse."""

    __slots__ = ("at", "end", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0
        self.end = len(view)

    def bytes(self, size: int) -> memoryview:
        at = self.at
        if size < 0 or at + size > self.end:
            raise BadResponse(f"a field of {size} bytes at byte {at} of {self.end}")
        self.at = at + size
        return self.view[at : at + size]

    def take(self, what: struct.Struct) -> tuple[int, ...]:
        at = self.at
        if at + what.size > self.end:
            raise BadResponse(f"a field of {what.size} bytes at byte {at} of {self.end}")
        self.at = at + what.size
        return what.unpack_from(self.view, at)

    def correlation(self, wanted: int, *, flexible: bool) -> None:
        (found,) = self.take(_ANSWER)
        if found != wanted:
            raise BadResponse(f"a response to request {found} instead of {wanted}")
        if flexible:
            self.skip_tags()

    def varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self.bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise BadResponse(f"a length that does not end at byte {self.at}")

    def count(self) -> int:
        """Return the number of elements of a compact array, 0 for null; each takes at least one byte."""
        count = self.varint() - 1
        if count > self.end - self.at:
            raise BadResponse(f"{count} elements in {self.end - self.at} bytes")
        return max(count, 0)

    def tags(self) -> Iterator[tuple[int, memoryview]]:
        for _ in range(self.varint()):
            tag = self.varint()
            yield tag, self.bytes(self.varint())

    def skip_tags(self) -> None:
        for _ in self.tags():
            pass


def offsets_request(
    correlation: int, client: str, replica: int, topic: str, partition: int, epoch: int, times: Iterable[int]
) -> list[bytes]:
    """Return ListOffsets requests for one partition, one for each time (LATEST, EARLIEST)."""
    found = []
    for number, time in enumerate(times):
        body = _HEAD.pack(LIST_OFFSETS, LIST_OFFSETS_VERSION, correlation + number)
        body += len(client).to_bytes(2, "big") + client.encode()
        body += struct.pack(">ib", replica, 0) + array(1, False) + string(topic, False) + array(1, False)
        body += struct.pack(">iiq", partition, epoch, time)
        found.append(len(body).to_bytes(4, "big") + body)
    return found


def read_offset(view: memoryview, correlation: int) -> tuple[int, int]:
    """Return (error, offset) of the only partition in a ListOffsets response; raises BadResponse."""
    reader = _Reader(view)
    reader.correlation(correlation, flexible=False)
    reader.bytes(4)
    if reader.take(_ANSWER) != (1,):
        raise BadResponse("offsets of several topics, one was requested")
    reader.bytes(int.from_bytes(reader.bytes(2), "big"))
    if reader.take(_ANSWER) != (1,):
        raise BadResponse("offsets of several partitions, one was requested")
    _partition, error, _timestamp, offset, _epoch = reader.take(_OFFSET_ROW)
    return error, offset


def last_batch(records: memoryview) -> tuple[int, int] | None:
    """Return the offset after the last of these batches and its leader epoch; None if the batches are malformed.

    Only the fields that lead from one batch to the next are read; the append validates the rest.
    """
    at, end = 0, len(records)
    found = None
    while at < end:
        if end - at < _SMALLEST:
            return None
        base, length, epoch, _magic, _crc, _attributes, delta = _SPAN.unpack_from(records, at)
        at += length + _PREFIX
        if length + _PREFIX < _SMALLEST or at > end or delta < 0:
            return None
        found = (base + delta + 1, epoch)
    return found
