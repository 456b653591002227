"""Fetch (key 1), versions 4 to 18: by topic name, from version 13 on by topic id, from version 7 on in sessions.

The hot path: the envelope is read and written with struct; what a read returned goes to the socket without another
copy, and is given up and read again where a reader takes its time. A partition whose log end is reached costs no I/O. A
fetch that finds too little waits for appends, at most max_wait: a consumer for what is below the high watermark, a
follower for whatever is in the log. A follower's fetch also says what it has (see `replication.leading`).

A fetch looks at what it names, at what has changed since the last one of its session, and at what its session has still
to send: a session that fetches nothing new costs the same however many partitions it has. A request with very many
partitions is handled in turns with others on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from storage_node.errors import (
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestRefused,
    StorageError,
)
from storage_node.protocol.fetch_call import FINAL_EPOCH, TURN, FetchCall, Item, encode, outline, parse
from storage_node.protocol.fetch_reading import Reading
from storage_node.protocol.fetch_sessions import Session
from storage_node.protocol.framing import Answer
from storage_node.protocol.leaders import leader_of
from storage_node.protocol.request import Request
from storage_node.protocol.topic_ids import same_topic, topic_named
from storage_node.small_first import give_way
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

LONGEST_WAIT = 300.0
#: The loop's timers are that exact: with less than this left a wait would end at once, over and over.
SLACK = 0.001


async def handle(node: Node, request: Request) -> Answer:
    """Answer with whole batches; wait up to max_wait for min_bytes when nothing is wrong."""
    now = time.monotonic()
    sessions = node.fetch_sessions
    outlined = outline(request)
    again = sessions.repeated(request, outlined, now)
    if again is not None:
        return await _again(node, request, *again, now)
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
                    # The client has sent the next one meanwhile, and that one answers.
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


async def _again(node: Node, request: Request, session: Session, call: FetchCall, now: float) -> Answer:
    """A request without a session that came before."""
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
        # It was forgotten meanwhile: with its connection, which ends this fetch as well, or as one that is not used.
        if session.repeats is None:
            session.close()
    return [request.head(), *body]


class _Fetch:
    """One request of a session, or without one."""

    def __init__(self, node: Node, call: FetchCall, session: Session, now: float) -> None:
        self._node = node
        self._call = call
        self._session = session
        self._now = now
        self._follower = call.replica >= 0
        self._registered = self._follower and call.replica in node.isr.brokers
        self._vouches = self._follower and call.session_epoch != FINAL_EPOCH
        self._names: dict[bytes, str] = {}
        self._looked: dict[Item, None] = {}
        self._readable: dict[Item, None] = {}
        """What had something to read when it was last looked at."""

    async def run(self, epoch: int) -> list[Item]:
        """Return the items of the response."""
        call, session, watch = self._call, self._session, self._session.watch
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(call.max_wait_ms, 0) / 1000, LONGEST_WAIT)
        reading = Reading(self._node, call)
        wanted = reading.wanted
        watch.arm()
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
            # At the end of the wait whatever is there is read.
            await watch.wait(wanted - size, min(left, reading.wait_seconds) if reading.held else left)
            watch.arm()
            changed = watch.take()
            for item in changed:
                self._note(item)
            items = list({**self._readable, **dict.fromkeys(changed)})
            for item in items:
                _look_again(self._node, item)
        await self._catch_up()
        if call.full:
            return list(session.items.values())
        return [item for item in self._looked if _is_news(item)]

    async def _begin(self) -> list[Item]:
        """Take over what the request changes, and look at what it may concern."""
        call, session = self._call, self._session
        named = await session.ask(call)
        changed = session.watch.take()
        if self._follower:
            known = (call.broker_epoch, self._node.isr.brokers.get(call.replica, -1))
            if known != session.known:
                session.known, named = known, list(session.items.values())
        items = list(dict.fromkeys([*named, *changed, *session.active]))
        if not call.full or session.repeats is not None:
            items = sorted((item for item in items if item.key in session.items), key=lambda item: item.turn)
        await _in_turns(items, self._look)
        # From now on, and not earlier: who is not vouched for any more was looked at above.
        session.watch.fetched_at = self._now
        return items

    def _note(self, item: Item) -> None:
        """Until its response shows that there is nothing to it, each fetch of the session looks at it."""
        self._looked[item] = None
        # What a follower's session vouched for has ended: only a fetch that looks says so again.
        item.rests = False
        if item.watch is not None:
            self._session.active[item] = None

    def _look(self, item: Item) -> None:
        self._looked[item] = self._session.active[item] = None
        item.error, item.leader, item.diverging, item.rests = 0, None, None, False
        replica = _look_up(self._node, item, self._names)
        state = replica.leading if replica is not None and self._registered else None
        self._session.replicates(item, state is not None and state.knows(self._call.replica))
        if replica is None:
            self._session.watch.drop(item)
            return
        waits = self._call.max_wait_ms > 0 or self._call.session_epoch != FINAL_EPOCH
        if waits and not self._session.closed:
            self._session.watch.add(item, replica)
        if self._follower or item.last_epoch >= 0:
            _compare(self._node, self._call, item, replica, self._now, vouches=self._vouches)
        if self._follower and not item.rests and replica.leading is not None:
            replica.leading.release(self._call.replica, item)

    async def _catch_up(self) -> None:
        """A high watermark may have risen while this fetch waited, and a follower does not ask again for its sake."""
        if not self._follower:
            return
        for item in self._session.watch.take():
            self._note(item)
            _look_again(self._node, item)
        await _in_turns(self._looked, _refresh)

    @property
    def has_news(self) -> bool:
        """Whether a response differs from the one before it."""
        return any(_is_news(item) for item in self._looked)

    async def responded(self, rows: Sequence[Item]) -> None:
        """Note what the client has now, and what the session's next fetch need not look at."""
        await _in_turns(rows, self._told)
        await _in_turns(self._looked, self._rest)

    def _told(self, item: Item) -> None:
        if item.error:
            item.told_mark = item.told_start = -2
        else:
            item.told_mark, item.told_start = item.high_watermark, item.log_start
        if item.data:
            self._session.last(item)

    def _rest(self, item: Item) -> None:
        if not (item.settled or item in self._readable or (self._follower and not item.rests)):
            self._session.active.pop(item, None)

    def forget_records(self) -> None:
        """The session keeps nothing that was read."""
        for item in self._looked:
            item.data = b""


