"""Fetch sessions (KIP-227): what a client fetches is remembered, so that a request names only what changed.

A full fetch with session epoch 0 opens one. The next requests name its id and count its epoch up; they change offsets,
add partitions and forget some, and a response has only partitions with records, an error, a divergence, or another high
watermark or log start offset than the last response that had them. Whoever got records comes last from then on.

What is kept is bounded twice: in sessions, with Kafka's rules of who makes room for whom, and in partitions, since a
session may hold as many as a request can name. A client that is refused a session gets id 0 and goes on without.

Some clients (librdkafka among them) know no sessions and name everything over and over. A request that says the same as
the last one of its connection, but for some offsets, is gone on with as in a session that names these alone. The
response still has all partitions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from storage_node.directories.names import TOPIC_MAX
from storage_node.errors import ErrorCode
from storage_node.protocol.fetch_call import CONSUMER, FINAL_EPOCH, TURN, FetchCall, Item, Outline
from storage_node.protocol.fetch_watch import Watch
from storage_node.protocol.request import Request
from storage_node.protocol.sending import Buffer, FilePart

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


def victim(
    sessions: Mapping[int, tuple[Standing, float, float]], new: Standing, now: float, eviction: float = EVICTION
) -> int | None:
    """The session that makes room for a new one, None if none does (FetchSessionCacheShard.tryEvict).

    `sessions`: by id their standing, when they were opened, and when they were last used. One that nobody used for
    `eviction` seconds goes first. Else the least goes, if it is below the new one: a session that was opened so long
    ago, or, for a follower's, any of a client.
    """
    if not sessions:
        return None
    oldest = min(sessions, key=lambda number: sessions[number][2])
    if now - sessions[oldest][2] > eviction:
        return oldest
    candidates = [
        (standing, number)
        for number, (standing, opened, _) in sessions.items()
        if now - opened > eviction or (new.privileged and not standing.privileged)
    ]
    if not candidates:
        return None
    least, number = min(candidates)
    return number if (least.privileged, least.size) < (new.privileged, new.size) else None


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
        self.counted = 0
        """So many of the partitions that sessions of its kind may have are its own."""
        self._turns = 0

    @property
    def privileged(self) -> bool:
        """Whether it is a follower's."""
        return self.replica != CONSUMER

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
                await asyncio.sleep(0)
        for key in call.forgotten:
            gone = self.items.pop(key, None)
            if gone is not None:
                self.active.pop(gone, None)
                self.watch.drop(gone)
        return named

    def last(self, item: Item) -> None:
        """It comes last from now on."""
        self._turns += 1
        item.turn = self._turns

    def close(self) -> None:
        """Forget everything; in turns with others on the loop."""
        self.closed = True
        self.watch.end_wait()
        items = iter(list(self.items.values()))
        self.items, self.active = {}, {}
        self._drop(items)

    def _drop(self, items: Iterable[Item]) -> None:
        for number, item in enumerate(items, 1):
            self.watch.drop(item)
            if number == TURN:
                asyncio.get_running_loop().call_soon(self._drop, items)
                return


class FetchSessions:
    """All sessions of a node; on the listener's loop."""

    def __init__(self, slots: int = SLOTS, most: int = MOST_PARTITIONS) -> None:
        self._slots = slots
        self._most = most
        self._sessions: dict[int, Session] = {}
        self._repeated: dict[int, Session] = {}
        """By their connection: requests without a session that may come again."""
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
        now = session.used
        for connection in [connection for connection, other in self._repeated.items() if now - other.used > FORGOTTEN]:
            self._forget(connection)
        self._forget(request.connection)
        size = len(session.items)
        if (
            outlined is not None
            and call.replica == CONSUMER
            and call.max_wait_ms > 0
            and size >= FEWEST_REPEATED
            and size == outlined.count  # no partition twice
            and session.kept_names
            and len(self._repeated) < self._slots
            and self._fits(session, size)
        ):
            session.repeats = replace(call, items=[]), outlined
            self._repeated[request.connection] = session
            self._count(session, size)

    def _forget(self, connection: int) -> None:
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
            if not (self._fits(session, 0) and session.kept_names):
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

    def _fits(self, session: Session, more: int) -> bool:
        """Whether the sessions of its kind have no more partitions than they may, with so many more."""
        return self._held[session.privileged] + more <= self._most

    def _count(self, session: Session, partitions: int) -> None:
        self._held[session.privileged] += partitions - session.counted
        session.counted = partitions

    def _room(self, new: Session, now: float) -> bool:
        standing = new.standing
        while len(self._sessions) >= self._slots or not self._fits(new, standing.size):
            crowded = len(self._sessions) < self._slots
            others = {
                number: (session.standing, session.opened, session.used)
                for number, session in self._sessions.items()
                if not crowded or session.privileged is standing.privileged
            }
            gone = victim(others, standing, now)
            if gone is None:
                return False
            self.close(gone)
        return True

    def close(self, number: int) -> None:
        """Forget a session, if there is one of this id."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self._count(session, 0)
            session.close()
