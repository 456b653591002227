"""Fetch sessions (KIP-227): what a client fetches is remembered, so that a request names only what changed.

A full fetch with session epoch 0 opens one. The next requests name its id and count its epoch up; they change offsets,
add partitions and forget some, and a response has only partitions with records, an error, a divergence, or another high
watermark or log start offset than the last response that had them. Whoever got records comes last from then on.

What is kept is bounded twice: in sessions, with Kafka's rules of who makes room for whom, and in partitions, since a
session may hold as many as a request can name. A client that is refused a session gets id 0 and goes on without. Any
client can claim a replica id: a session is a follower's if the node of that id has replicas of most of its partitions.

Some clients (librdkafka among them) know no sessions and name everything over and over. A request that says the same as
the last one of its connection, but for some offsets, is gone on with as in a session that names these alone. The
response still has all partitions. It is forgotten when the connection is closed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from storage_node.directories.names import TOPIC_MAX
from storage_node.errors import ErrorCode
from storage_node.protocol.fetch_call import CONSUMER, FINAL_EPOCH, TURN, FetchCall, Item, Outline
from storage_node.protocol.fetch_watch import Watch
from storage_node.protocol.request import Request
from storage_node.protocol.sending import Buffer, FilePart
from storage_node.small_first import give_way

#: max.incremental.fetch.session.cache.slots, as in Apache Kafka.
SLOTS = 1000
#: min.incremental.fetch.session.eviction.ms, as in Apache Kafka; in seconds.
EVICTION = 120.0
#: Partitions of all sessions of followers, and of all others: about 25 MB each.
MOST_PARTITIONS = 40_000
#: From so many partitions on a request without a session is recognised when it comes again.
FEWEST_REPEATED = 8
#: Seconds after which a client is not expected to send the same again.
FORGOTTEN = 60.0
LAST_EPOCH = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """The session epoch after this one: 0 is for full fetches alone."""
    return 1 if epoch == LAST_EPOCH else epoch + 1


@dataclass(frozen=True, slots=True, order=True)
class Standing:
    """What decides who makes room: followers stay before clients, larger sessions before smaller ones."""

    privileged: bool
    size: int
    number: int = 0


def victims(
    sessions: Mapping[int, tuple[Standing, float, float]], new: Standing, now: float, eviction: float = EVICTION
) -> list[int]:
    """Return the sessions that may make room for a new one, the first to go first (FetchSessionCacheShard.tryEvict).

    `sessions`: by id their standing, when they were opened, and when they were last used. Those that no request used
    for `eviction` seconds come first. Then those below the new one come, the least first: sessions that were opened so
    long ago, or, for a follower's, any of a client.
    """
    unused: list[tuple[float, int]] = []
    below: list[tuple[Standing, int]] = []
    for number, (standing, opened, used) in sessions.items():
        if now - used > eviction:
            unused.append((used, number))
        elif (now - opened > eviction or (new.privileged and not standing.privileged)) and (
            (standing.privileged, standing.size) < (new.privileged, new.size)
        ):
            below.append((standing, number))
    return [*(number for _, number in sorted(unused)), *(number for _, number in sorted(below))]


def _drop(items: Iterator[Item]) -> None:
    """Note nothing more of what happens to these; in turns with others on the loop."""
    for number, item in enumerate(items, 1):
        if item.watch is not None:
            item.watch.drop(item)
        if number == TURN:
            asyncio.get_running_loop().call_soon(_drop, items)
            return


class Session:
    """The partitions of one session, or of one fetch without. On the loop; a fetch of it holds `lock`."""

    def __init__(self, replica: int, by_id: bool, now: float) -> None:
        self.id = 0
        self.epoch = 1
        """Of the next request."""
        self.replica = replica
        self.by_id = by_id
        self.opened = self.used = now
        self.closed = False
        self.kept_names = True
        """Whether all names may be those of topics: others are not remembered, however long they are."""
        self.items: dict[tuple[bytes | str, int], Item] = {}
        self.active: dict[Item, None] = {}
        """What every fetch looks at: partitions with records, with an error, of a follower that has not caught up."""
        self.watch = Watch(replica)
        self.lock = asyncio.Lock()
        self.repeats: tuple[FetchCall, Outline] | None = None
        """The request that is recognised when it comes again."""
        self.body: list[Buffer | FilePart] | None = None
        """The response to it, where it has no records."""
        self.known: tuple[int, int] | None = None
        """The follower's broker epoch as its last fetch named it, and as it is registered."""
        self.replicated = 0
        """So many of its partitions are replicated by the node that fetches."""
        self.counted = 0
        self.counted_privileged = False
        """So many of the partitions that followers' sessions may have, or others, are counted as its own."""
        self._turns = 0

    @property
    def privileged(self) -> bool:
        """Whether it is a follower's: a leader that has just begun may not know yet of some of its partitions."""
        return 2 * self.replicated > len(self.items)

    @property
    def standing(self) -> Standing:
        return Standing(self.privileged, len(self.items), self.id)

    async def ask(self, call: FetchCall) -> list[Item]:
        """Take over what a request changes; returns the items that it names."""
        named = []
        for number, asked in enumerate(call.items):
            item = self.items.get(asked.key)
            if item is None:
                self.kept_names = self.kept_names and len(asked.topic) <= TOPIC_MAX
                item = self.items[asked.key] = asked
                self.last(item)
            else:
                item.ask(asked)
            named.append(item)
            if number % TURN == TURN - 1:
                await give_way(number)
        for key in call.forgotten:
            gone = self.items.get(key)
            if gone is not None:
                self.replicates(gone, False)
                del self.items[key]
                self.active.pop(gone, None)
                self.watch.drop(gone)
        return named

    def last(self, item: Item) -> None:
        """It comes last from now on."""
        self._turns += 1
        item.turn = self._turns

    def replicates(self, item: Item, replicated: bool) -> None:
        """Count a partition as one that the fetching node replicates, or no more as such."""
        if item.replicated is not replicated and item.key in self.items:
            item.replicated = replicated
            self.replicated += 1 if replicated else -1

    def close(self) -> None:
        """Forget everything; in turns with others on the loop."""
        _drop(self.end())

    def end(self) -> Iterator[Item]:
        """Forget everything but what is still to be dropped: the returned items."""
        self.closed = True
        self.watch.end_wait()
        items = self.items.values()
        self.items, self.active, self.replicated = {}, {}, 0
        return iter(items)


