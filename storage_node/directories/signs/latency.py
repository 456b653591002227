"""The latency of a disk's health checks against the disk's own past."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

__all__ = ["Latency"]

#: Health checks that are the present, and those before them that are the past: at least so many, at most so many.
PRESENT: Final = 5
PAST: Final = (20, 2000)
#: A disk is slow when it takes so many times as long as it did, and at least so many seconds.
TIMES: Final = 10.0
SECONDS: Final = 0.25


@dataclass(slots=True)
class Latency:
    """The seconds that the last health checks took; written by one thread."""

    _present: deque[float] = field(default_factory=lambda: deque(maxlen=PRESENT))
    _past: deque[float] = field(default_factory=lambda: deque(maxlen=PAST[1]))

    def add(self, seconds: float) -> None:
        """Add a health check."""
        if len(self._present) == PRESENT:
            self._past.append(self._present[0])
        self._present.append(seconds)

    @property
    def last(self) -> float | None:
        """The seconds of the last health check; None before the first."""
        return self._present[-1] if self._present else None

    @property
    def usual(self) -> float | None:
        """The median of the past, in seconds; None while there is too little of it."""
        return median(self._past) if len(self._past) >= PAST[0] else None

    def slow(self) -> str:
        """Return how the disk is slower than it was; "" if it is not."""
        usual = self.usual
        if usual is None or len(self._present) < PRESENT:
            return ""
        now = median(self._present)
        return f"health checks take {now:.2f} s, usually {usual:.3f} s" if now >= max(SECONDS, TIMES * usual) else ""
