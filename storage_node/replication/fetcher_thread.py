"""A fetcher thread: fetches partitions of one leader into one log directory (Kafka: ReplicaFetcherThread).

While a replica is far below its leader's high watermark, the next request is sent before the last response is appended,
so that the leader reads while this node writes. Closer to it that is not allowed: a fetch offset confirms to the leader
that the follower has all records before it.

Requests use a fetch session at the leader (KIP-227): requests and responses name only the partitions that have changed,
and this thread works only on those, so that idle partitions cost nothing. Whatever may have changed the leader's
session state (a session error, a lost connection) ends the session, and the next fetch is a full one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from storage_node.directories.directory import LogDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.replication.connection import Disconnected, LeaderConnection
from storage_node.replication.fetch_request import (
    EARLIEST,
    LATEST,
    NO_SESSION,
    AskedRow,
    BadResponse,
    FetchRow,
    Key,
    fetch_request,
    last_batch,
    offsets_request,
    read_offset,
    read_response,
    read_session,
)
from storage_node.replication.following import FIRST_PAUSE, Followed, Kind, Place
from storage_node.replication.host import FetcherHost
from storage_node.waiting import Waiter

log = logging.getLogger(__name__)

#: Seconds to wait for a connection.
CONNECT = 5.0
#: Seconds between two reads of a throttle's rate, which may change.
LOOK = 0.1
#: A response with fewer bytes is appended before the next request is sent.
AHEAD = 128 << 10
#: Session errors: the session has ended, and a full fetch starts a new one.
SESSION_ENDS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
LAST_EPOCH = 2**31 - 1
#: Minimum seconds between two interruptions of a waiting fetch for the sake of new partitions.
BETWEEN_KICKS = 0.1


_Gone = set[Followed]  # (ReplicaFetcherThread has a method named `set`.)
FULL = (0, 0)
"""A session's id and epoch with which a full fetch starts a session."""


@dataclass(slots=True)
class Flight:
    """A request in flight, and the bytes that the throttle granted (-1: not throttled)."""

    correlation: int
    granted: int


