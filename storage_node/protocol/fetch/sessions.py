"""Fetch sessions (KIP-227): the node keeps the partitions of a client's fetches, and requests name only the changes.

A full fetch with session epoch 0 opens a session. The next requests have its id and the next epoch; they change
offsets, add partitions and forget some. A response has only the partitions with records, an error, a diverging epoch,
or another high watermark or log start offset than the last response that had them. A partition with records in a
response moves to the end of the session's order.

The cache has two limits: the number of sessions, with Kafka's eviction rules, and the number of partitions, since a
session may have as many as a request can name. A client that cannot get a session receives id 0 and fetches without
one. Any client can send a replica id: a session is a follower's if the node of that id has replicas of most of its
partitions.

Some clients (librdkafka among them) do not use sessions and name all partitions in each request. A request that differs
from the last one of its connection in some offsets only is handled as an incremental fetch of these partitions, though
its response has all partitions. The node drops this state when the connection closes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from storage_node.directories.names import TOPIC_MAX
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.fetch.call import CONSUMER, FINAL_EPOCH, TURN, FetchCall, Item, Outline
from storage_node.protocol.fetch.changed_items import ChangedItems
from storage_node.protocol.network.sending import Buffer, FilePart
from storage_node.protocol.request import Request
from storage_node.small_first import give_way

#: max.incremental.fetch.session.cache.slots, as in Apache Kafka.
SLOTS = 1000
#: min.incremental.fetch.session.eviction.ms, as in Apache Kafka; in seconds.
EVICTION = 120.0
#: The most partitions in the sessions of followers, and in those of consumers: about 25 MB each.
MOST_PARTITIONS = 40_000
#: The fewest partitions of a request without a session that is recognised when its client repeats it.
FEWEST_REPEATED = 8
#: Seconds after which the node drops the state of a request that was not repeated.
FORGOTTEN = 60.0
LAST_EPOCH = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """Return the next session epoch, which wraps to 1: epoch 0 is a full fetch's."""
    return 1 if epoch == LAST_EPOCH else epoch + 1


@dataclass(frozen=True, slots=True, order=True)
class Standing:
    """A session's rank at an eviction: followers' sessions rank above consumers', larger ones above smaller ones."""

    privileged: bool
    size: int
    number: int = 0


def victims(
    sessions: Mapping[int, tuple[Standing, float, float]], new: Standing, now: float, eviction: float = EVICTION
) -> list[int]:
    """Return the sessions that may be evicted for a new one, in order (FetchSessionCacheShard.tryEvict).

    `sessions`: by id the rank, when the session was opened, and when it was last used. Sessions without a request for
    `eviction` seconds come first. Then come those that rank below the new one, the lowest first, if they were opened
    that long ago or if the new session is a follower's and they are not.
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
    """Unregister items from their partitions, yielding to other callbacks of the loop."""
    for number, item in enumerate(items, 1):
        if item.changed_items is not None:
            item.changed_items.drop(item)
        if number == TURN:
            asyncio.get_running_loop().call_soon(_drop, items)
            return


class Session:
    """The partitions of one session, or of one fetch without a session.

    Used on the loop only; a fetch of the session holds `lock`.
    """

    def __init__(self, replica: int, by_id: bool, now: float) -> None:
        self.id = 0
        self.epoch = 1
        """The epoch of the next request."""
        self.replica = replica
        self.by_id = by_id
        self.opened = self.used = now
        self.closed = False
        self.kept_names = True
        """Whether all names are short enough for a topic's: the cache does not keep longer ones."""
        self.items: dict[tuple[bytes | str, int], Item] = {}
        self.active: dict[Item, None] = {}
        """The items that every fetch checks: with records, with an error, or of a follower that has not caught up."""
        self.changed_items = ChangedItems(replica)
        self.lock = asyncio.Lock()
        self.repeats: tuple[FetchCall, Outline] | None = None
        """The request without a session that is recognised when the client repeats it."""
        self.body: list[Buffer | FilePart] | None = None
        """The response to it, if it has no records."""
        self.known: tuple[int, int] | None = None
        """The follower's broker epoch: that of its last fetch, and the registered one."""
        self.replicated = 0
        """The number of items that the fetching node replicates."""
        self.counted = 0
        self.counted_privileged = False
        """`counted`: the partitions of this session in the cache's sum for followers (if `counted_privileged`) or
        consumers.
        """
        self._turns = 0

    @property
    def privileged(self) -> bool:
        """Whether it is a follower's: half of the items suffice, since a new leader may not know all replicas yet."""
        return 2 * self.replicated > len(self.items)

    @property
    def standing(self) -> Standing:
        return Standing(self.privileged, len(self.items), self.id)

    async def ask(self, call: FetchCall) -> list[Item]:
        """Apply a request's changes; returns the items that it names."""
        named = []
        for number, requested in enumerate(call.items):
            item = self.items.get(requested.key)
            if item is None:
                self.kept_names = self.kept_names and len(requested.topic) <= TOPIC_MAX
                item = self.items[requested.key] = requested
                self.last(item)
            else:
                item.ask(requested)
            named.append(item)
            if number % TURN == TURN - 1:
                await give_way(number)
        for key in call.forgotten:
            gone = self.items.get(key)
            if gone is not None:
                self.replicates(gone, False)
                del self.items[key]
                self.active.pop(gone, None)
                self.changed_items.drop(gone)
        return named

    def last(self, item: Item) -> None:
        """Move an item to the end of the session's order."""
        self._turns += 1
        item.turn = self._turns

    def replicates(self, item: Item, replicated: bool) -> None:
        """Record whether the fetching node replicates an item's partition."""
        if item.replicated is not replicated and item.key in self.items:
            item.replicated = replicated
            self.replicated += 1 if replicated else -1

    def close(self) -> None:
        """Drop all items, yielding to other callbacks of the loop."""
        _drop(self.end())

    def end(self) -> Iterator[Item]:
        """Close the session; returns its items, which the caller must unregister (`_drop`)."""
        self.closed = True
        self.changed_items.end_wait()
        items = self.items.values()
        self.items, self.active, self.replicated = {}, {}, 0
        return iter(items)


