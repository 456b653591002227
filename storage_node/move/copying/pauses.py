"""Pause large copies for a moment while a swap holds its log, so that the swap's flushes do not wait behind theirs.

Waits are short: a swap waits only for the blocks in progress, and a copy that has just paused does not pause again, so
that many swaps in a row do not starve it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SETTLE = 0.05
"""Seconds that a swap waits for blocks and flushes in progress."""
LONGEST = 0.1
"""Seconds that a copy pauses at most."""
SHARE = 4
"""After a pause a copy runs for at least this many times as long."""
LARGE = 32 << 20
"""Remaining bytes below which a copy does not pause: it ends sooner than it would disturb a swap."""


class Pauses:
    """The pauses of all copies of a node. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = 0
        self._asked = 0
        self._not_before = 0.0

    def give_way(self) -> None:
        """Wait while a swap requests a pause, seldom and not for long."""
        if not self._asked:
            return
        began = time.monotonic()
        with self._changed:
            if began < self._not_before:
                return
            self._changed.wait_for(lambda: not self._asked, LONGEST)
            now = time.monotonic()
            self._not_before = now + SHARE * (now - began)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark a block or a flush as in progress on the disk."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Request copies to pause until the block ends."""
        with self._changed:
            self._asked += 1
            self._changed.wait_for(lambda: not self._busy, SETTLE)
        try:
            yield
        finally:
            with self._changed:
                self._asked -= 1
                self._changed.notify_all()
