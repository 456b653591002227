"""Count bytes for the throttles of moves (KIP-113) and of replication (KIP-73), in two leaky buckets.

One drains at the rate and keeps the mean: a charge counts at once, a thread that is late may catch up, and idle time
beyond that earns nothing. The other drains a little faster and keeps the peak: it slows catching up down.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

TOLERANCE: Final = 0.005  # seconds' worth of bytes that may pass at once after an idle time
CATCH_UP: Final = 0.5  # seconds of delay that may be caught up; a longer delay counts as idle


class Buckets:
    """At most `rate` bytes per second, `peak` times that while catching up; None is unlimited.

    Names that begin with `_` are for derived classes, under the lock.
    """

    def __init__(self, rate: int | None, now: Callable[[], float], peak: float) -> None:
        self._now = now
        self._peak = peak
        self._lock = threading.Lock()
        self._rate = rate
        self._charged = 0.0  # bytes, ever
        self._drained = 0.0  # bytes, ever; what exceeds the charged bytes may be caught up
        self._peak_charged = 0.0  # the same of the second bucket,
        self._peak_drained = 0.0  # in which nothing is saved
        self._at = -math.inf  # when the two `drained` were last updated

    @property
    def rate(self) -> int | None:
        """Bytes per second, or None."""
        return self._rate

    def _charge(self, count: int) -> None:
        self._charged += count
        self._peak_charged += count

    def _drain(self) -> None:
        now = self._now()
        rate = self._rate
        if rate is None:
            self._drained, self._peak_drained = self._charged, self._peak_charged
        else:
            passed = (now - self._at) * rate
            self._drained += passed
            if self._drained > self._charged + CATCH_UP * rate:
                self._drained = self._charged  # idle time, which is not saved
            self._peak_drained = min(self._peak_charged, self._peak_drained + passed * self._peak)
        self._at = now