class FetchSessions:
    """The session cache of a node. Not thread-safe: use it on the listener's loop only."""

    def __init__(self, slots: int = SLOTS, most: int = MOST_PARTITIONS) -> None:
        self._slots = slots
        self._most = most
        self._sessions: dict[int, Session] = {}
        self._repeated: dict[int, Session] = {}
        """Requests without a session that a client may repeat, by the number of their connection."""
        self._held = {True: 0, False: 0}
        """The partitions of all sessions, followers' (True) and consumers': a fetch need not sum them up."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The number of partitions in all sessions."""
        return sum(session.counted for session in self._sessions.values())

    def begin(self, call: FetchCall, *, by_id: bool, now: float) -> tuple[Session | None, int]:
        """Return the session of a request, or the error of the response.

        Increments the session's epoch, so that the second of two requests with the same epoch is rejected.
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
        # An earlier fetch of the session may still wait: the client no longer expects its response.
        session.changed_items.end_wait()
        return session, 0

    def repeated(self, request: Request, outlined: Outline | None, now: float) -> tuple[Session, FetchCall] | None:
        """Return the kept session of a request that repeats its connection's last one, and a call with the changed
        partitions; None if it does not repeat it.
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
        """Keep a request without a session, to recognise it when the client repeats it."""
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
        """Drop the requests that were not repeated for FORGOTTEN seconds."""
        for connection in [connection for connection, other in self._repeated.items() if now - other.used > FORGOTTEN]:
            self.disconnected(connection)

    def disconnected(self, connection: int) -> None:
        """Drop the kept request of a closed connection."""
        session = self._repeated.pop(connection, None)
        if session is None:
            return
        self._count(session, 0)
        if session.lock.locked():
            session.repeats = None
        else:
            session.close()

    def keep(self, session: Session, call: FetchCall, now: float) -> bool:
        """Return whether the cache keeps a session after a fetch; assigns a new session's id."""
        if session.closed:
            return True  # evicted meanwhile: the next request fails with FETCH_SESSION_ID_NOT_FOUND
        if session.id:
            if not session.items:
                self.close(session.id)
                return False
            self._count(session, len(session.items))
            if not (self._fits(session.privileged, 0) and session.kept_names):
                self.close(session.id)
            return True
        if call.session_epoch == FINAL_EPOCH or not session.kept_names or not self._make_room(session, now):
            return False
        session.opened = session.used = now
        while not session.id or session.id in self._sessions:
            session.id = random.randint(1, LAST_EPOCH)
        self._sessions[session.id] = session
        self._count(session, len(session.items))
        return True

    def _fits(self, privileged: bool, more: int) -> bool:
        """Return whether the sessions of this kind stay within the limit with `more` partitions."""
        return self._held[privileged] + more <= self._most

    def _count(self, session: Session, partitions: int) -> None:
        self._held[session.counted_privileged] -= session.counted
        session.counted, session.counted_privileged = partitions, session.privileged
        self._held[session.counted_privileged] += partitions

    def _make_room(self, new: Session, now: float) -> bool:
        """Evict sessions for a new one; returns False, without an eviction, if they do not suffice."""
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
        """Close the session with this id, if it exists."""
        self._close([number] if number in self._sessions else [])

    def _close(self, numbers: list[int]) -> None:
        sessions = [self._sessions.pop(number) for number in numbers]
        for session in sessions:
            self._count(session, 0)
        _drop(chain.from_iterable([session.end() for session in sessions]))
