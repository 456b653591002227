"""Fetch (key 1), versions 4 to 18: by topic name, from version 13 on by topic id; without sessions.

The hot path: the envelope is read and written with struct; what a read returned goes to the socket without another
copy, and is given up and read again where a reader takes its time. A partition whose log end is reached costs no I/O. A
fetch that finds too little waits for appends, at most max_wait.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_node.errors import ErrorCode, OffsetOutOfRange, RequestRefused, StorageError
from storage_node.protocol.codec import MAX_PARTITIONS, Cursor, MalformedRequest
from storage_node.protocol.framing import Answer
from storage_node.protocol.leaders import Leader, endpoints, leader_of
from storage_node.protocol.request import Request
from storage_node.protocol.sending import Buffer, FilePart
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.protocol.wire import array, string, varint
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

log = logging.getLogger(__name__)

FETCH_SESSION_ID_NOT_FOUND = 70
#: The session epoch of who wants no session.
FINAL_EPOCH = -1
#: More than this is never read for one answer, whatever is asked for.
MOST_BYTES = 64 * 1024 * 1024
LONGEST_WAIT = 300.0
#: More than this is not kept in memory for a reader that takes its time.
FEW_BYTES = 64 * 1024
#: How long the other directories' data is held back for one that does not answer.
PATIENCE = 5.0

_PARTITION = struct.Struct(">ihqq")


@dataclass(slots=True)
class Item:
    """One partition asked for and what it got."""

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    topic_id: bytes = b""
    leader: Leader | None = None
    replica: Partition | None = None
    error: int = 0
    high_watermark: int = -1
    log_start: int = -1
    data: bytes | FilePart = b""

    @property
    def waits(self) -> bool:
        """Whether new records could still add to this item."""
        return self.error == 0 and self.replica is not None


@dataclass(frozen=True, slots=True)
class FetchCall:
    """The envelope; times in milliseconds."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    items: list[Item]


class Budget:
    """Bytes that one answer may still take, shared by the directories that are read at the same time."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._first = True
        self._lock = threading.Lock()

    def reserve(self, size: int) -> tuple[int, bool]:
        """Take up to `size` bytes; and whether this is the first, which gets one whole batch however large."""
        with self._lock:
            first, self._first = self._first, False
            granted = max(0, min(size, self._left))
            self._left -= granted
            return granted, first

    def give_back(self, size: int, first_unused: bool) -> None:
        with self._lock:
            self._left += size
            self._first = self._first or first_unused


def parse(request: Request) -> FetchCall:
    """Read the envelope; raises MalformedRequest."""
    version = request.version
    flexible, by_id = version >= 12, version >= 13
    cursor = Cursor(request.frame, request.position, MAX_PARTITIONS)
    if version < 15:
        cursor.int32()  # replica id: followers come with replication, until then it makes no difference
    max_wait, min_bytes, max_bytes = cursor.int32(), cursor.int32(), cursor.int32()
    cursor.skip(1)
    isolation = request.frame[cursor.position - 1]
    session_id, session_epoch = 0, FINAL_EPOCH
    if version >= 7:
        session_id, session_epoch = cursor.int32(), cursor.int32()
    items: list[Item] = []
    for _ in range(cursor.count(flexible)):
        topic_id = cursor.raw(16) if by_id else b""
        topic = "" if by_id else cursor.string(flexible)
        if topic is None:
            raise MalformedRequest("a topic without a name")
        for _ in range(cursor.count(flexible)):
            partition = cursor.int32()
            epoch = cursor.int32() if version >= 9 else -1
            offset = cursor.int64()
            if version >= 12:
                cursor.skip(4)  # last fetched epoch: followers'
            if version >= 5:
                cursor.skip(8)  # log start offset: followers'
            items.append(Item(topic, partition, epoch, offset, cursor.int32(), topic_id))
            if flexible:
                cursor.tagged()
        if flexible:
            cursor.tagged()
    return FetchCall(max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch, items)


async def handle(node: Node, request: Request) -> Answer:
    """Answer with whole batches; wait up to max_wait for min_bytes when nothing is wrong."""
    call = parse(request)
    if call.session_id and call.session_epoch > 0:
        # No sessions are kept, so that no id can be one of ours: the client starts over with a full fetch. Who closes
        # a session, or begins a new one in its place, names all it wants.
        return [request.head(), *encode(request.version, call, [], FETCH_SESSION_ID_NOT_FOUND)]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(call.max_wait_ms, 0) / 1000, LONGEST_WAIT)
    for item in call.items:
        _look_up(node, item)
    waiter = _Waiter(loop)
    try:
        while True:
            waiter.watch([item.replica for item in call.items if item.replica is not None])
            size = await _read_all(node, call)
            left = deadline - loop.time()
            wants_more = size < call.min_bytes and not any(item.error for item in call.items)
            if not wants_more or left <= 0 or not call.items:
                break
            if not await waiter.wait(call.min_bytes - size, left):
                break
            for item in call.items:
                item.data = b""
                _look_up(node, item)
    finally:
        waiter.close()
    return [request.head(), *encode(request.version, call, call.items, 0)]


def _look_up(node: Node, item: Item) -> None:
    try:
        if item.topic_id:
            item.topic = topic_named(node, item.topic_id)
        item.replica = node.leader(TopicPartition(item.topic, item.partition))
        if item.topic_id:
            same_topic(item.replica, item.topic_id)
        item.replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        item.replica = None
        item.error = error.code
        if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            item.leader = leader_of(node, TopicPartition(item.topic, item.partition))


async def _read_all(node: Node, call: FetchCall) -> int:
    """Read what is there; answers the bytes. Directories are read at the same time, each in its own pool."""
    budget = Budget(min(max(call.max_bytes, 0), MOST_BYTES))
    jobs: dict[str, list[Item]] = {}
    for item in call.items:
        replica = item.replica
        if replica is None:
            continue
        item.high_watermark, item.log_start = replica.high_watermark, replica.log.log_start_offset
        if item.offset != item.high_watermark:
            jobs.setdefault(replica.directory.name, []).append(item)
    waits = []
    for items in jobs.values():
        replica = items[0].replica
        assert replica is not None
        try:
            job = asyncio.wrap_future(replica.directory.submit(_read, node, items, budget))
        except (StorageError, RuntimeError):
            # It failed, or the node stops, since the replica was looked up.
            for item in items:
                item.error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            waits.append((job, items))
    if waits:
        done, _ = await asyncio.wait([job for job, _ in waits], timeout=PATIENCE)
        for job, items in waits:
            if job in done and job.exception() is not None:
                for item in items:
                    item.error = ErrorCode.KAFKA_STORAGE_ERROR
    return sum(len(item.data) for item in call.items)


def _read(node: Node, items: list[Item], budget: Budget) -> None:
    """Runs in the directory's pool."""
    for item in items:
        replica = item.replica
        if replica is None:
            continue
        granted, first = budget.reserve(max(item.max_bytes, 0))
        data: bytes | FilePart = b""
        try:
            if granted or first:
                directory = replica.directory
                found = replica.fetch(item.offset, granted, leader_epoch=item.leader_epoch, min_one=first)
                data = found.data
                if found.region is not None and len(data) > FEW_BYTES:
                    data = FilePart(data, found.region, directory)
        except OffsetOutOfRange:
            item.error = ErrorCode.OFFSET_OUT_OF_RANGE
        except StorageError as error:
            node.storage_failed(error, replica.tp)
            item.error = error.code
        except RequestRefused as error:
            item.error = error.code
        except Exception:
            log.exception("read of %s-%d failed", item.topic, item.partition)
            item.error = ErrorCode.UNKNOWN_SERVER_ERROR
        item.data = data
        if item.error:
            item.high_watermark = item.log_start = -1
        else:
            item.high_watermark, item.log_start = replica.high_watermark, replica.log.log_start_offset
        budget.give_back(granted - len(data), first and not data)


