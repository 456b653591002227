"""Fetch (key 1), versions 4 to 18: by topic name, from version 13 on by topic id, from version 7 on in sessions.

The hot path: the envelope is decoded and encoded with struct; the records of a read are sent without another copy, and
are dropped and read again for a slow client. A partition that is fetched at its log end costs no I/O. A fetch with less
than min_bytes waits for appends, at most max_wait: a consumer's for records below the high watermark, a follower's for
any record in the log. A follower's fetch also reports the follower's log end offset (see `replication.leading`).

A fetch checks the partitions that it names, those that changed since the last fetch of its session, and those that its
session has still to send: the cost of a session without new records does not depend on its number of partitions. The
loop handles a request with very many partitions in slices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from storage_node.errors import NotLeaderOrFollower, OffsetOutOfRange, RequestRefused, StorageError
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.protocol.fetch.call import FINAL_EPOCH, TURN, FetchCall, Item, encode, outline, parse
from storage_node.protocol.fetch.reading import Reading, ReadingHost
from storage_node.protocol.fetch.sessions import FetchSessions, Session
from storage_node.protocol.host import ReplicaHost
from storage_node.protocol.leaders import leader_of
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.replication.alter_partition_manager import AlterPartitionManager
from storage_node.small_first import give_way

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition

LONGEST_WAIT = 300.0
#: The resolution of the loop's timers: with less than this left, waits would end at once and the fetch would spin.
SLACK = 0.001


class FetchHost(ReplicaHost, ReadingHost, Protocol):
    """The node, as the fetches see it."""

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def alter_partition_manager(self) -> AlterPartitionManager: ...


async def handle(node: FetchHost, request: Request) -> Answer:
    """Return whole batches; wait at most max_wait for min_bytes unless a partition has an error."""
    now = time.monotonic()
    sessions = node.fetch_sessions
    outlined = outline(request)
    again = sessions.repeated(request, outlined, now)
    if again is not None:
        return await _handle_repeated(node, request, *again, now)
    call = await parse(request)
    session, error = sessions.begin(call, by_id=request.version >= 13, now=now)
    if session is None:
        return [request.head(), *await encode(request.version, call, [], error)]
    epoch = session.epoch
    try:
        async with session.lock:
            if session.closed:
                return [request.head(), *await encode(request.version, call, [], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)]
            fetch = _Fetch(node, call, session, now)
            try:
                rows = await fetch.run(epoch)
                if session.epoch != epoch:
                    # The client has sent the session's next fetch meanwhile, whose response has the records.
                    rows, error = [], ErrorCode.INVALID_FETCH_SESSION_EPOCH
                kept = sessions.keep(session, call, now) if not error else True
                body = await encode(request.version, call, rows, error, session.id if kept else 0)
                if not error:
                    await fetch.responded(rows)
                if not session.id:
                    sessions.remember(request, outlined, session, call)
                    session.body = None if any(item.data for item in rows) else body
            finally:
                fetch.forget_records()
    finally:
        if session.closed or not (session.id or session.repeats):
            session.close()
    return [request.head(), *body]


async def _handle_repeated(node: FetchHost, request: Request, session: Session, call: FetchCall, now: float) -> Answer:
    """Handle a request without a session that repeats the last one of its connection."""
    try:
        async with session.lock:
            fetch = _Fetch(node, call, session, now)
            try:
                rows = await fetch.run(session.epoch)
                if session.body is None or fetch.has_news:
                    body = await encode(request.version, call, rows)
                    session.body = None if any(item.data for item in rows) else body
                    await fetch.responded(rows)
                else:
                    body = session.body
            finally:
                fetch.forget_records()
    finally:
        # The cache has dropped the session meanwhile: its connection is closed, or it was unused for too long.
        if session.repeats is None:
            session.close()
    return [request.head(), *body]


class _Fetch:
    """One request of a session, or without one."""

    def __init__(self, node: FetchHost, call: FetchCall, session: Session, now: float) -> None:
        self._node = node
        self._call = call
        self._session = session
        self._now = now
        self._follower = call.replica >= 0
        self._registered = self._follower and call.replica in node.alter_partition_manager.brokers
        self._vouches = self._follower and call.session_epoch != FINAL_EPOCH
        self._names: dict[bytes, str] = {}
        self._looked: dict[Item, None] = {}
        self._readable: dict[Item, None] = {}
        """The items that had records to read at the last check."""

    async def run(self, epoch: int) -> list[Item]:
        """Return the items of the response."""
        call, session, queue = self._call, self._session, self._session.changed_items
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(call.max_wait_ms, 0) / 1000, LONGEST_WAIT)
        reading = Reading(self._node, call)
        wanted = reading.wanted
        queue.arm()
        items = await self._begin()
        while True:
            last = deadline - loop.time() <= SLACK or any(item.settled for item in self._looked)
            self._readable = reading.look(items)
            size = await reading.measure() if wanted > 1 and not last else wanted
            if size >= wanted or reading.shortened or any(item.settled for item in self._readable):
                size = await reading.read()
                last = last or size >= min(wanted, 1) or any(item.settled for item in self._readable)
            left = deadline - loop.time()
            if last or reading.shortened or not session.items or session.epoch != epoch or session.closed:
                break
            # When the wait ends, the loop reads the available records, however few.
            await queue.wait(wanted - size, min(left, reading.wait_seconds) if reading.held else left)
            queue.arm()
            changed = queue.take()
            for item in changed:
                self._note(item)
            items = list({**self._readable, **dict.fromkeys(changed)})
            for item in items:
                _refresh_replica(self._node, item)
        await self._catch_up()
        if call.full:
            return list(session.items.values())
        return [item for item in self._looked if _has_changed(item)]

    async def _begin(self) -> list[Item]:
        """Apply the request's changes to the session, and check the partitions that it may concern."""
        call, session = self._call, self._session
        named = await session.ask(call)
        changed = session.changed_items.take()
        if self._follower:
            known = (call.broker_epoch, self._node.alter_partition_manager.brokers.get(call.replica, -1))
            if known != session.known:
                session.known, named = known, list(session.items.values())
        items = list(dict.fromkeys([*named, *changed, *session.active]))
        if not call.full or session.repeats is not None:
            items = sorted((item for item in items if item.key in session.items), key=lambda item: item.turn)
        await _in_turns(items, self._check)
        # Set after the check above, which includes the items that the session no longer vouches for.
        session.changed_items.fetched_at = self._now
        return items

    def _note(self, item: Item) -> None:
        """Make each fetch of the session check an item, until a response has reported the item's state."""
        self._looked[item] = None
        # The follower's session no longer vouches for the item, until a fetch has checked it again.
        item.rests = False
        if item.changed_items is not None:
            self._session.active[item] = None

    def _check(self, item: Item) -> None:
        self._looked[item] = self._session.active[item] = None
        item.error, item.leader, item.diverging, item.rests = 0, None, None, False
        replica = _look_up(self._node, item, self._names)
        state = replica.leading if replica is not None and self._registered else None
        self._session.replicates(item, state is not None and state.knows(self._call.replica))
        if replica is None:
            self._session.changed_items.drop(item)
            return
        waits = self._call.max_wait_ms > 0 or self._call.session_epoch != FINAL_EPOCH
        if waits and not self._session.closed:
            self._session.changed_items.add(item, replica)
        if self._follower or item.last_epoch >= 0:
            _compare(self._node, self._call, item, replica, self._now, vouches=self._vouches)
        if self._follower and not item.rests and replica.leading is not None:
            replica.leading.release(self._call.replica, item)

    async def _catch_up(self) -> None:
        """Refresh the high watermarks, which may have advanced during the wait without waking a follower's fetch."""
        if not self._follower:
            return
        for item in self._session.changed_items.take():
            self._note(item)
            _refresh_replica(self._node, item)
        await _in_turns(self._looked, _refresh)

    @property
    def has_news(self) -> bool:
        """Whether the response differs from the previous one."""
        return any(_has_changed(item) for item in self._looked)

    async def responded(self, rows: Sequence[Item]) -> None:
        """Record what the response reported, and which items the session's next fetch need not check."""
        await _in_turns(rows, self._record_sent)
        await _in_turns(self._looked, self._rest)

    def _record_sent(self, item: Item) -> None:
        if item.error:
            item.sent_high_watermark = item.sent_log_start = -2
        else:
            item.sent_high_watermark, item.sent_log_start = item.high_watermark, item.log_start
        if item.data:
            self._session.last(item)

    def _rest(self, item: Item) -> None:
        if not (item.settled or item in self._readable or (self._follower and not item.rests)):
            self._session.active.pop(item, None)

    def forget_records(self) -> None:
        """Drop the records that were read: a session keeps none."""
        for item in self._looked:
            item.data = b""


