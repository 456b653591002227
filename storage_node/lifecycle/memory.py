"""Return memory that the C library keeps for later to the system.

glibc keeps what a thread has freed in that thread's arena, unless it is at the arena's end: a flood of large requests
leaves hundreds of MB behind that nothing uses any more. `malloc_trim(3)` returns the free pages of all arenas.
"""

from __future__ import annotations

import ctypes
import logging
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

#: Bytes above the least that the process ever needed: less is kept for the next large request.
SPARE = 32 << 20
#: Seconds between two attempts, and between two that have returned little, since the memory is in use.
SHORTEST, LONGEST = 2.0, 10.0
_WORTH_IT = 8 << 20


class Reclaimer:
    """The schedule of returning memory. Sizes in bytes, times in seconds by the monotonic clock."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], None]) -> None:
        """Create it; `resident` returns the memory of the process, `trim` returns what is free to the system."""
        self._resident, self._trim = resident, trim
        self._least = resident()
        self._wait, self._next = SHORTEST, 0.0

    def look(self, now: float) -> int:
        """Return memory to the system if there is reason to; return the bytes that this freed."""
        before = self._resident()
        self._least = min(self._least, before)
        if before - self._least < SPARE:
            self._wait, self._next = SHORTEST, now
            return 0
        if now < self._next:
            return 0
        self._trim()
        after = self._resident()
        self._wait = SHORTEST if before - after >= _WORTH_IT else min(2 * self._wait, LONGEST)
        self._next = now + self._wait
        self._least = min(self._least, after)
        log.debug("returned %d of %d bytes to the operating system", before - after, before)
        return before - after


def reclaimer() -> Reclaimer:
    """Return a reclaimer for this process; where the C library has no `malloc_trim` it does nothing."""
    return Reclaimer(resident, _trim)


def resident() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def _trim() -> None:
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)
