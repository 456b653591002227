"""The envelope of Fetch requests and responses, versions 4 to 18, decoded and encoded with struct."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from storage_node.protocol.leaders import Leader, endpoints
from storage_node.protocol.network.sending import Buffer, FilePart
from storage_node.protocol.request import Request
from storage_node.replication.isr import NEVER
from storage_node.small_first import SLICE_ELEMENTS, give_way
from storage_node.wire.codec import MAX_PARTITIONS, Cursor, MalformedRequest
from storage_node.wire.primitives import array, string, varint

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition

#: The session epochs of a fetch that opens a session, and of one without a session or that closes it (KIP-227).
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
#: The replica id of a consumer.
CONSUMER = -1
#: The broker epoch of a follower that sends none, as before version 15.
NO_EPOCH = -1

#: Partitions that the loop handles before it yields to other tasks.
TURN = SLICE_ELEMENTS
#: The largest request, in bytes, that is recognised when a client repeats it.
LONGEST_OUTLINE = 64 * 1024

_ROW = struct.Struct(">iiqiqiB")
"""A partition from version 12 on: index, leader epoch, offset, last fetched epoch, log start, bytes, tagged fields."""
_ROW_V9 = 28
"""Bytes of a partition in versions 9 to 11."""
_STATE = struct.Struct(">iq")
_RESULT = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_REPLICA_STATE = 1
_NO_REPLICA = b"\xff\xff\xff\xff"


class ItemQueue(Protocol):
    """The queue that an item is registered with (`storage_node.protocol.fetch.changed_items.ChangedItems`)."""

    @property
    def fetched_at(self) -> float:
        """The time of the session's last fetch."""
        ...

    def enqueue(self, item: Item, size: int) -> None:
        """Enqueue an item with `size` new bytes; any thread may call it."""
        ...

    def drop(self, item: Item) -> None:
        """Unregister an item from its partition."""
        ...


@dataclass(slots=True, eq=False)
class Item:
    """One requested partition and its result; a session keeps it from fetch to fetch.

    The partition's waiters are methods of it, and it is the follower's `Voucher` at the leader.
    """

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    topic_id: bytes = b""
    last_epoch: int = -1
    """The epoch of the fetching replica's last record, -1 if the request does not have it."""
    start: int = -1
    """A follower's log start offset."""
    leader: Leader | None = None
    replica: Partition | None = None
    error: int = 0
    high_watermark: int = -1
    log_start: int = -1
    diverging: tuple[int, int] | None = None
    """DivergingEpoch (KIP-595): the largest epoch up to which the logs may agree, and its end offset in this log."""
    data: bytes | FilePart = b""
    changed_items: ItemQueue | None = None
    """Records the changes of the partition; None while the item is not registered with it."""
    watched: Partition | None = None
    queued: bool = False
    rests: bool = False
    """Whether a follower's session vouches for the item."""
    replicated: bool = False
    """Whether the fetching node has a replica of the partition, according to this node's metadata."""
    turn: int = 0
    """The order in a session: a partition moves to the end when a response has records of it."""
    sent_high_watermark: int = -2
    sent_log_start: int = -2
    """High watermark and log start offset of the last response that had this partition."""

    @property
    def settled(self) -> bool:
        """Whether the fetch responds at once for this item, with an error or a diverging epoch."""
        return self.error != 0 or self.diverging is not None

    @property
    def key(self) -> tuple[bytes | str, int]:
        """The item's key in a session."""
        return self.topic_id or self.topic, self.partition

    def ask(self, asked: Item) -> None:
        """Apply the fields of a later request of the session."""
        self.leader_epoch, self.offset, self.max_bytes = asked.leader_epoch, asked.offset, asked.max_bytes
        self.last_epoch, self.start = asked.last_epoch, asked.start

    def appended(self, size: int) -> None:
        """Report an append of `size` bytes, or a change of the partition's state; any thread may call it."""
        queue = self.changed_items
        if queue is not None:
            queue.enqueue(self, size)

    def stirred(self, _size: int) -> None:
        """Report a change that does not end the wait of a fetch; any thread may call it."""
        self.appended(0)

    def changed(self) -> None:
        """See `Voucher`."""
        self.appended(0)

    @property
    def fetched_at(self) -> float:
        """See `Voucher`."""
        queue = self.changed_items
        return queue.fetched_at if queue is not None else NEVER


