"""Limit how fast moves copy: one limiter for the node, shared by all movers, and one for each run; the lower applies.

A thread that charged the two buckets waits until what it charged has drained. A thread that is late because a disk was
slow may catch up, but no second carries noticeably more than the rate allows, whatever happened before. Bytes are
charged before they are written; those that were then written late, because the disk stalled, are charged to the second
bucket again at that moment. (A GCRA with the charge taken first, kept in bytes so that a change of rate is exact.)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from storage_node.buckets import TOLERANCE, Buckets

SLICE = 0.1  # seconds slept at most before rate and stop are read again
PEAK = 1.01  # times the rate, while catching up: no ten seconds carry noticeably more
BURST = 0.015  # seconds' worth of bytes that may pass at once while catching up: threads do not wake to the moment
LATE = 0.005  # seconds a write may take longer than usual before it counts as late
USUAL = 1 / 16  # the share of the last write in the usual time
USUAL_MOST = 0.03  # seconds; the usual time is never longer
RESOLUTION = 1e-6  # seconds; shorter waits are skipped
MIN_CHUNK = 16 << 10
MAX_CHUNK = 1 << 20  # without a limit: what stays in a processor's cache from reading to writing
LIMITED_CHUNK = 2 << 20  # while a swap holds the log and does not sleep
CHUNK_SECONDS = 0.005
BLOCK = 4096  # chunks are whole blocks of a disk


class Clock(Protocol):
    """Time and sleep, so that tests need not wait."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RateLimiter(Buckets):
    """At most `rate` bytes per second over all threads that use it; None is unlimited. Thread-safe."""

    def __init__(self, rate: int | None = None, clock: Clock = time) -> None:
        super().__init__(_checked(rate), lambda: clock.monotonic(), PEAK)
        self._clock = clock
        self._usual = 0.0  # seconds that a write takes

    def set_rate(self, rate: int | None) -> None:
        """Change the rate; a waiting thread notices within `SLICE` seconds and waits for the rest at the new rate."""
        with self._lock:
            self._drain()
            self._rate = _checked(rate)
            if self._drained >= self._charged:
                self._at = -math.inf  # no thread waits: the time until one does is not a delay to catch up with

    def acquire(self, count: int, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Wait until `count` bytes may be written; return the seconds slept. `should_stop` ends it without a charge."""
        slept = 0.0
        with self._lock:
            self._drain()
            self._charge(count)
            mine, my_peak = self._charged, self._peak_charged
        while True:
            with self._lock:
                self._drain()
                rate = self._rate
                wait = 0.0
                if rate is not None:
                    mean = mine - self._drained - TOLERANCE * rate
                    peak = my_peak - self._peak_drained - max(BURST * rate, count)
                    wait = max(mean, peak / PEAK) / rate
                if wait <= RESOLUTION:
                    return slept
            if should_stop():
                with self._lock:
                    # The bytes count as drained, so that later threads do not wait for them.
                    self._drained += count
                    self._peak_drained += count
                return slept
            before = self._clock.monotonic()
            self._clock.sleep(min(wait, SLICE))
            slept += self._clock.monotonic() - before

    def wrote(self, count: int, since: float) -> None:
        """Note that `count` bytes that `acquire` admitted were written just now, by a write that began at `since`."""
        if self._rate is None:
            return
        with self._lock:
            took = self._clock.monotonic() - since
            late = took > self._usual + LATE
            # Writes that all take equally long are as far apart as they were admitted: only the odd one is late.
            self._usual = min(USUAL_MOST, self._usual + (took - self._usual) * USUAL)
            if late:
                self._drain()
                self._peak_charged += count


class RunLimiters:
    """The limiters of the runs: all replicas that one run moves share one, however many threads copy. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[tuple[str, str], RateLimiter] = WeakValueDictionary()

    def of(self, owner: str, run_id: str, rate: int | None) -> RateLimiter:
        """Return the limiter of a run, with this rate from now on; a move without an owner has one of its own."""
        if not owner:
            return RateLimiter(rate)
        with self._lock:
            limiter = self._known.setdefault((owner, run_id), RateLimiter(rate))
        if limiter.rate != rate:
            limiter.set_rate(rate)
        return limiter


def _checked(rate: int | None) -> int | None:
    if rate is not None and rate <= 0:
        raise ValueError(f"a rate is a positive number of bytes per second, or none; not {rate}")
    return rate


def chunk_size(*rates: int | None, most: int | None = None) -> int:
    """Return the bytes to copy at once: 5 ms' worth of the lowest rate, between 16 KiB and 1 MiB; 1 MiB without a
    limit.

    Never more than `most` in whole blocks, but at least one block.
    """
    limits = [rate for rate in rates if rate is not None]
    chunk = MAX_CHUNK
    if limits:
        chunk = max(MIN_CHUNK, min(MAX_CHUNK, int(min(limits) * CHUNK_SECONDS) // BLOCK * BLOCK))
    return chunk if most is None else min(chunk, max(BLOCK, most // BLOCK * BLOCK))
