"""The part of a swap that holds the partition's log, and who ends it: the swap, or another thread in its place.

A thread that asks a disk which hangs never comes back. So the swap says before each question to the target what is to
be done in its place should the target fail meanwhile. Exactly one of the two goes on from there: a swap that was given
up changes nothing any more, whatever the disk answers in the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_node.errors import LogDirectoryOffline
from storage_node.log_hold import Hold

TakeBack = Callable[[], None]
"""Gives the source back in place of a swap that does not come back from its target; it does not touch the target."""


class SwapGivenUp(LogDirectoryOffline):
    """The target failed while the swap was asking it: another thread gives the source back."""


class Takeover:
    """One hold of one swap. Thread-safe."""

    def __init__(self, hold: Hold, target: str, what: str) -> None:
        """`target` is the name of the log directory, `what` is done there, for the error."""
        self.hold = hold
        self.what = what
        self._target = target
        self._mutex = threading.Lock()
        self._take_back: TakeBack | None = None
        self._since = 0.0
        self._given_up = False

    @contextmanager
    def asking(self, take_back: TakeBack) -> Iterator[None]:
        """Ask the target inside. Raises SwapGivenUp, at the latest at the end of the block."""
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
        """The swap is about to release the hold; False when that is another thread's business now."""
        with self._mutex:
            self._take_back = None
            return not self._given_up

    def give_up(self) -> TakeBack | None:
        """The target has failed: answers what the caller has to do before it releases the hold; None when the swap is
        not asking the target, and finds out by itself.
        """
        with self._mutex:
            take_back, self._take_back = self._take_back, None
            self._given_up = self._given_up or take_back is not None
            return take_back

    @property
    def asked(self) -> float | None:
        """When the question to the target that is under way was asked (`time.monotonic`); None without one."""
        with self._mutex:
            return self._since if self._take_back is not None else None