@dataclass(frozen=True, slots=True)
class FetchCall:
    """A request's envelope; times in milliseconds. `replica`: the fetching follower, -1 for a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    items: list[Item]
    replica: int = CONSUMER
    broker_epoch: int = NO_EPOCH
    forgotten: list[tuple[bytes | str, int]] = field(default_factory=list)
    """The keys of partitions that leave the session."""

    @property
    def full(self) -> bool:
        """Whether it is a full fetch: it names all its partitions."""
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


@dataclass(frozen=True, slots=True)
class Outline:
    """A request without a session as bytes: its own fields, and its topics with their rows, without an order."""

    version: int
    frame: bytes
    blocks: frozenset[tuple[bytes, bytes]]
    """Each topic's name or id, with the bytes of all its rows."""
    count: int
    """The number of rows."""

    def items(self, other: Outline) -> list[Item] | None:
        """Return the partitions whose rows differ from the other request's; None if the two name different partitions.

        (In a request that rotates its partitions most topics are unchanged, and are not read.)
        """
        if (self.version, self.frame, self.count) != (other.version, other.frame, other.count):
            return None
        rows, before = self._rows(self.blocks - other.blocks), other._rows(other.blocks - self.blocks)
        if rows.keys() != before.keys():
            return None
        found = []
        for (name, number), row in rows.items():
            if before[name, number] == row:
                continue
            cursor = Cursor(row)
            if self.version >= 13:
                found.append(_flexible_item(cursor, "", name))
            elif self.version == 12:
                found.append(_flexible_item(cursor, name.decode(), b""))
            else:
                found.append(_item(cursor, name.decode(), self.version))
        return found

    def _rows(self, blocks: frozenset[tuple[bytes, bytes]]) -> dict[tuple[bytes, bytes], bytes]:
        """Return the rows by topic and partition."""
        size = _ROW.size if self.version >= 12 else _ROW_V9
        return {
            (name, block[start : start + 4]): block[start : start + size]
            for name, block in blocks
            for start in range(0, len(block), size)
        }


def outline(request: Request) -> Outline | None:
    """Return a request's outline, None if it cannot have one; faster than `parse`. Raises MalformedRequest.

    An outline has no order, since librdkafka rotates the partitions of its requests.
    """
    version, frame = request.version, request.frame
    if version < 9 or len(frame) > LONGEST_OUTLINE:
        return None
    flexible, by_id = version >= 12, version >= 13
    cursor = Cursor(frame, request.position, MAX_PARTITIONS)
    if version < 15 and cursor.int32() != CONSUMER:
        return None
    cursor.skip(17)
    if cursor.int32() != FINAL_EPOCH:
        return None
    head, size = bytes(frame[request.position : cursor.position]), _ROW.size if flexible else _ROW_V9
    blocks: set[tuple[bytes, bytes]] = set()
    total = 0
    for _ in range(cursor.count(flexible)):
        topic, topic_id = cursor.topic(flexible, by_id)
        name = topic_id or topic.encode()
        count = max(cursor.count(flexible), 0)
        at = cursor.position
        cursor.skip(count * size)
        block = bytes(frame[at : cursor.position])
        if flexible:
            if block[size - 1 :: size].strip(b"\0"):
                return None  # tagged fields
            cursor.tagged()
        blocks.add((name, block))
        total += count
    return Outline(version, head + bytes(frame[cursor.position :]), frozenset(blocks), total)


async def parse(request: Request) -> FetchCall:
    """Decode the envelope, yielding to other tasks of the loop; raises MalformedRequest."""
    version = request.version
    flexible, by_id = version >= 12, version >= 13
    cursor = Cursor(request.frame, request.position, MAX_PARTITIONS)
    replica, broker_epoch = cursor.int32() if version < 15 else CONSUMER, NO_EPOCH
    max_wait, min_bytes, max_bytes = cursor.int32(), cursor.int32(), cursor.int32()
    cursor.skip(1)
    isolation = request.frame[cursor.position - 1]
    session_id, session_epoch = 0, FINAL_EPOCH
    if version >= 7:
        session_id, session_epoch = cursor.int32(), cursor.int32()
    items: list[Item] = []
    for _ in range(cursor.count(flexible)):
        topic, topic_id = cursor.topic(flexible, by_id)
        for _ in range(cursor.count(flexible)):
            items.append(_flexible_item(cursor, topic, topic_id) if flexible else _item(cursor, topic, version))
            if len(items) % TURN == 0:
                await give_way(len(items))
        if flexible:
            cursor.tagged()
    forgotten: list[tuple[bytes | str, int]] = []
    if version >= 7:
        for _ in range(cursor.count(flexible)):
            topic, topic_id = cursor.topic(flexible, by_id)
            for _ in range(cursor.count(flexible)):
                forgotten.append((topic_id or topic, cursor.int32()))
                if len(forgotten) % TURN == 0:
                    await give_way(len(forgotten))
            if flexible:
                cursor.tagged()
    if version >= 11:
        cursor.string(flexible)  # the rack
    if version >= 15:
        replica, broker_epoch = _replica_state(cursor)
    return FetchCall(
        max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch, items, replica, broker_epoch, forgotten
    )


