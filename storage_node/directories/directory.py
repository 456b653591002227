"""A log directory: its lock, its files, its pools of I/O threads, and whether it is online."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from storage_node.closing import closer_for
from storage_node.directories import atomic, clean_shutdown, probing
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.io_faults import Fault, evidence_of, fault_of, reason_of
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.signs import mounts, repeats, smart
from storage_node.directories.signs.latency import Latency
from storage_node.errors import LogDirectoryOffline, StorageError
from storage_node.model.evidence import Evidence, Verdict

__all__ = ["LogDirectory", "Usage", "reason_of"]

_log = logging.getLogger(__name__)

#: Threads per directory for housekeeping, moves and deletions; created on demand.
BACKGROUND_THREADS = 8
#: Threads per directory for the steps that apply a cluster image; created on demand.
IMAGE_THREADS = 2

_ELSEWHERE = "its path no longer leads to the directory that was opened (unmounted, replaced or unreadable)"

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Usage(NamedTuple):
    """A disk's size, and the bytes that an unprivileged process may still use."""

    total: int
    usable: int


class _Working:
    """A block during which something works in a directory."""

    __slots__ = ("_directory",)

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        self._directory._count(1)

    def __exit__(self, *_: object) -> None:
        self._directory._count(-1)


class LogDirectory:
    """A log directory of this node.

    `path` is the absolute path as configured, `real` where its symlinks led when it was opened, `id` the directory id
    ("" if it could not be read). An offline
    directory stays offline: a start, or `rehome dirs online`, makes another object for the path, after the checks that
    establish what the disk holds after an error.
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
        self._closer = closer_for(str(path))
        self.pool = self._threads("disk", threads)
        self._background = self._threads("background", BACKGROUND_THREADS)
        self._lookups = self._threads("lookup", 1)
        self._images = self._threads("image", IMAGE_THREADS)
        self._failure = failure
        self._evidence = None if failure is None else Evidence(Verdict.DISK, "opening it", self.name, time=time.time())
        self._listeners: list[Callable[[LogDirectory, str], None]] = []
        self._state = threading.Lock()
        self._lock = lock or DirectoryLock(self.path)
        self._identity = self._stat() if failure is None else None
        self.real = os.path.realpath(path) if failure is None else str(path)
        self._running = 0
        self.latency = Latency()
        self._repeats = repeats.count(self._identity[0]) if self._identity is not None else 0
        self._names = threading.Lock()
        self._names_flushed = False

    def _threads(self, work: str, count: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(count, f"{work}-{self.path.name}", initializer=self._closer.serve)

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
        """Return whether both directories were on the same file system at the start, and so share its free space."""
        mine, theirs = self._identity, other._identity
        return mine is not None and theirs is not None and mine[0] == theirs[0]

    @property
    def failure(self) -> str | None:
        """The reason why the directory is offline; None while it is online."""
        return self._failure

    @property
    def evidence(self) -> Evidence | None:
        """What the failure rests on; None while the directory is online."""
        return self._evidence

    def signs(self) -> dict[str, str]:
        """Return the early signs of a failure: the kind of each, and a clause that explains it.

        `errors`: some passed when they were repeated; `slow`: against the disk's own past; `read-only`: its file system
        is mounted so; `smart`: its disk's own report, of the last hour. None of them takes the directory offline.
        """
        if self._identity is None:
            return {}
        device = self._identity[0]
        number = repeats.count(device) - self._repeats
        errors = f"{number} reads or writes on its disk failed and were repeated" if number else ""
        mount = "its file system is mounted read-only" if mounts.is_read_only(self.real) else ""
        found = {"errors": errors, "slow": self.latency.slow(), "read-only": mount, "smart": smart.sign(device)}
        return {word: text for word, text in found.items() if text}

    def check_online(self) -> None:
        """Raise LogDirectoryOffline if the directory is offline."""
        if self._failure is not None:
            raise LogDirectoryOffline(self.name, f"I/O after an earlier failure ({self._failure})")

    def fail(self, reason: str | BaseException, evidence: Evidence | None = None) -> bool:
        """Take the directory offline and call the listeners in this thread; return False if it already was offline.

        `evidence` is derived from a StorageError; for a reason in words it is that of a disk unless it is given.
        """
        text = reason if isinstance(reason, str) else reason_of(reason)
        if evidence is None:
            error = isinstance(reason, StorageError)
            evidence = evidence_of(reason, time.time()) if error else _of_disk(text, self.name)  # type: ignore[arg-type]
        with self._state:
            if self._failure is not None:
                return False
            self._failure, self._evidence = text, evidence
            listeners = tuple(self._listeners)
        _log.error("log directory %s is offline: %s", self.path, text)
        for listener in listeners:
            self._notify(listener, text)
        return True

    def on_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` once when the directory fails, at once if it already has."""
        with self._state:
            if self._failure is None:
                self._listeners.append(listener)
                return
            reason = self._failure
        self._notify(listener, reason)

    def _notify(self, listener: Callable[[LogDirectory, str], None], reason: str) -> None:
        try:
            listener(self, reason)
        except Exception:
            # An error in one listener must not prevent the others from learning that the directory failed.
            _log.exception("a failure listener of log directory %s raised an exception", self.path)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run blocking I/O on the directory's own threads; a StorageError that names this directory takes it offline.

        Raises LogDirectoryOffline at once if the directory is offline.
        """
        self.check_online()
        return self.pool.submit(self._run, fn, *args, **kwargs)

    def background(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on separate threads: for work that no client waits for or that may wait for another directory.

        Appends and reads never queue behind a checkpoint's flush, nor behind a move from or to a disk that hangs.
        """
        self.check_online()
        return self._background.submit(self._run, fn, *args, **kwargs)

    def for_image(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on threads reserved for applying a cluster image.

        It never queues behind hundreds of moves that start in this directory, nor behind a large deletion.
        """
        self.check_online()
        return self._images.submit(self._run, fn, *args, **kwargs)

    def submit_lookup(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Like `submit`, on a separate thread, since a search by timestamp may read and decompress much."""
        self.check_online()
        return self._lookups.submit(self._run, fn, *args, **kwargs)

    def _run(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _Working(self):
            try:
                return fn(*args, **kwargs)
            except StorageError as exc:
                self.fail_on(exc)
                raise

    def working(self) -> AbstractContextManager[None]:
        """Count what a thread of others does in the directory as `running`: it must end before the disk is used again,
        where it could write beside new logs.
        """
        return _Working(self)

    def _count(self, change: int) -> None:
        with self._state:
            self._running += change

    @property
    def running(self) -> int:
        """How many jobs run now, in the pools and elsewhere; in an offline directory they may hang in the disk."""
        return self._running

    def fail_on(self, error: StorageError) -> bool:
        """Take the directory offline for an error of its own that indicates a failed disk; return whether it was taken.

        This is the only place that decides it, whichever operation failed. An error that may concern a single file
        (which is missing, or exists unexpectedly) counts as one of the disk unless the directory passes a health check.
        """
        if error.directory != self.name or not self.online:
            return False
        match fault_of(error):
            case Fault.DISK:
                return self.fail(error)
            case Fault.FILE:
                return self.check(reason_of(error))
        _log.warning("%s; this error does not indicate a failed disk", reason_of(error))
        return False

    def check(self, why: str) -> bool:
        """Run a health check because of the error `why`; return whether the directory was taken offline."""
        now = self._stat()
        if now is None or now != self._identity:
            return self.fail(f"{why}; {_ELSEWHERE}", _of_disk("reading its identity", self.name))
        try:
            probing.probe(self.path)
        except StorageError as failed:
            evidence = evidence_of(failed, time.time())
            return fault_of(failed) is not Fault.STEP and self.fail(f"{why}; {reason_of(failed)}", evidence)
        _log.warning("%s; the directory passed a health check and stays online", why)
        return False

    def lock(self) -> None:
        """Take the directory's `.lock`; raises DirectoryInUse, MetadataIOError."""
        with atomic.io_errors(self.name, "locking"):
            self._lock.acquire()

    def unlock(self) -> None:
        """Release the `.lock` and remove its file."""
        self._lock.release()

    def flush_found_names(self) -> None:
        """Flush the names of all replicas that the directory serves. Raises OSError.

        Code that creates or renames a replica flushes the directory before the replica is served. Only names found at
        the start may be unflushed, left by a process that was killed, so one flush suffices.
        """
        with self._names:
            if not self._names_flushed:
                atomic.fsync_dir(self.path)
                self._names_flushed = True

    def take_clean_shutdown(self) -> CleanShutdown:
        """Return what the last shutdown recorded, and remove the marker. Raises MetadataIOError."""
        return clean_shutdown.take(self.path)

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """Record that all logs in here were closed and flushed. Raises MetadataIOError, LogDirectoryOffline."""
        self.check_online()
        clean_shutdown.write(self.path, broker_epoch)

    def usage(self) -> Usage:
        """Return the disk's size and free space in bytes; raises MetadataIOError."""
        with atomic.io_errors(self.name, "reading the free space"):
            found = os.statvfs(self.path)
        return Usage(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def verify(self) -> bool:
        """Check that the path still leads to the directory opened at the start, else take it offline; return `online`.

        After a lazy unmount, I/O still works through open files, while the path shows an empty directory.
        """
        if not self.online:
            return False
        now = self._stat()
        if now is None or now != self._identity:
            self.fail(_ELSEWHERE, _of_disk("reading its identity", self.name))
        return self.online

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Stop the threads (running work finishes, queued work is dropped) and release the lock."""
        for pool in (self.pool, self._background, self._lookups, self._images):
            pool.shutdown(wait=self.online, cancel_futures=True)
        self.unlock()


def _of_disk(operation: str, path: str) -> Evidence:
    return Evidence(Verdict.DISK, operation, path, time=time.time())
