"""A small file that every log directory keeps, of which the newest content counts: it survives all disks but one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, StorageError

__all__ = ["NewestFile"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_LOOK: Final = 0.2  # seconds between two checks of whether a directory that is waited for has failed
_PATIENCE: Final = 2.0  # seconds to wait for more copies, once one directory has the content


class NewestFile(Generic[_T]):
    """Saves values to all online directories, each on its own threads, so that a slow disk delays only itself.

    A directory that is still writing an older value writes only the newest one afterwards. Thread-safe.
    """

    def __init__(
        self,
        what: str,
        directories: Sequence[LogDirectory],
        write: Callable[[LogDirectory, _T], None],
        order: Callable[[_T], Any],
    ) -> None:
        """Create it; `write` replaces the file in a directory, durably, and may raise StorageError; `order` orders the
        values; `what` is what is saved, for errors. `directories` may be replaced later.
        """
        self.directories = tuple(directories)
        self._what = what
        self._write = write
        self._order = order
        self._idle = threading.Condition()
        self._waiting: dict[LogDirectory, _T] = {}
        self._busy: dict[LogDirectory, Future[None]] = {}
        self._written: WeakKeyDictionary[LogDirectory, _T] = WeakKeyDictionary()

    def start(self, directory: LogDirectory, value: _T) -> Future[None]:
        """Start to save a value in one directory; the future is done once it has it, or a newer one.

        Raises LogDirectoryOffline.
        """
        with self._idle:
            waiting = self._waiting.get(directory)
            if waiting is None or self._order(waiting) <= self._order(value):
                self._waiting[directory] = value
            busy = self._busy.get(directory)
            if busy is None:
                try:
                    busy = directory.for_image(self._drain, directory)
                except BaseException:
                    self._waiting.pop(directory, None)
                    raise
                self._busy[directory] = busy
            return busy

    def save(self, value: _T, copies: int = 1) -> None:
        """Start to save a value in every online directory; return once `copies` of them have it, or a newer one.

        Directories that fail, or are slower than others by seconds, are not waited for once one has it. Raises the
        error of a directory if none can take it, LogDirectoryOffline if none is online.
        """
        jobs: dict[Future[None], LogDirectory] = {}
        problem: StorageError = LogDirectoryOffline(", ".join(d.name for d in self.directories), f"saving {self._what}")
        for directory in self.directories:
            if directory.online:
                try:
                    jobs[self.start(directory, value)] = directory
                except LogDirectoryOffline:
                    continue  # it failed meanwhile; the others suffice
        have, until = 0, 0.0
        pending = set(jobs)
        while pending:
            done, pending = wait(pending, _LOOK, FIRST_COMPLETED)
            for job in done:
                try:
                    job.result()
                    have += 1
                except StorageError as error:
                    problem = error
            pending = {job for job in pending if jobs[job].online}
            until = until or (time.monotonic() + _PATIENCE if have else 0.0)
            if have >= copies or (have and time.monotonic() > until):
                return
        if not have:
            raise problem

    def flush(self, timeout: float) -> bool:
        """Wait until no online directory is being written to; return False after `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not any(directory.online for directory in self._busy), timeout)

    def _drain(self, directory: LogDirectory) -> None:
        """Write the waiting values until there are none; at most one call runs per directory."""
        try:
            while True:
                with self._idle:
                    value = self._waiting.pop(directory, None)
                    if value is None:
                        self._done(directory)
                        return
                written = self._written.get(directory)
                if written is None or self._order(written) <= self._order(value):
                    self._write(directory, value)
                    self._written[directory] = value
        except BaseException as exc:
            _log.warning("saving %s failed: %s", self._what, exc)
            with self._idle:
                self._waiting.pop(directory, None)
                self._done(directory)
            raise

    def _done(self, directory: LogDirectory) -> None:
        self._busy.pop(directory, None)
        self._idle.notify_all()
