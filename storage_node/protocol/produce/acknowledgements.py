"""Appends with acks=all that wait for the in-sync replicas, on the listener's loop and without blocking a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.network.off_loop import ELEMENTS
from storage_node.replication.leading import LeaderState

_MESSAGES = {
    ErrorCode.REQUEST_TIMED_OUT: "the in-sync replicas did not replicate the records in time",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "Messages are written to the log, but to fewer in-sync replicas than required."
    ),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the node lost the leadership before the in-sync replicas had the records",
}


class PendingAppend(Protocol):
    """The appended records of one partition."""

    error: int
    message: str
    next_offset: int
    state: LeaderState | None


class Acknowledgements:
    """The wait until each of some appends is replicated or has failed. Used on the loop that creates it."""

    def __init__(self, items: Sequence[PendingAppend], done: Callable[[], None]) -> None:
        """`done` is called once, when all appends are replicated or have failed; not after `give_up`."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._left = dict(enumerate(items))
        self._handles: dict[int, tuple[LeaderState, int]] = {}
        self._begun = False
        self._done = done

    def begin(self) -> None:
        """Begin the wait; `done` may be called before this returns."""
        self._begin(list(self._left.items()))
        self._all_begun()

    async def begin_in_turns(self) -> None:
        """Do the same for many appends, yielding to other tasks of the loop."""
        every = list(self._left.items())
        for first in range(0, len(every), ELEMENTS):
            self._begin(every[first : first + ELEMENTS])
            await asyncio.sleep(0)
        self._all_begun()

    def _begin(self, items: Sequence[tuple[int, PendingAppend]]) -> None:
        for number, item in items:
            if item.state is not None and number in self._left:
                handle = item.state.when_replicated(item.next_offset, partial(self._reached, number))
                self._handles[number] = (item.state, handle)

    def _all_begun(self) -> None:
        self._begun = True
        if not self._left:
            self._done()

    def give_up(self) -> None:
        """Fail the appends that are not replicated yet with REQUEST_TIMED_OUT."""
        left, self._left = self._left, {}
        self._give_up(list(left.items()))

    async def give_up_in_turns(self) -> None:
        """Do the same for many appends, yielding to other tasks of the loop."""
        left, self._left = self._left, {}
        late = list(left.items())
        for first in range(0, len(late), ELEMENTS):
            self._give_up(late[first : first + ELEMENTS])
            await asyncio.sleep(0)

    def _give_up(self, items: Sequence[tuple[int, PendingAppend]]) -> None:
        for number, item in items:
            waits = self._handles.pop(number, None)
            if waits is not None:
                state, handle = waits
                state.forget(handle)
            fail(item, ErrorCode.REQUEST_TIMED_OUT)

    def _reached(self, number: int, code: ErrorCode) -> None:
        """Finish an append; any thread may call it."""
        if threading.get_ident() == self._thread:
            self._finish(number, code)
            return
        with contextlib.suppress(RuntimeError):  # the listener has stopped
            self._loop.call_soon_threadsafe(self._finish, number, code)

    def _finish(self, number: int, code: ErrorCode) -> None:
        item = self._left.pop(number, None)
        if item is None:
            return
        if code:
            fail(item, code)
        if not self._left and self._begun:
            # Scheduled, since a follower's fetch is the caller.
            self._loop.call_soon(self._done)


def fail(item: PendingAppend, code: ErrorCode) -> None:
    """Set the error of records that are appended, but not known to be on all in-sync replicas."""
    item.error = code
    item.message = _MESSAGES.get(code, "the leader lost its replica before the in-sync replicas had the records")
