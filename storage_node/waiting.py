"""Who waits for a partition's new records, or for another state of it."""

from __future__ import annotations

from collections.abc import Callable

#: A waiter that is told this many bytes wakes up whatever it waits for.
WAKE = 2**62

Waiter = Callable[[int], None]


class Waiting:
    """Waiters may come and go on any thread."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self._follower_waiters: set[Waiter] = set()

    def add_waiter(self, waiter: Waiter, *, to_end: bool = False) -> None:
        """`waiter(bytes)` is called, on any thread, when consumers may read more, with `to_end` after each append; and
        whenever the partition's state changes: with `WAKE`, or with 0 where nobody who waits need hear of it at once.
        """
        (self._follower_waiters if to_end else self._waiters).add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        self._follower_waiters.discard(waiter)

    def _wake_consumers(self, size: int) -> None:
        # (Others come and go meanwhile. A copy of a set is made in one go; a tuple of one begins to look, asks for
        # memory, which may let another thread run, and then finds that the set has changed.)
        for waiter in self._waiters.copy() if self._waiters else ():
            waiter(size)

    def wake(self, size: int) -> None:
        """Tell all waiters that `size` bytes are new."""
        for waiter in (*self._waiters.copy(), *self._follower_waiters.copy()):
            waiter(size)
