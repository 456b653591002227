"""A thread that fetches partitions from one leader into one log directory.

While a replica is far behind its leader's high watermark, the next request leaves before the last answer is appended:
the leader reads while this node writes. Closer than that it does not: the offset that a follower asks for tells its
leader up to where it has the records.

Requests go on with a fetch session at the leader (KIP-227): they name the partitions of which something has changed,
and the answers have only such. What is done for a fetch is done for these alone: partitions that do nothing cost
nothing. Whatever may have made the leader's picture another one (an error of the session, a lost connection) ends it,
and the next fetch is a full one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from storage_node.directories.directory import LogDirectory
from storage_node.errors import ErrorCode
from storage_node.replication.connection import Connection, Disconnected
from storage_node.replication.fetch_request import (
    EARLIEST,
    LATEST,
    NO_SESSION,
    AskedRow,
    BadAnswer,
    FetchRow,
    Key,
    fetch_request,
    last_batch,
    offsets_request,
    read_answer,
    read_offset,
    read_session,
)
from storage_node.replication.following import FIRST_PAUSE, Followed, Kind, Place
from storage_node.waiting import Waiter

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Seconds for a connection to be made.
CONNECT = 5.0
#: Seconds between two looks at a throttle's rate, which may change.
LOOK = 0.1
#: An answer with less than this is appended before the next request.
AHEAD = 128 << 10
#: Errors of a session: it is over, and a full fetch begins another one.
SESSION_ENDS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
LAST_EPOCH = 2**31 - 1
#: Seconds between two ends of a wait at the leader for partitions that are new here.
BETWEEN_KICKS = 0.1


_Gone = set[Followed]  # (Lane has a method of that name.)
FULL = (0, 0)
"""A session's id and epoch with which a full fetch begins one."""


@dataclass(slots=True)
class Flight:
    """A request that was sent, and what the throttle granted it (-1: nothing)."""

    correlation: int
    granted: int


