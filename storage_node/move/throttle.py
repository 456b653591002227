"""How fast moves may copy: one limiter for the node, shared by all movers, and one for each run; the lower holds.

The generic cell rate algorithm: a theoretical arrival time moves forward by the cost of each chunk, and a chunk may
be at most a tolerance ahead of it. It is charged before the bytes are written, so the mean is exact however long a
write takes; idle time earns no more than the tolerance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

SLICE = 0.1  # seconds slept at most before rate and stop are looked at again
TOLERANCE = 0.02  # seconds' worth of bytes that may go out at once after an idle time
RESOLUTION = 1e-6  # seconds that are not worth sleeping
MIN_CHUNK = 64 << 10
MAX_CHUNK = 1 << 20
CHUNK_SECONDS = 0.05


class Clock(Protocol):
    """Time and sleep, so that tests need not wait."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RateLimiter:
    """At most `rate` bytes per second over all threads that use it; None is unlimited. Thread-safe."""

    def __init__(self, rate: int | None = None, clock: Clock = time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = _checked(rate)
        self._arrival = clock.monotonic()

    @property
    def rate(self) -> int | None:
        """Bytes per second, or None."""
        return self._rate

    def set_rate(self, rate: int | None) -> None:
        """Change the rate; who sleeps now notices within `SLICE` seconds. Debt made under the old rate is kept in
        bytes.
        """
        with self._lock:
            now = self._clock.monotonic()
            debt = max(0.0, self._arrival - now) * (self._rate or 0)
            self._rate = _checked(rate)
            self._arrival = now + (debt / self._rate if self._rate else 0.0)

    def acquire(self, count: int, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Wait until `count` bytes may be written; answers the seconds slept. Ends early, uncharged, when told to
        stop.
        """
        slept = 0.0
        while True:
            with self._lock:
                rate = self._rate
                if rate is None:
                    return slept
                now = self._clock.monotonic()
                wait = self._arrival - now - TOLERANCE
                if wait <= RESOLUTION:
                    self._arrival = max(self._arrival, now) + count / rate
                    return slept
            if should_stop():
                return slept
            before = self._clock.monotonic()
            self._clock.sleep(min(wait, SLICE))
            slept += self._clock.monotonic() - before


def _checked(rate: int | None) -> int | None:
    if rate is not None and rate <= 0:
        raise ValueError(f"a rate is a positive number of bytes per second, or none; not {rate}")
    return rate


def chunk_size(*rates: int | None) -> int:
    """Bytes to copy at once: a twentieth of a second's worth of the lowest rate, between 64 KiB and 1 MiB."""
    limits = [rate for rate in rates if rate is not None]
    if not limits:
        return MAX_CHUNK
    return max(MIN_CHUNK, min(MAX_CHUNK, int(min(limits) * CHUNK_SECONDS)))