class ReplicaFetcherThread:
    """A fetcher thread, started by the constructor and ended by `stop`."""

    def __init__(self, node: FetcherHost, place: Place, directory: LogDirectory, misplaced: Callable[[], None]) -> None:
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
        self._connection: LeaderConnection | None = None
        self._waiting = self._kicked = False
        self._last_kick = 0.0
        self._pause = FIRST_PAUSE
        self._complaint = ""
        # The thread's own state.
        self._joined: tuple[Followed, ...] = ()
        """The members whose changes are recorded."""
        self._waiters: dict[Followed, Waiter] = {}
        self._notified: deque[Followed] = deque()
        """Members that have changed; appended to by any thread."""
        self._recheck: dict[Followed, None] = {}
        """Members whose row in the next request may differ from the last one."""
        self._delayed: dict[Followed, None] = {}
        """Members that are fetched again at their `retry_at`."""
        self._sent: dict[Followed, AskedRow] = {}
        """The rows requested last: in a session, the leader's state of it."""
        self._by_key: dict[Key, Followed] = {}
        self._session = FULL
        self._correlation = 0
        self._turns = 0
        name = f"fetch-{place.leader}-{directory.path.name}-{place.kind.name.lower()}-{place.index}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # From other threads

    def set(self, members: Sequence[Followed], broker_epoch: int) -> None:
        """Fetch these partitions from now on, under this node's broker epoch."""
        with self._changed:
            new = not set(members) <= set(self._members)
            self._members, self._broker_epoch = tuple(members), broker_epoch
            self._pause = FIRST_PAUSE
            self._changed.notify_all()
            now = time.monotonic()
            if new and self._waiting and now - self._last_kick > BETWEEN_KICKS:
                # The leader may hold the request for replica.fetch.wait.max.ms, without the new partitions.
                self._last_kick, self._kicked = now, True
                self._shut_down()

    def stop(self) -> None:
        """Stop the thread; a caller that must wait for its end calls `join`."""
        with self._changed:
            self._stopping = True
            self._members = ()
            self._changed.notify_all()
            self._shut_down()

    def join(self) -> None:
        """Wait until the thread has ended, except for one that hangs in an offline directory."""
        while self._thread.is_alive() and self.directory.online and self._thread is not threading.current_thread():
            self._thread.join(0.1)

    def _shut_down(self) -> None:
        if self._connection is not None:
            self._connection.shut_down()

    def _close(self) -> None:
        """Close the connection; only the thread may call it, since it may be reading otherwise."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The thread

    def _run(self) -> None:
        flight: Flight | None = None
        while not self._stopping:
            try:
                if flight is None:
                    flight = self._request()
                if flight is not None:
                    flight = self._process(flight, self._receive(waits=True))
                    self._complaint, self._pause = "", FIRST_PAUSE
            except (Disconnected, BadResponse) as error:
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
        """Close the connection after an error; reconnect after a pause, unless this node shut it down."""
        if flight is not None and flight.granted > 0:
            self._node.quotas.follower.give_back(flight.granted)
        with self._changed:
            self._close()
            self._restart_session()
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
            made = LeaderConnection(place.host, place.port, connect_timeout=min(CONNECT, timeout), timeout=timeout)
            with self._changed:
                if self._stopping:
                    made.close()
                    raise Disconnected("the fetcher stops")
                self._connection = connection = made
        connection.send(data)

    # Requests

    def _request(self) -> Flight | None:
        """Send a fetch for all partitions that are due; return None, after a wait, if there are none."""
        now = time.monotonic()
        members = self._members
        changed, gone = self._changes(members, now, {})
        if not changed and not self._sent.keys() - gone:
            # (The session ends too, so the partitions in it need no removal.)
            self._restart_session()
            again = min((f.retry_at for f in self._delayed), default=now + 1.0)
            with self._changed:
                if self._members is members and not self._stopping and not self._notified:
                    self._changed.wait(min(max(again - now, 0.001), 1.0))
            return None
        granted = self._granted()
        if granted == 0:
            self._recheck.update(dict.fromkeys(changed))
            with self._changed:
                self._changed.wait(min(max(self._node.quotas.follower.wait_seconds(), 0.001), LOOK))
            return None
        return self._fetch(changed, gone, granted)

    def _restart_session(self) -> None:
        """Make the next fetch a full one, which also closes the session if there is one."""
        self._session = (self._session[0], 0)
        self._recheck.update(dict.fromkeys(self._joined))
        self._sent.clear()
        self._by_key.clear()

    def _changes(
        self, members: tuple[Followed, ...], now: float, ahead: dict[Followed, tuple[int, int]]
    ) -> tuple[dict[Followed, AskedRow], _Gone]:
        """Return the members whose row in a request has changed, and those that are not fetched any more.

        `ahead`: offset and epoch to continue from for members whose append is still pending.
        """
        if members is not self._joined:
            self._join(members)
        if self.place.kind is Kind.THROTTLED:
            self._recheck.update(dict.fromkeys(members))
            self._sent.clear()
            self._by_key.clear()
        while self._notified:
            followed = self._notified.popleft()
            if followed in self._waiters:
                self._recheck[followed] = None
        if self._delayed:
            self._recheck.update(dict.fromkeys(f for f in self._delayed if f.retry_at <= now))
        changed: dict[Followed, AskedRow] = {}
        gone = self._sent.keys() - self._waiters.keys()
        misplaced = False
        for followed in self._recheck:
            self._delayed.pop(followed, None)
            if followed not in self._waiters:
                continue
            here = followed.partition.directory is self.directory
            misplaced = misplaced or not here
            if not here or not followed.due(now):
                if followed.retry_at > now:
                    self._delayed[followed] = None
                if followed in self._sent:
                    gone.add(followed)
                continue
            row = self._row(followed, ahead.get(followed))
            if row != self._sent.get(followed):
                changed[followed] = row
        self._recheck.clear()
        if misplaced:
            self._misplaced()
        return changed, gone

    def _join(self, members: tuple[Followed, ...]) -> None:
        """Record the changes of these members from now on, and no longer those of others."""
        wanted = dict.fromkeys(members)
        for followed in [each for each in self._waiters if each not in wanted]:
            self._leave(followed)
        for followed in wanted:
            if followed not in self._waiters:
                # (A callback of this thread's own: another thread may be adding or removing its own for the same
                # member.)
                waiter = self._waiters[followed] = partial(self._notify, followed)
                followed.partition.add_waiter(waiter)
                self._recheck[followed] = None
        self._joined = members

    def _leave(self, followed: Followed) -> None:
        followed.partition.remove_waiter(self._waiters.pop(followed))
        self._delayed.pop(followed, None)

    def _notify(self, followed: Followed, _size: int) -> None:
        """Record that the member's role, log or directory has changed; on any thread."""
        self._notified.append(followed)

    def _row(self, followed: Followed, ahead: tuple[int, int] | None) -> AskedRow:
        replica = followed.partition.log
        offset, fetched = ahead if ahead is not None else (replica.log_end_offset, replica.latest_epoch)
        return AskedRow(followed.epoch, offset, fetched, replica.log_start_offset, self._settings.max_bytes)

    def _granted(self) -> int:
        """Return the bytes that the throttle grants now, -1 if the members are not throttled."""
        quota = self._node.quotas.follower
        if self.place.kind is not Kind.THROTTLED or quota.rate is None:
            return -1
        self._turns += 1
        return quota.grant(self._settings.response_max_bytes)

    def _fetch(self, changed: dict[Followed, AskedRow], gone: _Gone, granted: int) -> Flight:
        """Send a request with the changed rows, or with all of them without a session."""
        settings = self._settings
        for followed in gone:
            del self._sent[followed], self._by_key[followed.key]
        self._sent.update(changed)
        self._by_key.update((followed.key, followed) for followed in changed)
        session = self._session if self.place.kind is not Kind.THROTTLED else NO_SESSION
        if session[1] <= 0:
            changed, gone = self._sent, set()
        rows = [(followed.key, row) for followed, row in changed.items()]
        if self.place.kind is Kind.THROTTLED and rows:
            # The order rotates, since the first partition gets a batch of any size.
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

    # Responses

    def _process(self, flight: Flight, view: memoryview) -> Flight | None:
        """Apply a response; return the next request if it was sent already."""
        error, session = read_session(view, flight.correlation)
        if error in SESSION_ENDS:
            log.info("the fetch session at node %d has ended (error %d)", self.place.leader, error)
            self._give_back(flight, 0)
            self._session = (0, 0)
            self._restart_session()
            return None
        rows = list(read_response(view, flight.correlation))
        used = sum(len(row.records) for row in rows)
        self._give_back(flight, used)
        if self._session[1] == 0:
            # A full fetch has started a session, unless the leader had no slot for it.
            self._session = (session, 1 if session else 0)
        elif not session:
            raise BadResponse("the leader ended the fetch session without an error")
        found: list[tuple[Followed, FetchRow, int]] = []
        for row in rows:
            followed = self._by_key.get((row.topic_id, row.partition))
            if followed is None:
                raise BadResponse(f"the response has partition {row.partition}, which was not requested")
            found.append((followed, row, self._sent[followed].offset))
        following = self._send_ahead(flight, found, used)
        lost = []
        for followed, row, requested in found:
            if followed.place is self.place and not followed.apply(row, requested):
                lost.append(followed)
            self._recheck[followed] = None
        for followed in lost:
            self._list_offsets(followed)
        return following

    def _give_back(self, flight: Flight, used: int) -> None:
        if flight.granted >= 0:
            self._node.quotas.follower.give_back(flight.granted - used)
            flight.granted = 0

    def _send_ahead(self, flight: Flight, found: Sequence[tuple[Followed, FetchRow, int]], used: int) -> Flight | None:
        """Send the next request before this response is appended, if all its offsets are below the high watermark.

        The leader then neither commits nor counts the follower as caught up by offsets that are not appended yet.
        """
        if used < AHEAD or flight.granted >= 0 or self._stopping or self.place.kind is Kind.THROTTLED:
            return None
        ahead: dict[Followed, tuple[int, int]] = {}
        for followed, row, requested in found:
            if row.error or row.diverging is not None:
                return None
            if row.records:
                last = last_batch(row.records)
                if last is None or last[0] >= row.high_watermark or last[0] <= requested:
                    return None
                ahead[followed] = last
        self._recheck.update(dict.fromkeys(ahead))
        changed, gone = self._changes(self._members, time.monotonic(), ahead)
        if not changed:
            self._recheck.update(dict.fromkeys(gone))
            return None
        return self._fetch(changed, gone, -1)

    def _list_offsets(self, followed: Followed) -> None:
        """Request the leader's log start and log end offsets, and continue from there."""
        offsets = []
        for timestamp in (LATEST, EARLIEST):
            self._correlation = (self._correlation + 1) & 0x7FFFFFFF
            (request,) = offsets_request(
                self._correlation,
                self._client,
                self._node.id,
                followed.tp.topic,
                followed.tp.partition,
                followed.epoch,
                (timestamp,),
            )
            self._send(request)
            error, offset = read_offset(self._receive(waits=False), self._correlation)
            if error or offset < 0:
                followed.later(f"the leader's offsets are unknown: error {error}", quietly=True)
                return
            offsets.append(offset)
        followed.out_of_range(*offsets)
