"""Decide which thread ends a swap's hold of the partition's log: the swap's own, or another in its place.

A thread that waits for a disk which hangs never returns. So before each operation on the target the swap registers what
is to be done in its place should the target fail meanwhile. Exactly one of the two threads continues: a swap that was
given up changes nothing any more, even if the disk completes the operation in the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_node.errors import LogDirectoryOffline
from storage_node.log_hold import Hold

TakeBack = Callable[[], None]
"""Gives the source back in place of a swap that hangs in its target; it does not touch the target."""


class SwapGivenUp(LogDirectoryOffline):
    """The target failed while the swap waited for it: another thread gives the source back."""


class SwapHold:
    """One hold of one swap. Thread-safe."""

    def __init__(self, hold: Hold, target: str, what: str) -> None:
        """Create it; `target` is the name of the log directory and `what` the operation there, for the error."""
        self.hold = hold
        self.what = what
        self._target = target
        self._mutex = threading.Lock()
        self._take_back: TakeBack | None = None
        self._since = 0.0
        self._given_up = False

    @contextmanager
    def asking(self, take_back: TakeBack) -> Iterator[None]:
        """Use the target inside the block. Raises SwapGivenUp, at the latest at the end of the block."""
        self._set(take_back)
        try:
            yield
        finally:
            self._set(None)

    def _set(self, take_back: TakeBack | None) -> None:
        with self._mutex:
            if self._given_up:
                raise SwapGivenUp(self._target, self.what)
            self._take_back, self._since = take_back, time.monotonic()

    def end(self) -> bool:
        """Note that the swap is about to release the hold; return False when another thread has to release it."""
        with self._mutex:
            self._take_back = None
            return not self._given_up

    def give_up(self) -> TakeBack | None:
        """Give the swap up, because the target has failed; return what to do before releasing the hold.

        Returns None when the swap is not using the target, and detects the failure itself.
        """
        with self._mutex:
            take_back, self._take_back = self._take_back, None
            self._given_up = self._given_up or take_back is not None
            return take_back

    @property
    def asked(self) -> float | None:
        """When the operation on the target that is in progress began (`time.monotonic`); None without one."""
        with self._mutex:
            return self._since if self._take_back is not None else None
