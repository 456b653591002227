"""A thread that fetches partitions from one leader into one log directory.

While a replica is far behind its leader's high watermark, the next request leaves before the last answer is appended:
the leader reads while this node writes. Closer than that it does not: the offset that a follower asks for tells its
leader up to where it has the records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_node.directories.directory import LogDirectory
from storage_node.replication.connection import Connection, Disconnected
from storage_node.replication.fetch_request import (
    EARLIEST,
    LATEST,
    BadAnswer,
    FetchRow,
    Request,
    last_batch,
    offsets_request,
    read_answer,
    read_offset,
)
from storage_node.replication.following import FIRST_PAUSE, Followed, Kind, Place

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Seconds for a connection to be made.
CONNECT = 5.0
#: Seconds between two looks at a throttle's rate, which may change.
LOOK = 0.1
#: An answer with less than this is appended before the next request.
AHEAD = 128 << 10
#: Answers without records up to this size are compared with the one before.
QUIET = 1 << 20
#: Seconds between two ends of a wait at the leader for partitions that are new here.
BETWEEN_KICKS = 0.1


@dataclass(slots=True)
class Flight:
    """A request that was sent: whom it asks for, at which offsets, and what the throttle granted it (-1: nothing)."""

    correlation: int
    due: list[Followed]
    asked: list[int]
    granted: int
    same: bool
    """Whether it asks for just what the one before it asked for."""


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
        self._request: Request | None = None
        self._asks: list[Followed] = []
        self._asks_epoch = -1
        self._rows: list[tuple[int, int, int]] = []
        self._correlation = 0
        self._quiet = b""
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
        with self._changed:
            self._close()

    def _lost(self, flight: Flight | None, error: Exception) -> None:
        """The connection is of no use any more; the next one is tried after a pause, unless we closed it."""
        if flight is not None and flight.granted > 0:
            self._node.quotas.follower.give_back(flight.granted)
        with self._changed:
            self._close()
            self._request, self._quiet = None, b""
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
        due = self._due(members, now)
        if not due:
            again = min((f.retry_at for f in members if f.retry_at > now), default=now + 1.0)
            with self._changed:
                if self._members is members and not self._stopping:
                    self._changed.wait(min(max(again - now, 0.001), 1.0))
            return None
        granted = self._granted()
        if granted == 0:
            with self._changed:
                self._changed.wait(min(max(self._node.quotas.follower.wait_seconds(), 0.001), LOOK))
            return None
        return self._fetch(due, {}, granted)

    def _due(self, members: Sequence[Followed], now: float) -> list[Followed]:
        due = [followed for followed in members if followed.due(now)]
        if any(followed.partition.directory is not self.directory for followed in due):
            due = [followed for followed in due if followed.partition.directory is self.directory]
            self._misplaced()
        if self.place.kind is Kind.THROTTLED and len(due) > 1:
            # Each comes first in its turn: to the first one a batch is sent however large it is.
            turn = self._turns % len(due)
            due = due[turn:] + due[:turn]
        return due

    def _granted(self) -> int:
        """What the throttle lets pass now, -1 for what is not throttled."""
        quota = self._node.quotas.follower
        if self.place.kind is not Kind.THROTTLED or quota.rate is None:
            return -1
        self._turns += 1
        return quota.grant(self._settings.response_max_bytes)

    def _fetch(self, due: list[Followed], ahead: dict[Followed, tuple[int, int]], granted: int) -> Flight:
        """Send a request; `ahead`: offset and epoch from which to go on where an append is still to come."""
        request, settings = self._request, self._settings
        same = request is not None and due == self._asks and self._asks_epoch == self._broker_epoch
        if request is None or not same:
            request = self._request = Request(
                [(followed.topic_id, followed.tp.partition) for followed in due],
                client=self._client,
                replica=self._node.id,
                broker_epoch=self._broker_epoch,
            )
            self._asks, self._asks_epoch = due, self._broker_epoch
            self._rows = [(-1, -1, -1)] * len(due)
        most = settings.max_bytes if granted < 0 else min(settings.max_bytes, granted)
        rows = self._rows
        for number, followed in enumerate(due):
            replica = followed.partition.log
            offset, start = replica.log_end_offset, replica.log_start_offset
            if followed in ahead:
                offset = ahead[followed][0]
            if rows[number] != (offset, start, most):
                same = False
                rows[number] = (offset, start, most)
                fetched = ahead[followed][1] if followed in ahead else replica.latest_epoch
                request.row(number, followed.tp.partition, followed.epoch, offset, fetched, start, most)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        wait = settings.wait_ms if granted < 0 else min(settings.wait_ms, int(LOOK * 1000))
        limit = settings.response_max_bytes if granted < 0 else granted
        request.begin(self._correlation, wait, settings.min_bytes, limit)
        flight = Flight(self._correlation, due, [row[0] for row in rows], granted, same)
        self._send(request.data)
        return flight

    # Answers

    def _take(self, flight: Flight, view: memoryview) -> Flight | None:
        """Apply an answer; the next request, where it was sent already."""
        if flight.same and len(view) == len(self._quiet) and view[4:] == self._quiet[4:]:
            self._give_back(flight, 0)
            return None
        rows = list(read_answer(view, flight.correlation))
        numbers = {(followed.topic_id, followed.tp.partition): n for n, followed in enumerate(flight.due)}
        used = sum(len(row.records) for row in rows)
        self._give_back(flight, used)
        found: list[tuple[int, FetchRow]] = []
        for row in rows:
            number = numbers.get((row.topic_id, row.partition))
            if number is None:
                raise BadAnswer(f"partition {row.partition} was not asked for")
            found.append((number, row))
        following = self._ahead(flight, found, used)
        lost = []
        for number, row in found:
            followed = flight.due[number]
            if followed.place is self.place and not followed.apply(row, flight.asked[number]):
                lost.append(followed)
        calm = not used and len(view) <= QUIET and not any(row.error or row.diverging for row in rows)
        self._quiet = bytes(view) if calm else b""
        for followed in lost:
            self._look_for(followed)
        return following

    def _give_back(self, flight: Flight, used: int) -> None:
        if flight.granted >= 0:
            self._node.quotas.follower.give_back(flight.granted - used)
            flight.granted = 0

    def _ahead(self, flight: Flight, found: Sequence[tuple[int, FetchRow]], used: int) -> Flight | None:
        """Send the next request before this answer is appended, where that tells the leader nothing that is not so:
        below its high watermark it neither commits by it nor takes it for in sync.
        """
        if used < AHEAD or flight.granted >= 0 or self._stopping:
            return None
        ahead: dict[Followed, tuple[int, int]] = {}
        for number, row in found:
            if row.error or row.diverging is not None:
                return None
            if row.records:
                last = last_batch(row.records)
                if last is None or last[0] >= row.high_watermark or last[0] <= flight.asked[number]:
                    return None
                ahead[flight.due[number]] = last
        due = self._due(self._members, time.monotonic())
        if not due:
            return None
        granted = self._granted()
        return self._fetch(due, ahead, granted) if granted < 0 else None

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
