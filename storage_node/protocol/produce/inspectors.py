"""Threads that validate expensive batches, which connections share fairly, so that cheap appends do not wait for them.

The next batch is that of the connection with the least processor time so far (start-time fair queueing): a connection
with cheap batches waits for the batches under way only, however many expensive ones are queued. An idle connection
accumulates no credit. Only batches of requests without a response are queued here: the memory for requests bounds them.
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

LEAST = 0.001  # the least cost of a batch, in seconds: connections with cheap batches take turns


class Inspection:
    """The validations of a connection's batches; the thread of the last one calls `done` after it."""

    __slots__ = ("done", "dropped", "owner", "waiting")

    def __init__(self, owner: object, batches: Iterable[Callable[[], None]], done: Callable[[], None]) -> None:
        """`owner`: the connection; `batches`: a function for each batch."""
        self.owner = owner
        self.waiting = deque(batches)
        self.done = done
        self.dropped = False


class Inspectors:
    """A few threads, which exit while the queues are empty, and a queue of inspections for each connection."""

    def __init__(self, threads: int, spent: Callable[[], float] = time.thread_time) -> None:
        """`spent` returns the processor time of the calling thread, in seconds."""
        self._threads = threads
        self._spent = spent
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="inspect")
        self._lock = threading.Lock()
        self._queues: dict[object, deque[Inspection]] = {}
        self._turns: list[tuple[float, int, object]] = []
        """A heap: the start of a connection's next batch in virtual time, the entry's number, the connection."""
        self._entries: dict[object, int] = {}
        """The number of each queued connection's valid entry in the heap."""
        self._numbers = itertools.count()
        self._now = 0.0
        """Virtual time, in seconds of processor time: the start of the last batch."""
        self._begins: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """The earliest start of each connection's next batch, in virtual time."""
        self._busy = 0

    @property
    def waiting(self) -> int:
        """The number of queued batches."""
        with self._lock:
            return sum(len(each.waiting) for line in self._queues.values() for each in line)

    def submit(self, inspection: Inspection) -> None:
        """Append an inspection to its connection's queue; raises RuntimeError once the process is exiting."""
        with self._lock:
            if self._busy < self._threads:
                self._pool.submit(self._work)
                self._busy += 1
            self._enqueue(inspection)

    def drop(self, inspection: Inspection) -> None:
        """Drop the batches that no thread has begun; `done` is not called."""
        with self._lock:
            inspection.dropped = True
            inspection.waiting.clear()
            line = self._queues.get(inspection.owner)
            if line is not None and inspection in line:
                line.remove(inspection)
                if not line:
                    del self._queues[inspection.owner], self._entries[inspection.owner]

    def _enqueue(self, inspection: Inspection) -> None:
        owner = inspection.owner
        if owner in self._queues:
            self._queues[owner].append(inspection)
        else:
            self._queues[owner] = deque([inspection])
            self._await_turn(owner)

    def _await_turn(self, owner: object) -> None:
        number = next(self._numbers)
        self._entries[owner] = number
        heapq.heappush(self._turns, (max(self._now, self._begins.get(owner, 0.0)), number, owner))

    def _work(self) -> None:
        while (inspection := self._take()) is not None:
            self._inspect(inspection)
            # The thread must not hold a request in memory while it waits for the next one.
            del inspection

    def _take(self) -> Inspection | None:
        """Dequeue the first inspection of the next connection; None if all queues are empty."""
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
            line = self._queues[owner]
            inspection = line.popleft()
            if line:
                self._await_turn(owner)
            else:
                del self._queues[owner], self._entries[owner]
            return inspection

    def _inspect(self, inspection: Inspection) -> None:
        """Validate one batch, then queue the inspection again if it has more."""
        with self._lock:
            batch = inspection.waiting.popleft() if inspection.waiting else None
        cost = 0.0
        if batch is not None:
            began = self._spent()
            try:
                batch()
            except Exception:
                log.exception("the validation of a batch failed")
            cost = self._spent() - began
            del batch
        with self._lock:
            # Added afterwards: the cost of a batch is not known before.
            self._begins[inspection.owner] += max(0.0, cost - LEAST)
            if inspection.dropped:
                return
            if inspection.waiting:
                self._enqueue(inspection)
                return
        inspection.done()
