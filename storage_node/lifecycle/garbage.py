"""Keep Python's cyclic garbage collector off the listener's loop and off objects that live as long as the process.

A full collection traverses every object that is not frozen, and stops the whole process: some 25 ms for the items of a
fetch of 50,000 partitions. Python runs it in the thread that has just created an object: while a large request is read,
repeatedly in the loop's thread. So the main thread collects, and no more often than its cost allows.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Collections of the middle generation before a full one pays off: Python's own default.
WORTH_IT = 10
#: The least seconds between two full collections, and the least pause as a multiple of the last one's duration.
SHORTEST, SHARE = 5.0, 200.0
#: A number of collections that is never reached, so that Python does not begin a full one by itself.
_NEVER = 1 << 30


def settle() -> None:
    """Collect once, freeze all present objects, and leave full collections to a `Collector`.

    Call it when a process has started: every full collection would otherwise traverse a hundred thousand objects that
    live as long as the process, for more than 50 ms.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


class Collector:
    """The schedule of full collections. Times in seconds."""

    def __init__(
        self,
        pending: Callable[[], int] = lambda: gc.get_count()[2],
        collect: Callable[[], object] = gc.collect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; `pending` returns the collections of the middle generation since the last full one."""
        self._pending, self._collect, self._clock = pending, collect, clock
        self._next = float("-inf")

    def look(self) -> bool:
        """Make a full collection if one is due; return whether it did."""
        began = self._clock()
        if began < self._next or self._pending() < WORTH_IT:
            return False
        self._collect()
        took = self._clock() - began
        self._next = began + took + max(SHORTEST, SHARE * took)
        log.debug("full garbage collection in %.0f ms", took * 1000)
        return True
