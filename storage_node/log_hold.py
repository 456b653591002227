"""Control the changes of a partition's log: by any writer under the lock, or only by a swap while it holds the log.

A swap waits for two disks while it holds the log, so it does not hold the lock as well: a thread that serves the
source's disk must never wait for the target's. Writers that serve a disk get `LogHeld` and return when the hold is
released; fields other than the records (the role, the configs) change under the lock at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, RequestRefused
from storage_node.model.error_codes import ErrorCode

#: Seconds between two checks of whether a replica whose lock or log is waited for has gone offline.
LOOK = 0.2


class Hold:
    """One swap's hold on a log. Thread-safe; it is released once."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._released = threading.Event()
        self._waiting: set[Callable[[], None]] = set()

    def when_released(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the thread that releases the hold; at once when it is released already."""
        with self._mutex:
            if not self._released.is_set():
                self._waiting.add(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call this callback any more."""
        with self._mutex:
            self._waiting.discard(callback)

    def wait(self, timeout: float) -> bool:
        """Wait until the hold is released; return False after `timeout` seconds."""
        return self._released.wait(timeout)

    def release(self) -> None:
        """Release the waiting writers; they check themselves what became of the replica."""
        with self._mutex:
            self._released.set()
            waiting, self._waiting = self._waiting, set()
        for callback in waiting:
            callback()


class LogHeld(RequestRefused):
    """The log cannot be changed by this thread now: a swap holds it (`hold`), or it is in another directory (None)."""

    code = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self, message: str, hold: Hold | None) -> None:
        super().__init__(message)
        self.hold = hold


class Changing:
    """A change of a held log: the value of `HeldLog.changing`. A class, since each append makes one."""

    __slots__ = ("_log", "_waits", "_within")

    def __init__(self, log: HeldLog, waits: bool, within: LogDirectory | None) -> None:
        self._log, self._waits, self._within = log, waits, within

    def __enter__(self) -> None:
        self._log._begin_change(self._waits, self._within)

    def __exit__(self, *_: object) -> None:
        self._log.lock.release()


class HeldLog:
    """The lock of a partition and the hold of its swap."""

    directory: LogDirectory
    _offline: str

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._hold: Hold | None = None

    def hold(self, seconds: float) -> Hold | None:
        """Keep all writers from the log until `release`; return None where the lock is not free within `seconds`."""
        if not self.lock.acquire(timeout=seconds):
            return None
        try:
            if self._hold is None:
                self._hold = Hold()
                return self._hold
            return None
        finally:
            self.lock.release()

    def release(self, hold: Hold) -> None:
        """End a hold, from any thread."""
        if self._hold is hold:
            self._hold = None
        hold.release()

    def changing(self, *, waits: bool = True, within: LogDirectory | None = None) -> Changing:
        """Hold the lock, for a writer, while no swap holds the log; reentrant.

        A thread that serves a disk must not wait (`waits`), and appends only to the directory that it serves
        (`within`): to enter raises LogHeld. It raises LogDirectoryOffline where an offline replica is still held.
        """
        return Changing(self, waits, within)

    def _begin_change(self, waits: bool, within: LogDirectory | None) -> None:
        while True:
            self.lock.acquire()
            hold = self._hold
            if hold is None and (within is None or within is self.directory):
                return
            self.lock.release()
            if hold is not None and self._offline:
                raise LogDirectoryOffline(self.directory.name, self._offline)
            if not waits:
                why = "a swap of the replica is under way" if hold is not None else "the replica was moved"
                raise LogHeld(f"{why}; send the request again", hold)
            if hold is not None:
                hold.wait(LOOK)

    @contextmanager
    def _until_offline(self) -> Iterator[bool]:
        """Hold the lock, without waiting for ever for a disk that hangs; yields False once the replica is offline."""
        while not (held := self.lock.acquire(timeout=LOOK)):
            if self._offline:
                break
        try:
            yield held
        finally:
            if held:
                self.lock.release()
