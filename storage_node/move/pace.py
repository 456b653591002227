"""How fast each log directory usually reads and writes what moves copy, by what was measured since the start.

A disk is compared with itself only: what is slow for one is all that another can do.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass

SMALLEST = 1 << 20  # bytes; what is less tells of latency and not of a rate
LEAST = 3  # measurements before anything is said
KEPT = 256  # the latest measurements of a directory and direction; the median is theirs


@dataclass(frozen=True, slots=True)
class Usual:
    """The median and the best of what was measured, in bytes/s; 0 while too little was."""

    median: float = 0.0
    best: float = 0.0


class Paces:
    """The paces of a node's directories. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[tuple[str, bool], deque[float]] = {}
        self._best: dict[tuple[str, bool], float] = {}

    def note(self, directory: str, reading: bool, count: int, seconds: float) -> None:
        """`count` bytes took the disk `seconds`: reading, or writing with their flush. Little is not counted."""
        if count < SMALLEST or seconds <= 0:
            return
        key, rate = (directory, reading), count / seconds
        with self._lock:
            self._measured.setdefault(key, deque(maxlen=KEPT)).append(rate)
            self._best[key] = max(rate, self._best.get(key, 0.0))

    def usual(self, directory: str, reading: bool) -> Usual:
        """What the directory does as a rule."""
        key = (directory, reading)
        with self._lock:
            measured = list(self._measured.get(key, ()))
            best = self._best.get(key, 0.0)
        return Usual(statistics.median(measured), best) if len(measured) >= LEAST else Usual()
