"""The envelope of Fetch, versions 4 to 18, read and written with struct: what was asked for and what is answered."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_node.protocol.codec import MAX_PARTITIONS, Cursor, MalformedRequest
from storage_node.protocol.leaders import Leader, endpoints
from storage_node.protocol.request import Request
from storage_node.protocol.sending import Buffer, FilePart
from storage_node.protocol.wire import array, string, varint
from storage_node.small_first import SLICE_ELEMENTS, give_way

if TYPE_CHECKING:
    from storage_node.partition import Partition
    from storage_node.protocol.fetch_watch import Watch

#: The session epochs of who wants a new session, and of who wants none.
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
#: The replica id of who is no follower.
CONSUMER = -1
#: A broker epoch that was not told, as before version 15.
NO_EPOCH = -1

#: Partitions that are handled in one go on the loop, before others have their turn.
TURN = SLICE_ELEMENTS
NEVER = float("-inf")
#: Bytes of a request up to which it is recognised when it comes again.
LONGEST_OUTLINE = 64 * 1024

_ROW = struct.Struct(">iiqiqiB")
"""A partition from version 12 on: number, leader epoch, offset, last fetched epoch, log start, bytes, tagged fields."""
_ROW_V9 = 28
"""Bytes of a partition in versions 9 to 11."""
_STATE = struct.Struct(">iq")
_RESULT = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_REPLICA_STATE = 1
_NO_REPLICA = b"\xff\xff\xff\xff"


@dataclass(slots=True, eq=False)
class Item:
    """One partition asked for and what it got; in a session it is kept from fetch to fetch.

    It is what the partition's waiters call, and what a leader knows as the follower's `Voucher`.
    """

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    topic_id: bytes = b""
    last_epoch: int = -1
    """The epoch of the last record that the asker has, -1 if it does not tell."""
    start: int = -1
    """A follower's log start offset."""
    leader: Leader | None = None
    replica: Partition | None = None
    error: int = 0
    high_watermark: int = -1
    log_start: int = -1
    diverging: tuple[int, int] | None = None
    """The epoch before which the asker's log is another one, and the offset at which that epoch ends here."""
    data: bytes | FilePart = b""
    watch: Watch | None = None
    """Where changes of the partition are noted, while they are."""
    watched: Partition | None = None
    queued: bool = False
    rests: bool = False
    """A follower's: its session vouches for it."""
    replicated: bool = False
    """Whether the node that fetches has a replica of the partition, as the metadata here says."""
    turn: int = 0
    """The order in a session: a partition that got records comes last from then on."""
    told_mark: int = -2
    told_start: int = -2
    """High watermark and log start offset of the last response that had this partition."""

    @property
    def settled(self) -> bool:
        """Whether this item is answered at once: by an error, or by where the logs diverge."""
        return self.error != 0 or self.diverging is not None

    @property
    def key(self) -> tuple[bytes | str, int]:
        """What it is known by in a session."""
        return self.topic_id or self.topic, self.partition

    def ask(self, asked: Item) -> None:
        """Take over what a later request of the session asks for."""
        self.leader_epoch, self.offset, self.max_bytes = asked.leader_epoch, asked.offset, asked.max_bytes
        self.last_epoch, self.start = asked.last_epoch, asked.start

    def appended(self, size: int) -> None:
        """So many bytes are new, or the partition's state has changed; on any thread."""
        watch = self.watch
        if watch is not None:
            watch.told(self, size)

    def stirred(self, _size: int) -> None:
        """Something changed for which a fetch does not end its wait; on any thread."""
        self.appended(0)

    def changed(self) -> None:
        """See `Voucher`."""
        self.appended(0)

    @property
    def fetched_at(self) -> float:
        """See `Voucher`."""
        watch = self.watch
        return watch.fetched_at if watch is not None else NEVER


@dataclass(frozen=True, slots=True)
class FetchCall:
    """The envelope; times in milliseconds. `replica`: the follower that asks, -1 for a consumer."""

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
        """Whether it names all that it wants, and does not go on with a session."""
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


@dataclass(frozen=True, slots=True)
class Outline:
    """A request without a session as bytes: its own fields, and its topics with their rows, in any order."""

    version: int
    frame: bytes
    blocks: frozenset[tuple[bytes, bytes]]
    """Topics by name or id, each with all its rows that follow one another."""
    count: int
    """How many rows there are."""

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
        """Rows by topic and partition."""
        size = _ROW.size if self.version >= 12 else _ROW_V9
        return {
            (name, block[start : start + 4]): block[start : start + size]
            for name, block in blocks
            for start in range(0, len(block), size)
        }


def outline(request: Request) -> Outline | None:
    """A request's outline, quicker than `parse`; None for one that has none. Raises MalformedRequest.

    (librdkafka begins with another partition each time, so that the order does not tell whether two are the same.)
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
    """Read the envelope, in turns with others on the loop; raises MalformedRequest."""
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
    """Who asks, from the tagged fields at the end: a broker's id and epoch."""
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
    """The response body as buffers, in turns with others on the loop; the data is passed on as it was read."""
    flexible = version >= 12
    # Null for a reader that takes everything, none for one that leaves out what was aborted: there are no transactions.
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
    """The tagged fields of a partition: where the logs diverge, who leads now."""
    leader = row.leader.tagged(1) if row.leader is not None and version >= 16 else b"\0"
    if row.diverging is None:
        return leader
    body = _DIVERGING.pack(*row.diverging) + b"\0"
    return bytes((1 + leader[0], 0, len(body))) + body + leader[1:]