def _has_changed(item: Item) -> bool:
    """Return whether a session's response has this item (FetchSession.CachedPartition.maybeUpdateResponseData)."""
    return bool(item.settled or item.data) or (item.high_watermark, item.log_start) != (
        item.sent_high_watermark,
        item.sent_log_start,
    )


def _refresh(item: Item) -> None:
    if item.replica is not None and not item.error:
        item.high_watermark = item.replica.high_watermark


async def _in_turns(items: Iterable[Item], work: Callable[[Item], None]) -> None:
    """Call `work` for each item, and yield to other tasks of the loop after each slice."""
    for number, item in enumerate(items, 1):
        work(item)
        if number % TURN == 0:
            await give_way(number)


def _look_up(node: FetchHost, item: Item, names: dict[bytes, str]) -> Partition | None:
    try:
        raw = item.topic_id
        if raw:
            known = names.get(raw)
            item.topic = known if known is not None else names.setdefault(raw, topic_named(node, raw))
        replica = item.replica = node.leader(TopicPartition(item.topic, item.partition))
        if raw:
            same_topic(replica, raw)
        replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)
    return item.replica


def _refresh_replica(node: FetchHost, item: Item) -> None:
    """Look the replica up again after a wait: it may have been replaced or removed."""
    replica = item.replica
    if replica is None:
        return
    try:
        if node.replicas.served.get(replica.tp) is not replica:
            replica = item.replica = node.leader(replica.tp)
        replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)


