"""Threads that look through batches for which no append of other connections waits: connections take turns by cost.

The connection whose batches have cost the least processor time is next (start-time fair queueing): one whose batches
take a moment waits for the batches under way, whatever is in line of connections whose batches take long. A connection
that has sent nothing for a while has saved up nothing. Only batches of requests without a response wait here: they are
bounded by the memory for requests.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

LEAST = 0.001  # seconds that any batch counts as: those that take a moment are looked through by turns


class Inspection:
    """Batches that wait, as what looks through each of them; `done` is called after the last, by the same thread."""

    __slots__ = ("done", "dropped", "owner", "waiting")

    def __init__(self, owner: object, batches: Iterable[Callable[[], None]], done: Callable[[], None]) -> None:
        """`owner`: the connection."""
        self.owner = owner
        self.waiting = deque(batches)
        self.done = done
        self.dropped = False


class Inspectors:
    """A few threads, which end while nothing waits for them to take it, and what waits, by connection."""

    def __init__(self, threads: int, spent: Callable[[], float] = time.thread_time) -> None:
        """`spent`: the seconds of processor time that the calling thread has had."""
        self._threads = threads
        self._spent = spent
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="inspect")
        self._lock = threading.Lock()
        self._lines: dict[object, deque[Inspection]] = {}
        self._turns: list[tuple[float, int, object]] = []
        """A heap: when a connection's next batch begins in virtual time, and the number of this entry."""
        self._entries: dict[object, int] = {}
        """The number of the entry that counts, of each connection in line."""
        self._numbers = itertools.count()
        self._now = 0.0
        """Virtual time, in seconds of processor time: where the last batch began."""
        self._begins: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """Where the next batch of a connection begins at the earliest."""
        self._busy = 0

    @property
    def waiting(self) -> int:
        """How many batches are in line."""
        with self._lock:
            return sum(len(each.waiting) for line in self._lines.values() for each in line)

    def submit(self, inspection: Inspection) -> None:
        """Put an inspection at the end of its connection's line; raises RuntimeError once the process ends."""
        with self._lock:
            if self._busy < self._threads:
                self._pool.submit(self._work)
                self._busy += 1
            self._line_up(inspection)

    def drop(self, inspection: Inspection) -> None:
        """Forget what no thread has begun with; `done` is not called."""
        with self._lock:
            inspection.dropped = True
            inspection.waiting.clear()
            line = self._lines.get(inspection.owner)
            if line is not None and inspection in line:
                line.remove(inspection)
                if not line:
                    del self._lines[inspection.owner], self._entries[inspection.owner]

    def _line_up(self, inspection: Inspection) -> None:
        owner = inspection.owner
        if owner in self._lines:
            self._lines[owner].append(inspection)
        else:
            self._lines[owner] = deque([inspection])
            self._await_turn(owner)

    def _await_turn(self, owner: object) -> None:
        number = next(self._numbers)
        self._entries[owner] = number
        heapq.heappush(self._turns, (max(self._now, self._begins.get(owner, 0.0)), number, owner))

    def _work(self) -> None:
        while (inspection := self._take()) is not None:
            self._inspect(inspection)
            # Nothing of a request is held here while the next one is awaited.
            del inspection

    def _take(self) -> Inspection | None:
        """The first inspection of the connection whose turn it is, which goes to the end; None without any."""
        with self._lock:
            while self._turns:
                begins, number, owner = heapq.heappop(self._turns)
                if self._entries.get(owner) == number:
                    break
            else:
                self._busy -= 1
                return None
            self._now = max(self._now, begins)
            self._begins[owner] = begins + LEAST
            line = self._lines[owner]
            inspection = line.popleft()
            if line:
                self._await_turn(owner)
            else:
                del self._lines[owner], self._entries[owner]
            return inspection

    def _inspect(self, inspection: Inspection) -> None:
        """Look through one batch, then line up for the next."""
        with self._lock:
            batch = inspection.waiting.popleft() if inspection.waiting else None
        cost = 0.0
        if batch is not None:
            began = self._spent()
            try:
                batch()
            except Exception:
                log.exception("a batch could not be looked through")
            cost = self._spent() - began
            del batch
        with self._lock:
            # Added afterwards: what a batch costs shows only then.
            self._begins[inspection.owner] += max(0.0, cost - LEAST)
            if inspection.dropped:
                return
            if inspection.waiting:
                self._line_up(inspection)
                return
        inspection.done()
