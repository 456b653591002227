"""One log directory: its lock, its files, its small pools of I/O threads, and whether it is online."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from storage_node.directories import atomic, clean_shutdown, health
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.latch import Fault, fault_of, reason_of
from storage_node.directories.lock import DirectoryLock
from storage_node.errors import LogDirectoryOffline, StorageError

__all__ = ["LogDirectory", "Usage", "reason_of"]

_log = logging.getLogger(__name__)

#: So many steps of housekeeping, moves and deletions may wait for one disk at a time; made when they are needed.
BACKGROUND_THREADS = 8
#: So many steps that a cluster image asks for; made when they are needed.
IMAGE_THREADS = 2

_ELSEWHERE = "its path no longer leads to the directory that was opened (unmounted, replaced or unreadable)"

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Usage(NamedTuple):
    """A disk's size and the bytes an unprivileged process may still use."""

    total: int
    usable: int


class LogDirectory:
    """A log directory of this node.

    `path` is the absolute path as configured, `id` the directory id ("" when it could not be read). Once offline it
    stays so for the life of this object: what a disk holds after an error is known only after a start's checks.
    """

    def __init__(
        self,
        path: Path | str,
        id: str,
        *,
        threads: int = 2,
        failure: str | None = None,
        lock: DirectoryLock | None = None,
    ) -> None:
        self.path = Path(path)
        self.id = id
        self.recovery_points = OffsetCheckpoint(self.path, RECOVERY_POINTS)
        self.high_watermarks = OffsetCheckpoint(self.path, HIGH_WATERMARKS)
        self.log_start_offsets = OffsetCheckpoint(self.path, LOG_START_OFFSETS)
        self.pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"disk-{self.path.name}")
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix=f"background-{self.path.name}")
        self._lookups = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lookup-{self.path.name}")
        self._images = ThreadPoolExecutor(IMAGE_THREADS, thread_name_prefix=f"image-{self.path.name}")
        self._failure = failure
        self._listeners: list[Callable[[LogDirectory, str], None]] = []
        self._state = threading.Lock()
        self._lock = lock or DirectoryLock(self.path)
        self._identity = self._look() if failure is None else None
        self._names = threading.Lock()
        self._names_flushed = False

    def __repr__(self) -> str:
        return f"LogDirectory({str(self.path)!r}, {self.id!r}, {'online' if self.online else 'offline'})"

    @property
    def name(self) -> str:
        """The path as text, as in requests and errors."""
        return str(self.path)

    @property
    def online(self) -> bool:
        return self._failure is None

    def shares_disk_with(self, other: LogDirectory) -> bool:
        """Whether deletions in the other directory make room in this one, as of the start."""
        mine, theirs = self._identity, other._identity
        return mine is not None and theirs is not None and mine[0] == theirs[0]

    @property
    def failure(self) -> str | None:
        """Why the directory is offline; None while it is online."""
        return self._failure

    def check_online(self) -> None:
        """Raise LogDirectoryOffline when the directory is offline."""
        if self._failure is not None:
            raise LogDirectoryOffline(self.name, f"I/O after an earlier failure ({self._failure})")

    def fail(self, reason: str | BaseException) -> bool:
        """Take the directory offline; False when it already was. The listeners are called once, in this thread."""
        text = reason if isinstance(reason, str) else reason_of(reason)
        with self._state:
            if self._failure is not None:
                return False
            self._failure = text
            listeners = tuple(self._listeners)
        _log.error("log directory %s is offline: %s", self.path, text)
        for listener in listeners:
            self._tell(listener, text)
        return True

    def on_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` once when the directory fails; at once when it already has."""
        with self._state:
            if self._failure is None:
                self._listeners.append(listener)
                return
            reason = self._failure
        self._tell(listener, reason)

    def _tell(self, listener: Callable[[LogDirectory, str], None], reason: str) -> None:
        try:
            listener(self, reason)
        except Exception:
            # One listener's mistake must not keep the others from learning that the disk is gone.
            _log.exception("a listener failed on the failure of log directory %s", self.path)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run blocking I/O on the directory's own threads; a StorageError from it that names this directory fails it.

        Raises LogDirectoryOffline at once when the directory is offline.
        """
        self.check_online()
        return self.pool.submit(self._run, fn, *args, **kwargs)

    def background(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on threads of their own: for what no client waits for, or what may wait for another directory.

        Appends and reads never queue behind a checkpoint's flush, nor behind a move from or to a disk that hangs.
        """
        self.check_online()
        return self._background.submit(self._run, fn, *args, **kwargs)

    def for_image(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on threads that do alone what a cluster image asks for.

        It never queues behind hundreds of moves that are to begin here, nor behind a deletion of what is large.
        """
        self.check_online()
        return self._images.submit(self._run, fn, *args, **kwargs)

    def submit_lookup(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on a thread that appends and fetches never wait for: a search may read and unpack much."""
        self.check_online()
        return self._lookups.submit(self._run, fn, *args, **kwargs)

    def _run(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return fn(*args, **kwargs)
        except StorageError as exc:
            self.fail_on(exc)
            raise

    def fail_on(self, error: StorageError) -> bool:
        """Take the directory offline for an error that is its own and says that the disk is bad; else False.

        The one place where that is judged, whoever met the error. What may be a single file's trouble (something is
        gone, or in the way) is so only if the directory passes a health check.
        """
        if error.directory != self.name or not self.online:
            return False
        match fault_of(error):
            case Fault.DISK:
                return self.fail(error)
            case Fault.FILE:
                return self.check(reason_of(error))
        _log.warning("%s, which says nothing about the disk", reason_of(error))
        return False

    def check(self, why: str) -> bool:
        """Ask the disk itself, because of `why`; answers whether the directory was taken offline."""
        now = self._look()
        if now is None or now != self._identity:
            return self.fail(f"{why}; {_ELSEWHERE}")
        try:
            health.probe(self.path, f"{health.FILE}.{threading.get_ident()}")
        except StorageError as failed:
            return fault_of(failed) is not Fault.STEP and self.fail(f"{why}; {reason_of(failed)}")
        _log.warning("%s; the directory passed a health check and stays online", why)
        return False

    def lock(self) -> None:
        """Take the directory's `.lock`; raises DirectoryInUse, MetadataIOError."""
        with atomic.io_errors(self.name, "locking"):
            self._lock.acquire()

    def unlock(self) -> None:
        """Give the `.lock` up and remove its file."""
        self._lock.release()

    def flush_found_names(self) -> None:
        """Have the names on the disk of all replicas that are served from here. Raises OSError.

        Whoever makes or renames a replica flushes the directory before he serves it, so only what was found at the
        start may be there without its name being on the disk, left by a process that was killed: once is enough.
        """
        with self._names:
            if not self._names_flushed:
                atomic.fsync_dir(self.path)
                self._names_flushed = True

    def take_clean_shutdown(self) -> CleanShutdown:
        """What the last stop left; the marker is removed. Raises MetadataIOError."""
        return clean_shutdown.take(self.path)

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """Say that every log in here was closed and flushed. Raises MetadataIOError, LogDirectoryOffline."""
        self.check_online()
        clean_shutdown.write(self.path, broker_epoch)

    def usage(self) -> Usage:
        """The disk's size and free space in bytes; raises MetadataIOError."""
        with atomic.io_errors(self.name, "asking for free space"):
            found = os.statvfs(self.path)
        return Usage(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def verify(self) -> bool:
        """Whether the path still leads to the directory opened at the start; if not, the directory is taken offline.

        A disk that was unmounted lazily goes on working through open files, while its path shows an empty directory.
        """
        if not self.online:
            return False
        now = self._look()
        if now is None or now != self._identity:
            self.fail(_ELSEWHERE)
        return self.online

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Stop the threads (what they are doing is finished, what waits is dropped) and give the lock up."""
        for pool in (self.pool, self._background, self._lookups, self._images):
            pool.shutdown(wait=self.online, cancel_futures=True)
        self.unlock()