class Lane:
    """Started when made; ends with `stop`."""

    def __init__(self, node: Node, place: Place, directory: LogDirectory, misplaced: Callable[[], None]) -> None:
        self.place = place
        self.directory = directory
        self._node = node
        self._settings = node.config.fetch
        self._misplaced = misplaced
        self._client = f"follower-{node.id}"
        self._changed = threading.Condition()
        self._members: tuple[Followed, ...] = ()
        self._broker_epoch = -1
        self._stopping = False
        self._connection: Connection | None = None
        self._waiting = self._kicked = False
        self._last_kick = 0.0
        self._pause = FIRST_PAUSE
        self._complaint = ""
        # Only the thread's own from here on.
        self._joined: tuple[Followed, ...] = ()
        """The members whose changes are noted."""
        self._waiters: dict[Followed, Waiter] = {}
        self._stirred: deque[Followed] = deque()
        """To which something has happened: on any thread."""
        self._look_at: dict[Followed, None] = {}
        """Whose row in the next request may be another one than in the last."""
        self._delayed: dict[Followed, None] = {}
        """Which are asked for again at their `retry_at`."""
        self._asked: dict[Followed, AskedRow] = {}
        """What the leader was asked for last: in a session, what it goes by."""
        self._by_key: dict[Key, Followed] = {}
        self._session = FULL
        self._correlation = 0
        self._turns = 0
        name = f"fetch-{place.leader}-{directory.path.name}-{place.kind.name.lower()}-{place.index}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # From other threads

    def set(self, members: Sequence[Followed], broker_epoch: int) -> None:
        """Fetch these from now on, under this node's broker epoch."""
        with self._changed:
            new = not set(members) <= set(self._members)
            self._members, self._broker_epoch = tuple(members), broker_epoch
            self._pause = FIRST_PAUSE
            self._changed.notify_all()
            now = time.monotonic()
            if new and self._waiting and now - self._last_kick > BETWEEN_KICKS:
                # The leader may keep the request for half a second, without those that came now.
                self._last_kick, self._kicked = now, True
                self._shut_down()

    def stop(self) -> None:
        """End the thread; whoever must know that it has ended calls `join`."""
        with self._changed:
            self._stopping = True
            self._members = ()
            self._changed.notify_all()
            self._shut_down()

    def join(self) -> None:
        """Wait until the thread has ended, but not for one that hangs in a directory that is offline."""
        while self._thread.is_alive() and self.directory.online and self._thread is not threading.current_thread():
            self._thread.join(0.1)

    def _shut_down(self) -> None:
        if self._connection is not None:
            self._connection.shut_down()

    def _close(self) -> None:
        """Called by the thread alone, which may otherwise be about to read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The thread

    def _run(self) -> None:
        flight: Flight | None = None
        while not self._stopping:
            try:
                if flight is None:
                    flight = self._ask()
                if flight is not None:
                    flight = self._take(flight, self._receive(waits=True))
                    self._complaint, self._pause = "", FIRST_PAUSE
            except (Disconnected, BadAnswer) as error:
                self._lost(flight, error)
                flight = None
            except Exception as error:
                log.exception("fetching from node %d failed", self.place.leader)
                self._lost(flight, error)
                flight = None
        for followed in tuple(self._waiters):
            self._leave(followed)
        with self._changed:
            self._close()

    def _lost(self, flight: Flight | None, error: Exception) -> None:
        """The connection is of no use any more; the next one is tried after a pause, unless we closed it."""
        if flight is not None and flight.granted > 0:
            self._node.quotas.follower.give_back(flight.granted)
        with self._changed:
            self._close()
            self._begin_anew()
            if self._kicked or self._stopping:
                self._kicked = False
                return
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.info("fetching from node %d: %s", self.place.leader, error)
            pause, self._pause = self._pause, min(self._pause * 2, self._settings.backoff_ms / 1000)
            self._changed.wait(pause)

    def _receive(self, *, waits: bool) -> memoryview:
        with self._changed:
            connection = self._connection
            self._waiting = waits
        if connection is None:
            raise Disconnected("the connection was closed")
        try:
            return connection.receive()
        finally:
            self._waiting = False

    def _send(self, data: bytes | bytearray) -> None:
        connection = self._connection
        if connection is None:
            place, settings = self.place, self._settings
            timeout = (settings.socket_timeout_ms + settings.wait_ms) / 1000
            made = Connection(place.host, place.port, connect_timeout=min(CONNECT, timeout), timeout=timeout)
            with self._changed:
                if self._stopping:
                    made.close()
                    raise Disconnected("the fetcher stops")
                self._connection = connection = made
        connection.send(data)

    # Asking

    def _ask(self) -> Flight | None:
        """Send a request for all that may be asked for now; None, after a wait, when there is nothing."""
        now = time.monotonic()
        members = self._members
        changed, gone = self._changes(members, now, {})
        if not changed and not self._asked.keys() - gone:
            # (What is in the session of a leader that is asked no more is forgotten with the session.)
            self._begin_anew()
            again = min((f.retry_at for f in self._delayed), default=now + 1.0)
            with self._changed:
                if self._members is members and not self._stopping and not self._stirred:
                    self._changed.wait(min(max(again - now, 0.001), 1.0))
            return None
        granted = self._granted()
        if granted == 0:
            self._look_at.update(dict.fromkeys(changed))
            with self._changed:
                self._changed.wait(min(max(self._node.quotas.follower.wait_seconds(), 0.001), LOOK))
            return None
        return self._fetch(changed, gone, granted)

    def _begin_anew(self) -> None:
        """The next fetch names everything, and closes the session if there is one."""
        self._session = (self._session[0], 0)
        self._look_at.update(dict.fromkeys(self._joined))
        self._asked.clear()
        self._by_key.clear()

    def _changes(
        self, members: tuple[Followed, ...], now: float, ahead: dict[Followed, tuple[int, int]]
    ) -> tuple[dict[Followed, AskedRow], _Gone]:
        """Whose row in a request is another one now, and who is not asked for any more.

        `ahead`: offset and epoch from which to go on where an append is still to come.
        """
        if members is not self._joined:
            self._join(members)
        if self.place.kind is Kind.THROTTLED:
            self._look_at.update(dict.fromkeys(members))
            self._asked.clear()
            self._by_key.clear()
        while self._stirred:
            followed = self._stirred.popleft()
            if followed in self._waiters:
                self._look_at[followed] = None
        if self._delayed:
            self._look_at.update(dict.fromkeys(f for f in self._delayed if f.retry_at <= now))
        changed: dict[Followed, AskedRow] = {}
        gone = self._asked.keys() - self._waiters.keys()
        misplaced = False
        for followed in self._look_at:
            self._delayed.pop(followed, None)
            if followed not in self._waiters:
                continue
            here = followed.partition.directory is self.directory
            misplaced = misplaced or not here
            if not here or not followed.due(now):
                if followed.retry_at > now:
                    self._delayed[followed] = None
                if followed in self._asked:
                    gone.add(followed)
                continue
            row = self._row(followed, ahead.get(followed))
            if row != self._asked.get(followed):
                changed[followed] = row
        self._look_at.clear()
        if misplaced:
            self._misplaced()
        return changed, gone

    def _join(self, members: tuple[Followed, ...]) -> None:
        """Note what happens to these from now on, and no more of others."""
        wanted = dict.fromkeys(members)
        for followed in [each for each in self._waiters if each not in wanted]:
            self._leave(followed)
        for followed in wanted:
            if followed not in self._waiters:
                # (One of this thread's own: the same one may be on its way to or from another thread.)
                waiter = self._waiters[followed] = partial(self._stir, followed)
                followed.partition.add_waiter(waiter)
                self._look_at[followed] = None
        self._joined = members

    def _leave(self, followed: Followed) -> None:
        followed.partition.remove_waiter(self._waiters.pop(followed))
        self._delayed.pop(followed, None)

    def _stir(self, followed: Followed, _size: int) -> None:
        """Its role, its log or its directory is another one; on any thread."""
        self._stirred.append(followed)

    def _row(self, followed: Followed, ahead: tuple[int, int] | None) -> AskedRow:
        replica = followed.partition.log
        offset, fetched = ahead if ahead is not None else (replica.log_end_offset, replica.latest_epoch)
        return AskedRow(followed.epoch, offset, fetched, replica.log_start_offset, self._settings.max_bytes)

    def _granted(self) -> int:
        """What the throttle lets pass now, -1 for what is not throttled."""
        quota = self._node.quotas.follower
        if self.place.kind is not Kind.THROTTLED or quota.rate is None:
            return -1
        self._turns += 1
        return quota.grant(self._settings.response_max_bytes)

    def _fetch(self, changed: dict[Followed, AskedRow], gone: _Gone, granted: int) -> Flight:
        """Send a request with what has changed, or with everything where there is no session to go on with."""
        settings = self._settings
        for followed in gone:
            del self._asked[followed], self._by_key[followed.key]
        self._asked.update(changed)
        self._by_key.update((followed.key, followed) for followed in changed)
        session = self._session if self.place.kind is not Kind.THROTTLED else NO_SESSION
        if session[1] <= 0:
            changed, gone = self._asked, set()
        rows = [(followed.key, row) for followed, row in changed.items()]
        if self.place.kind is Kind.THROTTLED and rows:
            # Each comes first in its turn: to the first one a batch is sent however large it is.
            turn = self._turns % len(rows)
            rows = rows[turn:] + rows[:turn]
            if granted >= 0:
                rows = [(key, row._replace(most=min(row.most, granted))) for key, row in rows]
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        request = fetch_request(
            self._correlation,
            rows,
            client=self._client,
            replica=self._node.id,
            broker_epoch=self._broker_epoch,
            wait_ms=settings.wait_ms if granted < 0 else min(settings.wait_ms, int(LOOK * 1000)),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes if granted < 0 else granted,
            session=session,
            forgotten=[followed.key for followed in gone if followed.key not in self._by_key],
        )
        if session[0] and session[1]:
            self._session = (session[0], 1 if session[1] == LAST_EPOCH else session[1] + 1)
        flight = Flight(self._correlation, granted)
        self._send(request)
        return flight

    # Answers

    def _take(self, flight: Flight, view: memoryview) -> Flight | None:
        """Apply an answer; the next request, where it was sent already."""
        error, session = read_session(view, flight.correlation)
        if error in SESSION_ENDS:
            log.info("the fetch session at node %d is over (error %d)", self.place.leader, error)
            self._give_back(flight, 0)
            self._session = (0, 0)
            self._begin_anew()
            return None
        rows = list(read_answer(view, flight.correlation))
        used = sum(len(row.records) for row in rows)
        self._give_back(flight, used)
        if self._session[1] == 0:
            # A full fetch has begun one, unless the leader has no room for it.
            self._session = (session, 1 if session else 0)
        elif not session:
            raise BadAnswer("the leader has ended the fetch session without an error")
        found: list[tuple[Followed, FetchRow, int]] = []
        for row in rows:
            followed = self._by_key.get((row.topic_id, row.partition))
            if followed is None:
                raise BadAnswer(f"partition {row.partition} was not asked for")
            found.append((followed, row, self._asked[followed].offset))
        following = self._ahead(flight, found, used)
        lost = []
        for followed, row, asked in found:
            if followed.place is self.place and not followed.apply(row, asked):
                lost.append(followed)
            self._look_at[followed] = None
        for followed in lost:
            self._look_for(followed)
        return following

    def _give_back(self, flight: Flight, used: int) -> None:
        if flight.granted >= 0:
            self._node.quotas.follower.give_back(flight.granted - used)
            flight.granted = 0

    def _ahead(self, flight: Flight, found: Sequence[tuple[Followed, FetchRow, int]], used: int) -> Flight | None:
        """Send the next request before this answer is appended, where that tells the leader nothing that is not so:
        below its high watermark it neither commits by it nor takes it for in sync.
        """
        if used < AHEAD or flight.granted >= 0 or self._stopping or self.place.kind is Kind.THROTTLED:
            return None
        ahead: dict[Followed, tuple[int, int]] = {}
        for followed, row, asked in found:
            if row.error or row.diverging is not None:
                return None
            if row.records:
                last = last_batch(row.records)
                if last is None or last[0] >= row.high_watermark or last[0] <= asked:
                    return None
                ahead[followed] = last
        self._look_at.update(dict.fromkeys(ahead))
        changed, gone = self._changes(self._members, time.monotonic(), ahead)
        if not changed:
            self._look_at.update(dict.fromkeys(gone))
            return None
        return self._fetch(changed, gone, -1)

    def _look_for(self, followed: Followed) -> None:
        """Ask where the leader's log ends and starts, and go on from there."""
        offsets = []
        for time_asked in (LATEST, EARLIEST):
            self._correlation = (self._correlation + 1) & 0x7FFFFFFF
            (request,) = offsets_request(
                self._correlation,
                self._client,
                self._node.id,
                followed.tp.topic,
                followed.tp.partition,
                followed.epoch,
                (time_asked,),
            )
            self._send(request)
            error, offset = read_offset(self._receive(waits=False), self._correlation)
            if error or offset < 0:
                followed.later(f"its leader's offsets are not known: error {error}", quietly=True)
                return
            offsets.append(offset)
        followed.out_of_range(*offsets)
