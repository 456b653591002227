"""Threads that look through batches for which no append of other connections waits: a batch of each connection in turn.

A connection whose batches take seconds each so delays the batches of another one by one of its own, not by all of them.
Only batches of requests without a response wait here: they are bounded by the memory for requests.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)


class Inspection:
    """Batches that wait, as what looks through each of them; `done` is called after the last, by the same thread."""

    __slots__ = ("done", "dropped", "owner", "waiting")

    def __init__(self, owner: Hashable, batches: Iterable[Callable[[], None]], done: Callable[[], None]) -> None:
        """`owner`: the connection."""
        self.owner = owner
        self.waiting = deque(batches)
        self.done = done
        self.dropped = False


class Inspectors:
    """A few threads, which end while nothing waits for them to take it, and what waits, by connection."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="inspect")
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[Inspection]] = {}
        """The connection whose turn is next comes first."""
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
                    del self._lines[inspection.owner]

    def _line_up(self, inspection: Inspection) -> None:
        self._lines.setdefault(inspection.owner, deque()).append(inspection)

    def _work(self) -> None:
        while (inspection := self._take()) is not None:
            self._inspect(inspection)
            # Nothing of a request is held here while the next one is awaited.
            del inspection

    def _take(self) -> Inspection | None:
        """The first inspection of the connection whose turn it is, which goes to the end; None without any."""
        with self._lock:
            owner = next(iter(self._lines), None)
            if owner is None:
                self._busy -= 1
                return None
            line = self._lines.pop(owner)
            inspection = line.popleft()
            if line:
                self._lines[owner] = line
            return inspection

    def _inspect(self, inspection: Inspection) -> None:
        """Look through one batch, then line up for the next."""
        with self._lock:
            batch = inspection.waiting.popleft() if inspection.waiting else None
        if batch is not None:
            try:
                batch()
            except Exception:
                log.exception("a batch could not be looked through")
            del batch
        with self._lock:
            if inspection.dropped:
                return
            if inspection.waiting:
                self._line_up(inspection)
                return
        inspection.done()
