"""Make large requests pause while small produces are in progress.

The interpreter computes on one thread at a time, and a small append needs it about ten times on its way to the disk and
back. Next to work that never pauses, each of these costs the time slices of all threads that compute: a producer of a
hundred records a second then queues up without end, however little each thread does at a time. So work of a size that a
client chooses reserves its slices, one after the other across all such work, with room between them, as long as a small
produce is in progress. Alone it does not wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

#: Partitions of a produce that is small.
SMALL: Final = 4
#: Elements of a request that are handled without a pause, as many as requests in regular use have; and the elements of
#: a slice, of up to 20 microseconds each.
UNPAUSED: Final = 2_000
SLICE_ELEMENTS: Final = 100
#: Appends of a slice, of up to 50 microseconds each: a produce of a few partitions waits for a part of one.
SLICE_APPENDS: Final = 40
#: Seconds of a slice and of the pause behind it.
SLICE: Final = 0.002
PAUSE: Final = 0.002
#: While threads have work for the listener, its loop sleeps this long, which is enough for a thread to wake, after this
#: many seconds without a rest.
LET_GO: Final = 0.00005
LET_GO_EVERY: Final = 0.0003
#: A loop that does nothing for this many seconds has waited for work: threads had the interpreter.
AT_REST: Final = 0.0002
#: Seconds since the listener received something in which it counts as busy.
RECENT: Final = 0.01


class SmallFirst:
    """The small produces in progress, and when the next slice of large work may begin. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it; `clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._free = 0.0
        """When the slices reserved so far, and their pauses, are over."""
        self._called = self._busy_since = float("-inf")
        """When the listener's loop was last seen at work, and since when it was at work without a rest."""
        self.under_way = 0
        """Small produces that are not appended yet. Changed on the listener's loop alone."""
        self.reads = 0
        """Reads of fetches that the listener's loop waits for. Changed on it alone."""
        self.heard = float("-inf")
        """When the listener received something, by the monotonic clock."""

    def reserve(self, share: float = 1.0) -> float:
        """Reserve the next slice, or a share of one.

        Returns the seconds until it begins, 0 while no small produce is in progress.
        """
        if not self.under_way:
            return 0.0
        return self._reserve(share)

    def reserve_long(self) -> float:
        """Reserve a slice for a thread that computes for long; it also waits while the listener is busy receiving.

        The listener needs the interpreter for each piece that it receives, and what it has not received yet may be
        small.
        """
        if not self.under_way and self._clock() - self.heard > RECENT:
            return 0.0
        return self._reserve(1.0)

    def let_go(self) -> None:
        """Yield the interpreter to a waiting thread; called on the listener's loop for whatever it does.

        A busy loop releases the interpreter for each system call, and has it again before another thread wakes: that
        thread then neither gets it nor waits for as long as it takes to demand it (`interpreter.SWITCH`), and an append
        takes hundreds of milliseconds.
        """
        now = self._clock()
        if now - self._called > AT_REST:
            self._busy_since = now
        self._called = now
        if now - self._busy_since >= LET_GO_EVERY and (self.under_way or self.reads):
            time.sleep(LET_GO)
            self._called = self._busy_since = now + LET_GO

    def _reserve(self, share: float) -> float:
        with self._lock:
            now = self._clock()
            begins = max(now, self._free)
            self._free = begins + share * (SLICE + PAUSE)
        return begins - now


SMALL_FIRST: Final = SmallFirst()


async def give_way(done: int = UNPAUSED + 1) -> None:
    """Yield to other tasks on the loop, after `done` elements of a request."""
    await asyncio.sleep(SMALL_FIRST.reserve() if done > UNPAUSED else 0)


_THREAD: Final = threading.local()


def pace() -> None:
    """Pause if the calling thread's slice is over, and a small produce is in progress or the listener is busy.

    Call it every few hundred microseconds.
    """
    now = time.monotonic()
    until = getattr(_THREAD, "until", None)
    if until is not None and now < until:
        return
    if until is not None and (seconds := SMALL_FIRST.reserve_long()):
        time.sleep(seconds)
        now = time.monotonic()
    _THREAD.until = now + SLICE