def _flexible_item(cursor: Cursor, topic: str, topic_id: bytes) -> Item:
    at = cursor.position
    cursor.skip(_ROW.size)
    partition, epoch, offset, last_epoch, start, max_bytes, tags = _ROW.unpack_from(cursor.buffer, at)
    if tags:
        cursor.position -= 1
        cursor.tagged()
    return Item(topic, partition, epoch, offset, max_bytes, topic_id, last_epoch, start)


def _item(cursor: Cursor, topic: str, version: int) -> Item:
    partition = cursor.int32()
    epoch = cursor.int32() if version >= 9 else -1
    offset = cursor.int64()
    start = cursor.int64() if version >= 5 else -1
    return Item(topic, partition, epoch, offset, cursor.int32(), start=start)


def _replica_state(cursor: Cursor) -> tuple[int, int]:
    """Return the follower's id and broker epoch from the request's tagged fields (KIP-903)."""
    found = CONSUMER, NO_EPOCH
    for _ in range(cursor.varint()):
        tag, size = cursor.varint(), cursor.varint()
        at = cursor.position
        cursor.skip(size)
        if tag == _REPLICA_STATE:
            if size < _STATE.size:
                raise MalformedRequest(f"a replica state of {size} bytes")
            found = _STATE.unpack_from(cursor.buffer, at)
    return found


async def encode(
    version: int, call: FetchCall, items: Sequence[Item], error: int = 0, session: int = 0
) -> list[Buffer | FilePart]:
    """Encode the response body as buffers, yielding to other tasks of the loop; records are not copied."""
    flexible = version >= 12
    # The aborted transactions: null for read_uncommitted, empty for read_committed, since there are no transactions.
    aborted = array(0 if call.isolation_level else -1, flexible)
    topics: dict[str | bytes, list[Item]] = {}
    for number, item in enumerate(items, 1):
        topics.setdefault(item.topic_id or item.topic, []).append(item)
        if number % TURN == 0:
            await give_way(number)
    buffers: list[Buffer | FilePart] = []
    out = bytearray(4)
    count = 0
    if version >= 7:
        out += error.to_bytes(2, "big", signed=True) + session.to_bytes(4, "big")
    out += array(len(topics), flexible)
    middle = aborted + (_NO_REPLICA if version >= 11 else b"")
    nothing = middle + (b"\x01\x00" if flexible else b"\0\0\0\0")
    for name, rows in topics.items():
        out += (name if isinstance(name, bytes) else string(name, flexible)) + array(len(rows), flexible)
        for row in rows:
            count += 1
            if count % TURN == 0:
                await give_way(count)
            if version >= 5:
                out += _RESULT_V5.pack(row.partition, row.error, row.high_watermark, row.high_watermark, row.log_start)
            else:
                out += _RESULT.pack(row.partition, row.error, row.high_watermark, row.high_watermark)
            data = row.data
            size = len(data)
            if not size and row.leader is None and row.diverging is None:
                out += nothing
                continue
            out += middle
            out += varint(size + 1) if flexible else size.to_bytes(4, "big")
            if size:
                buffers += (bytes(out), data)
                out = bytearray()
            if flexible:
                out += _tagged(version, row)
        if flexible:
            out += b"\0"
    if flexible:
        out += endpoints(item.leader for item in items) if version >= 16 else b"\0"
    buffers.append(bytes(out))
    return buffers


def _tagged(version: int, row: Item) -> bytes:
    """Return the tagged fields of a partition: the diverging epoch and the current leader."""
    leader = row.leader.tagged(1) if row.leader is not None and version >= 16 else b"\0"
    if row.diverging is None:
        return leader
    body = _DIVERGING.pack(*row.diverging) + b"\0"
    return bytes((1 + leader[0], 0, len(body))) + body + leader[1:]