def _refuse(node: FetchHost, item: Item, error: RequestRefused | StorageError) -> None:
    item.replica = None
    item.error = error.code
    item.high_watermark = item.log_start = -1
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        item.leader = leader_of(node, TopicPartition(item.topic, item.partition))


def _compare(node: FetchHost, call: FetchCall, item: Item, replica: Partition, now: float, *, vouches: bool) -> None:
    """Compare the fetching replica's log with this one (KIP-595), and record a follower's offsets."""
    try:
        state = None
        if call.replica >= 0:
            state = replica.leading
            if state is None or not state.knows(call.replica):
                # It may be a replica in metadata that this node has not applied yet: on UNKNOWN_LEADER_EPOCH, a
                # follower that sends an epoch fetches again.
                code = ErrorCode.UNKNOWN_LEADER_EPOCH if item.leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
                raise RequestRefused(f"node {call.replica} is not a replica of {replica.tp}", code)
            registered = node.alter_partition_manager.brokers.get(call.replica, -1)
            if -1 < call.broker_epoch < registered:
                raise NotLeaderOrFollower(f"broker epoch {call.broker_epoch} is older than the current {registered}")
        log = replica.log
        start, end = log.log_start_offset, log.log_end_offset
        if item.last_epoch >= 0 and (item.last_epoch != log.latest_epoch or item.offset > end):
            item.diverging = replica.divergence(item.offset, item.last_epoch)
        if item.diverging is not None:
            item.high_watermark, item.log_start = replica.high_watermark, start
        elif state is not None:
            if not start <= item.offset <= end:
                raise OffsetOutOfRange(f"{replica.tp} has offsets from {start} to {end}")
            voucher = item if vouches else None
            item.rests = state.fetched(call.replica, item.offset, item.start, now, call.broker_epoch, voucher)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)
