"""Python's collector of cyclic garbage, kept from what lives as long as the process, and off the listener's loop.

A full collection looks at every object that it was not told to leave alone, and stops the whole process: some 25 ms for
the items of a fetch of 50,000 partitions. By itself it comes to whichever thread has just made an object, again and
again while a large request is read, and that is the loop's. So the main thread does it, and no more often than it may
cost.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Collections of the middle generation before which a full one is not worth it: Python's own default.
WORTH_IT = 10
#: Seconds between two full collections at least, and how many times as long as it took the next one has to wait.
SHORTEST, SHARE = 5.0, 200.0
#: A number of collections that is never reached, so that Python does not begin a full one by itself.
_NEVER = 1 << 30


def settle() -> None:
    """Collect once, leave everything that is there now alone from then on, and full collections to a `Collector`.

    To be called when a process has loaded and started what it is made of: a hundred thousand objects, at which every
    full collection would look, for more than 50 ms.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


class Collector:
    """Decides when to make a full collection. Times in seconds."""

    def __init__(
        self,
        pending: Callable[[], int] = lambda: gc.get_count()[2],
        collect: Callable[[], object] = gc.collect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pending`: collections of the middle generation since the last full one."""
        self._pending, self._collect, self._clock = pending, collect, clock
        self._next = float("-inf")

    def look(self) -> bool:
        """Make a full collection if there is reason to; answers whether it did."""
        began = self._clock()
        if began < self._next or self._pending() < WORTH_IT:
            return False
        self._collect()
        took = self._clock() - began
        self._next = began + took + max(SHORTEST, SHARE * took)
        log.debug("looked through all objects in %.0f ms", took * 1000)
        return True
