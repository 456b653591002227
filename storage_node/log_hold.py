"""Who may change a partition's log: any writer under the lock, or nobody while a swap holds the log.

A swap asks two disks while it holds the log, so it does not hold the lock as well: a thread that serves the source's
disk must never wait for the target's. Writers that serve a disk get `LogHeld` and come back when the hold is released;
fields that are no records (the role, the configs) are changed under the lock at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_node.directories.directory import LogDirectory
from storage_node.errors import ErrorCode, LogDirectoryOffline, RequestRefused

#: Seconds between two looks at whether a replica whose lock or log is waited for has gone offline.
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
        """Do not call this one any more."""
        with self._mutex:
            self._waiting.discard(callback)

    def wait(self, timeout: float) -> bool:
        """Wait until the hold is released; False after `timeout` seconds."""
        return self._released.wait(timeout)

    def release(self) -> None:
        """Let those that wait go on; they find out for themselves what became of the replica."""
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


class HeldLog:
    """The lock of a partition and the hold of its swap."""

    directory: LogDirectory
    _offline: str

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._hold: Hold | None = None

    def hold(self, seconds: float) -> Hold | None:
        """Keep all writers from the log until `release`; None where the lock is not free within `seconds`."""
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

    @contextmanager
    def changing(self, *, waits: bool = True, within: LogDirectory | None = None) -> Iterator[None]:
        """The lock, for a writer, while no swap holds the log; may be taken again inside.

        A thread that serves a disk must not wait (`waits`), and appends only to the directory that it serves
        (`within`): raises LogHeld. Raises LogDirectoryOffline where a replica that is offline is still held.
        """
        while True:
            self.lock.acquire()
            hold = self._hold
            if hold is None and (within is None or within is self.directory):
                break
            self.lock.release()
            if hold is not None and self._offline:
                raise LogDirectoryOffline(self.directory.name, self._offline)
            if not waits:
                why = "a swap of the replica is under way" if hold is not None else "the replica was moved"
                raise LogHeld(f"{why}; send the request again", hold)
            if hold is not None:
                hold.wait(LOOK)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def _until_offline(self) -> Iterator[bool]:
        """The lock, for who must not wait for ever for a disk that hangs; False once the replica is offline."""
        while not (held := self.lock.acquire(timeout=LOOK)):
            if self._offline:
                break
        try:
            yield held
        finally:
            if held:
                self.lock.release()
