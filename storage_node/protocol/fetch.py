"""Fetch (key 1), versions 4 to 18: by topic name, from version 13 on by topic id; without sessions.

The hot path: the envelope is read and written with struct; what a read returned goes to the socket without another
copy, and is given up and read again where a reader takes its time. A partition whose log end is reached costs no I/O. A
fetch that finds too little waits for appends, at most max_wait: a consumer for what is below the high watermark, a
follower for whatever is in the log. A follower's fetch also says what it has (see `replication.leading`).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from storage_node.errors import (
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestRefused,
    StorageError,
)
from storage_node.protocol.fetch_call import FetchCall, Item, encode, parse
from storage_node.protocol.fetch_reading import Reading
from storage_node.protocol.framing import Answer
from storage_node.protocol.leaders import leader_of
from storage_node.protocol.request import Request
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

FETCH_SESSION_ID_NOT_FOUND = 70
LONGEST_WAIT = 300.0


async def handle(node: Node, request: Request) -> Answer:
    """Answer with whole batches; wait up to max_wait for min_bytes when nothing is wrong."""
    call = parse(request)
    if call.session_id and call.session_epoch > 0:
        # No sessions are kept, so that no id can be one of ours: the client starts over with a full fetch. Who closes
        # a session, or begins a new one in its place, names all it wants.
        return [request.head(), *encode(request.version, call, [], FETCH_SESSION_ID_NOT_FOUND)]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(call.max_wait_ms, 0) / 1000, LONGEST_WAIT)
    follower = call.replica >= 0
    names: dict[bytes, str] = {}
    now = time.monotonic()
    for item in call.items:
        _look_up(node, item, names)
        if item.replica is not None and (follower or item.last_epoch >= 0):
            _compare(node, call, item, item.replica, now)
    reading = Reading(node, call)
    wanted = reading.wanted
    waiter = _Waiter(loop, to_end=follower)
    try:
        while True:
            waiter.watch([item.replica for item in call.items if item.replica is not None])
            last = deadline - loop.time() <= 0 or any(item.settled for item in call.items)
            size = await reading.measure() if wanted > 1 and not last else wanted
            if size >= wanted or reading.shortened or any(item.settled for item in call.items):
                size = await reading.read()
                last = last or size >= min(wanted, 1) or any(item.settled for item in call.items)
            left = deadline - loop.time()
            if last or not call.items or reading.shortened:
                break
            # At the end of the wait whatever is there is read.
            await waiter.wait(wanted - size, min(left, reading.wait_seconds) if reading.held else left)
            for item in call.items:
                item.data = b""
                _look_again(node, item)
    finally:
        waiter.close()
    if follower:
        # It may have risen while this fetch waited, and a follower does not ask again for its sake.
        for item in call.items:
            if item.replica is not None and not item.error:
                item.high_watermark = item.replica.high_watermark
    return [request.head(), *encode(request.version, call, call.items, 0)]


def _look_up(node: Node, item: Item, names: dict[bytes, str]) -> None:
    try:
        raw = item.topic_id
        if raw:
            known = names.get(raw)
            item.topic = known if known is not None else names.setdefault(raw, topic_named(node, raw))
        item.replica = node.leader(TopicPartition(item.topic, item.partition))
        if raw:
            same_topic(item.replica, raw)
        item.replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)


def _look_again(node: Node, item: Item) -> None:
    """After a wait: the replica may be another one by now, or none."""
    replica = item.replica
    if replica is None:
        return
    try:
        if node.replicas.served.get(replica.tp) is not replica:
            item.replica = node.leader(replica.tp)
        replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)


def _refuse(node: Node, item: Item, error: RequestRefused | StorageError) -> None:
    item.replica = None
    item.error = error.code
    item.high_watermark = item.log_start = -1
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        item.leader = leader_of(node, TopicPartition(item.topic, item.partition))


def _compare(node: Node, call: FetchCall, item: Item, replica: Partition, now: float) -> None:
    """Find out whether the asker's log is this one as far as it goes (KIP-595), and note what a follower has."""
    try:
        state = None
        if call.replica >= 0:
            state = replica.leading
            if state is None or not state.knows(call.replica):
                # It may be about to become one: whoever named the epoch asks again under a newer one.
                code = ErrorCode.UNKNOWN_LEADER_EPOCH if item.leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
                raise RequestRefused(f"node {call.replica} has no replica of {replica.tp}", code)
            registered = node.isr.brokers.get(call.replica, -1)
            if -1 < call.broker_epoch < registered:
                raise NotLeaderOrFollower(f"broker epoch {call.broker_epoch} is over, {registered} is the present one")
        log = replica.log
        start, end = log.log_start_offset, log.log_end_offset
        if item.last_epoch >= 0 and (item.last_epoch != log.latest_epoch or item.offset > end):
            item.diverging = replica.divergence(item.offset, item.last_epoch)
        if item.diverging is not None:
            item.high_watermark, item.log_start = replica.high_watermark, start
        elif state is not None:
            if not start <= item.offset <= end:
                raise OffsetOutOfRange(f"{replica.tp} has offsets from {start} to {end}")
            state.fetched(call.replica, item.offset, item.start, now, call.broker_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)


class _Waiter:
    """Counts the bytes appended to some partitions since `watch`, and wakes the fetch when they are enough."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, to_end: bool) -> None:
        self._loop = loop
        self._to_end = to_end
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
            partition.add_waiter(self._appended, to_end=self._to_end)

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
