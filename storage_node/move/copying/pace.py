"""Measure how fast each log directory usually reads and writes what moves copy.

A disk is compared only with itself: what is slow for one is the best that another can do.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass

SMALLEST = 1 << 20  # bytes; fewer measure latency and not a rate
LEAST = 3  # measurements before `usual` returns a rate
KEPT = 256  # the latest measurements of a directory and direction, over which the median is taken


@dataclass(frozen=True, slots=True)
class Usual:
    """The median and the best measured rate, in bytes/s; 0 while there are too few measurements."""

    median: float = 0.0
    best: float = 0.0


class Paces:
    """The paces of a node's directories. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[tuple[str, bool], deque[float]] = {}
        self._best: dict[tuple[str, bool], float] = {}

    def note(self, directory: str, reading: bool, count: int, seconds: float) -> None:
        """Record the seconds that the disk took to read, or to write and flush, `count` bytes; few are ignored."""
        if count < SMALLEST or seconds <= 0:
            return
        key, rate = (directory, reading), count / seconds
        with self._lock:
            self._measured.setdefault(key, deque(maxlen=KEPT)).append(rate)
            self._best[key] = max(rate, self._best.get(key, 0.0))

    def usual(self, directory: str, reading: bool) -> Usual:
        """Return the usual rate of a directory."""
        key = (directory, reading)
        with self._lock:
            measured = list(self._measured.get(key, ()))
            best = self._best.get(key, 0.0)
        return Usual(statistics.median(measured), best) if len(measured) >= LEAST else Usual()
