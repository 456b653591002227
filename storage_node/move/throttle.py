"""How fast moves may copy: one limiter for the node, shared by all movers, and one for each run; the lower holds.

A leaky bucket in bytes: what is charged is at once in the bucket, which empties at the rate, and who charged waits
until what he put in is out. So bytes are paid for before they are written, and the mean is exact from the first chunk
to the last. Who comes late because a write or a flush took its time may catch up, so that it is exact on a slow disk,
too; idle time beyond that earns nothing. (A GCRA with the charge taken first, kept in bytes so that a change of rate
is exact.)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

SLICE = 0.1  # seconds slept at most before rate and stop are looked at again
TOLERANCE = 0.02  # seconds' worth of bytes that may go out at once after an idle time
CATCH_UP = 0.5  # seconds of delay that may be caught up; who comes later was idle
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
        self._charged = 0.0  # bytes, ever
        self._drained = 0.0  # bytes, ever; more than was charged is what may be caught up
        self._at = -math.inf  # when `_drained` was right

    @property
    def rate(self) -> int | None:
        """Bytes per second, or None."""
        return self._rate

    def set_rate(self, rate: int | None) -> None:
        """Change the rate; who waits notices within `SLICE` seconds and waits for the rest at the new one."""
        with self._lock:
            self._drain()
            self._rate = _checked(rate)

    def acquire(self, count: int, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Wait until `count` bytes may be written; answers the seconds slept. Told to stop, it ends uncharged."""
        slept = 0.0
        with self._lock:
            self._drain()
            self._charged += count
            mine = self._charged
        while True:
            with self._lock:
                self._drain()
                rate = self._rate
                wait = (mine - self._drained) / rate - TOLERANCE if rate is not None else 0.0
                if wait <= RESOLUTION:
                    return slept
            if should_stop():
                with self._lock:
                    # Given back as drained, so that those behind do not wait for it.
                    self._drained += count
                return slept
            before = self._clock.monotonic()
            self._clock.sleep(min(wait, SLICE))
            slept += self._clock.monotonic() - before

    def _drain(self) -> None:
        now = self._clock.monotonic()
        if self._rate is None:
            self._drained = self._charged
        else:
            self._drained += (now - self._at) * self._rate
            if self._drained > self._charged + CATCH_UP * self._rate:
                self._drained = self._charged  # idle, which is not saved up
        self._at = now


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