class _Waiter:
    """Counts the bytes appended to some partitions since `watch`, and wakes the fetch when they are enough."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._partitions: list[Partition] = []
        self._wanted = 0
        self._seen = 0
        self._future: asyncio.Future[bool] | None = None

    def watch(self, partitions: list[Partition]) -> None:
        """Count from now on; called before the read, so that no append is missed between the read and the wait."""
        self.close()
        self._seen = 0
        self._partitions = partitions
        for partition in partitions:
            partition.add_waiter(self._appended)

    async def wait(self, wanted: int, seconds: float) -> bool:
        """True when `wanted` bytes have come, or the state of a partition changed; False after `seconds`."""
        self._wanted = max(wanted, 1)
        future = self._future = self._loop.create_future()
        if self._seen >= self._wanted:
            return True
        timer = self._loop.call_later(seconds, _settle, future, False)
        try:
            return bool(await future)
        finally:
            timer.cancel()
            self._future = None

    def _appended(self, size: int) -> None:
        """On the thread of the append."""
        self._seen += size
        future = self._future
        if future is not None and self._seen >= self._wanted:
            self._future = None
            self._loop.call_soon_threadsafe(_settle, future, True)

    def close(self) -> None:
        for partition in self._partitions:
            partition.remove_waiter(self._appended)
        self._partitions = []


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def encode(version: int, call: FetchCall, items: list[Item], error: int) -> list[Buffer | FilePart]:
    """The response body as buffers; the data is passed on as it was read."""
    flexible = version >= 12
    # Null for a reader that takes everything, none for one that leaves out what was aborted: there are no transactions.
    aborted = array(0 if call.isolation_level else -1, flexible)
    topics: dict[str | bytes, list[Item]] = {}
    for item in items:
        topics.setdefault(item.topic_id or item.topic, []).append(item)
    buffers: list[Buffer | FilePart] = []
    out = bytearray(4)
    if version >= 7:
        out += error.to_bytes(2, "big", signed=True) + b"\0\0\0\0"
    out += array(len(topics), flexible)
    for name, rows in topics.items():
        out += (name if isinstance(name, bytes) else string(name, flexible)) + array(len(rows), flexible)
        for row in rows:
            out += _PARTITION.pack(row.partition, row.error, row.high_watermark, row.high_watermark)
            if version >= 5:
                out += row.log_start.to_bytes(8, "big", signed=True)
            out += aborted
            if version >= 11:
                out += b"\xff\xff\xff\xff"
            # Looked at once: a directory that was too late for this answer may still be reading.
            data = row.data
            size = len(data)
            out += varint(size + 1) if flexible else size.to_bytes(4, "big")
            if size:
                buffers += (bytes(out), data)
                out = bytearray()
            if flexible:
                out += row.leader.tagged(1) if row.leader is not None and version >= 16 else b"\0"
        if flexible:
            out += b"\0"
    if flexible:
        out += endpoints(item.leader for item in items) if version >= 16 else b"\0"
    buffers.append(bytes(out))
    return buffers