class FetchSessions:
    """All sessions of a node; on the listener's loop."""

    def __init__(self, slots: int = SLOTS, most: int = MOST_PARTITIONS) -> None:
        self._slots = slots
        self._most = most
        self._sessions: dict[int, Session] = {}
        self._repeated: dict[int, Session] = {}
        """By the number of their connection: requests without a session that may come again."""
        self._held = {True: 0, False: 0}
        """Partitions of all of these, of followers and of others: no fetch goes through the others' sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions all sessions have."""
        return sum(session.counted for session in self._sessions.values())

    def begin(self, call: FetchCall, *, by_id: bool, now: float) -> tuple[Session | None, int]:
        """The session of a request, or the error that it is answered with. Its epoch is the next one's from now on, so
        that of two requests of one epoch one is refused.
        """
        if call.full:
            if call.session_id:
                self.close(call.session_id)
            return Session(call.replica, by_id, now), 0
        session = self._sessions.get(call.session_id)
        if session is None or session.replica != call.replica:
            return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != call.session_epoch:
            return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return None, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = next_epoch(session.epoch)
        session.used = now
        # One of its fetches may still wait: the client has given that up.
        session.watch.end_wait()
        return session, 0

    def repeated(self, request: Request, outlined: Outline | None, now: float) -> tuple[Session, FetchCall] | None:
        """What is known of a request without a session that has come before over the same connection, and what this one
        says anew.
        """
        session = self._repeated.get(request.connection)
        if session is None or session.closed or session.repeats is None or outlined is None:
            return None
        call, known = session.repeats
        named = outlined.items(known)
        if named is None:
            return None
        session.used = now
        session.repeats = call, outlined
        return session, replace(call, items=named)

    def remember(self, request: Request, outlined: Outline | None, session: Session, call: FetchCall) -> None:
        """Recognise a request without a session if it comes again."""
        self._purge(session.used)
        self.disconnected(request.connection)
        size = len(session.items)
        if (
            outlined is not None
            and call.replica == CONSUMER
            and call.max_wait_ms > 0
            and size >= FEWEST_REPEATED
            and size == outlined.count  # no partition twice
            and session.kept_names
            and len(self._repeated) < self._slots
            and self._fits(False, size)
        ):
            session.repeats = replace(call, items=[]), outlined
            self._repeated[request.connection] = session
            self._count(session, size)

    def _purge(self, now: float) -> None:
        """Forget requests that have not come again for long."""
        for connection in [connection for connection, other in self._repeated.items() if now - other.used > FORGOTTEN]:
            self.disconnected(connection)

    def disconnected(self, connection: int) -> None:
        """Forget the request without a session that may come again over a connection."""
        session = self._repeated.pop(connection, None)
        if session is None:
            return
        self._count(session, 0)
        if session.lock.locked():
            session.repeats = None
        else:
            session.close()

    def keep(self, session: Session, call: FetchCall, now: float) -> bool:
        """Whether a session lives on after a fetch; a new one gets its id here."""
        if session.closed:
            return True  # evicted meanwhile: the next request is told so
        if session.id:
            if not session.items:
                self.close(session.id)
                return False
            self._count(session, len(session.items))
            if not (self._fits(session.privileged, 0) and session.kept_names):
                self.close(session.id)
            return True
        if call.session_epoch == FINAL_EPOCH or not session.kept_names or not self._room(session, now):
            return False
        session.opened = session.used = now
        while not session.id or session.id in self._sessions:
            session.id = random.randint(1, LAST_EPOCH)
        self._sessions[session.id] = session
        self._count(session, len(session.items))
        return True

    def _fits(self, privileged: bool, more: int) -> bool:
        """Whether the sessions of this kind have no more partitions than they may, with so many more."""
        return self._held[privileged] + more <= self._most

    def _count(self, session: Session, partitions: int) -> None:
        self._held[session.counted_privileged] -= session.counted
        session.counted, session.counted_privileged = partitions, session.privileged
        self._held[session.counted_privileged] += partitions

    def _room(self, new: Session, now: float) -> bool:
        """Close the sessions that make room for a new one; False, and none is closed, where they do not suffice."""
        self._purge(now)
        standing = new.standing
        places = len(self._sessions) + 1 - self._slots
        partitions = self._held[standing.privileged] + standing.size - self._most
        if places <= 0 and partitions <= 0:
            return True
        known = {number: (each.standing, each.opened, each.used) for number, each in self._sessions.items()}
        gone: list[int] = []
        for number in victims(known, standing, now):
            session = self._sessions[number]
            same = session.counted_privileged is standing.privileged
            if places <= 0 and not same:
                continue
            gone.append(number)
            places -= 1
            partitions -= session.counted if same else 0
            if places <= 0 and partitions <= 0:
                self._close(gone)
                return True
        return False

    def close(self, number: int) -> None:
        """Forget a session, if there is one of this id."""
        self._close([number] if number in self._sessions else [])

    def _close(self, numbers: list[int]) -> None:
        sessions = [self._sessions.pop(number) for number in numbers]
        for session in sessions:
            self._count(session, 0)
        _drop(chain.from_iterable([session.end() for session in sessions]))