def _is_news(item: Item) -> bool:
    """Whether a response of a session has this partition (FetchSession.CachedPartition.maybeUpdateResponseData)."""
    return bool(item.settled or item.data) or (item.high_watermark, item.log_start) != (item.told_mark, item.told_start)


def _refresh(item: Item) -> None:
    if item.replica is not None and not item.error:
        item.high_watermark = item.replica.high_watermark


async def _in_turns(items: Iterable[Item], work: Callable[[Item], None]) -> None:
    """Do something to each, while others have their turns on the loop."""
    for number, item in enumerate(items, 1):
        work(item)
        if number % TURN == 0:
            await give_way(number)


def _look_up(node: Node, item: Item, names: dict[bytes, str]) -> Partition | None:
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


def _look_again(node: Node, item: Item) -> None:
    """After a wait: the replica may be another one by now, or none."""
    replica = item.replica
    if replica is None:
        return
    try:
        if node.replicas.served.get(replica.tp) is not replica:
            replica = item.replica = node.leader(replica.tp)
        replica.check_usable(item.leader_epoch)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)


def _refuse(node: Node, item: Item, error: RequestRefused | StorageError) -> None:
    item.replica = None
    item.error = error.code
    item.high_watermark = item.log_start = -1
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        item.leader = leader_of(node, TopicPartition(item.topic, item.partition))


def _compare(node: Node, call: FetchCall, item: Item, replica: Partition, now: float, *, vouches: bool) -> None:
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
            voucher = item if vouches else None
            item.rests = state.fetched(call.replica, item.offset, item.start, now, call.broker_epoch, voucher)
    except (RequestRefused, StorageError) as error:
        _refuse(node, item, error)
