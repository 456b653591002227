"""Keep the requests that wait for a partition's new records, or for another state of it."""

from __future__ import annotations

from collections.abc import Callable

#: A waiter that is called with this many bytes wakes up whatever it waits for.
WAKE = 2**62

Waiter = Callable[[int], None]


class Waiters:
    """The waiters of a partition, added and removed on any thread."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self._follower_waiters: set[Waiter] = set()

    def add_waiter(self, waiter: Waiter, *, to_end: bool = False) -> None:
        """Call `waiter(bytes)`, on any thread, when consumers may read more; with `to_end` after each append.

        It is also called whenever the partition's state changes: with `WAKE`, or with 0 if no
        waiting request is affected at once.
        """
        (self._follower_waiters if to_end else self._waiters).add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        self._follower_waiters.discard(waiter)

    def _wake_consumers(self, size: int) -> None:
        # (Other waiters come and go meanwhile. A copy of a set is made in one step; a tuple of one begins to iterate,
        # allocates memory, which may let another thread run, and then fails because the set has changed.)
        for waiter in self._waiters.copy() if self._waiters else ():
            waiter(size)

    def wake(self, size: int) -> None:
        """Call all waiters with `size` new bytes."""
        for waiter in (*self._waiters.copy(), *self._follower_waiters.copy()):
            waiter(size)
