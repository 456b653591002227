"""Remove what is named `.delete` when it is due: after file.delete.delay.ms, by the node itself.

The only good copy is never deleted: the source of a swap is removed only while the replica is online elsewhere with a
higher generation. Before the first file is removed the marker records that removal has begun, and the marker is the
last file to be removed, so that what a crash leaves is never taken for a copy.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.atomic import fsync_dir, io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.host import ReplicasHost
from storage_node.replicas.marker import Marker, Reason, State

BEFORE_REMOVE = failpoints.register("delete.before_remove")
AFTER_MARKER = failpoints.register("delete.after_marker")
AFTER_FILES = failpoints.register("delete.after_files")
AFTER_REMOVED = failpoints.register("delete.after_removed")

_LOOK = 0.2  # seconds between two checks of whether a directory that is waited for has failed
_RETRY = 1.0  # seconds until a deletion that is not allowed yet, or has failed, is tried again
_LONGEST = 300.0  # and at most, when it fails repeatedly

_log = logging.getLogger(__name__)


class OpenLog(Protocol):
    """The log of a replica or of its copy."""

    def close(self, clean: bool = True) -> None:
        """See `Log.close`."""


@dataclass(eq=False, slots=True)
class Deletion:
    """A pending `.delete`. `due_ms` is the wall clock; `log` is still open for readers that began before."""

    tp: TopicPartition
    path: Path
    directory: LogDirectory
    generation: int
    due_ms: int
    guarded: bool
    log: OpenLog | None = None
    removing: threading.Lock = field(default_factory=threading.Lock)
    tried: bool = False  # since it was due
    pause: float = _RETRY
    gone: bool = False


class Deletions:
    """All `.delete`s of a node. Thread-safe; each directory has a thread that removes what is due there, so that a disk
    that hangs delays no other directory.
    """

    def __init__(self, host: ReplicasHost, now_ms: Callable[[], int]) -> None:
        self._host = host
        self._now_ms = now_ms
        self._pending: list[Deletion] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads: dict[LogDirectory, threading.Thread] = {}

    def schedule(self, deletion: Deletion) -> None:
        """Remove it when it is due; one that is scheduled already keeps its place."""
        with self._changed:
            known = next((other for other in self._pending if other.path == deletion.path), None)
            if self._closed or (known is not None and known.directory is deletion.directory):
                return
            self._pending.append(deletion)
            directory = deletion.directory
            if directory not in self._threads:
                name = f"deletions-{directory.path.name}"
                thread = threading.Thread(target=self._run, args=(directory,), name=name, daemon=True)
                self._threads[directory] = thread
                thread.start()
            self._changed.notify_all()

    def let_go(self, directory: LogDirectory) -> None:
        """Forget what is pending in a directory that is not used any more, or has returned as another object."""
        with self._changed:
            for deletion in [each for each in self._pending if each.directory is directory]:
                deletion.gone = True
                self._pending.remove(deletion)
            self._threads.pop(directory, None)
            self._changed.notify_all()

    def pending(self, tp: TopicPartition | None = None) -> list[Deletion]:
        """Return the pending deletions, of one partition or of all."""
        with self._changed:
            return [deletion for deletion in self._pending if tp is None or deletion.tp == tp]

    def unguard(self, tp: TopicPartition) -> None:
        """Lift the guards of a deleted topic: its replica will never be served elsewhere."""
        with self._changed:
            for deletion in self._pending:
                if deletion.tp == tp:
                    deletion.guarded = False

    def seconds_until_gone(self, tp: TopicPartition, generation: int) -> float:
        """Remove the `.delete`s of `tp` that are due and older than `generation` (0: all).

        Returns the seconds until the next try.
        """
        wait = 0.0
        for deletion in self.pending(tp):
            if generation and deletion.guarded and deletion.generation >= generation:
                continue
            wait = max(wait, self._try(deletion))
        return wait

    def close(self) -> None:
        """Stop; the next start schedules what is pending. A thread that hangs in a disk is not joined."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for directory, thread in self._threads.items():
            while thread.is_alive() and directory.online:
                thread.join(_LOOK)
        for deletion in self.pending():
            if deletion.log is not None and deletion.directory.online:
                with contextlib.suppress(StorageError):
                    deletion.log.close(clean=False)

    def _run(self, directory: LogDirectory) -> None:
        while True:
            for deletion in self._in(directory):
                try:
                    self._try(deletion)
                except StorageError as error:
                    _log.error("removing %s failed: %s", deletion.path, error)
                    self._failed(deletion, error)
                except Exception as error:
                    _log.exception("removing %s failed", deletion.path)
                    self._failed(deletion, error)
            with self._changed:
                if self._closed or directory not in self._threads:
                    return
                now = self._now_ms()
                here = [deletion for deletion in self._pending if deletion.directory is directory]
                waits = [_RETRY if d.tried else max(0.0, (d.due_ms - now) / 1000) for d in here]
                self._changed.wait(min(waits, default=None))
                if self._closed or directory not in self._threads:
                    return

    def _in(self, directory: LogDirectory) -> list[Deletion]:
        return [deletion for deletion in self.pending() if deletion.directory is directory]

    def _try(self, deletion: Deletion) -> float:
        """Remove it if it may be removed now; return the seconds until the next try."""
        while not deletion.removing.acquire(timeout=_LOOK):
            if not deletion.directory.online:
                return _RETRY  # the thread that removes it may hang in that disk
        try:
            if deletion.gone:
                return 0.0
            wait = (deletion.due_ms - self._now_ms()) / 1000
            if wait > 0:
                return wait
            deletion.tried = True
            if not deletion.directory.online or not self._safe(deletion):
                return _RETRY
            failpoint(BEFORE_REMOVE)
            try:
                remove(deletion)
            except StorageError as error:
                deletion.directory.fail_on(error)
                raise
            self._forget(deletion)
            return 0.0
        finally:
            deletion.removing.release()

    def _safe(self, deletion: Deletion) -> bool:
        if not deletion.guarded:
            return True
        partition = self._host.partition(deletion.tp)
        return partition is not None and partition.directory.online and partition.generation > deletion.generation

    def _failed(self, deletion: Deletion, error: Exception) -> None:
        """Retry a failed removal later, or leave it to a start if its directory is lost; it must not block others."""
        if not deletion.directory.online:
            self._forget(deletion)
        elif not (isinstance(error, StorageError) and atomic.is_no_room(error)):
            # (A disk that is full to the last byte may accept the marker a moment later.)
            deletion.due_ms = self._now_ms() + int(deletion.pause * 1000)
            deletion.pause = min(deletion.pause * 2, _LONGEST)
            deletion.tried = False

    def _forget(self, deletion: Deletion) -> None:
        with self._changed:
            deletion.gone = True
            if deletion in self._pending:
                self._pending.remove(deletion)


def remove(deletion: Deletion) -> None:
    """Remove a `.delete` now: its files, its marker, its folder, flushed. Raises StorageError."""
    path = deletion.path
    found = markers.read_any(path)
    with io_errors(deletion.directory.name, f"looking at {path.name}"):
        there = path.is_dir() and not path.is_symlink()
    if not there:
        return
    gone = replace(
        found or Marker(deletion.tp.topic, deletion.tp.partition, generation=deletion.generation),
        state=State.DELETED,
        reason=Reason.REMOVING,
    )
    markers.write_in_any_case(path, gone)
    failpoint(AFTER_MARKER)
    if deletion.log is not None:
        deletion.log.close(clean=False)
    with io_errors(deletion.directory.name, f"removing {path.name}"):
        for entry in path.iterdir():
            if entry.name == markers.NAME:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        failpoint(AFTER_FILES)
        (path / markers.NAME).unlink(missing_ok=True)
        path.rmdir()
        fsync_dir(path.parent)
    failpoint(AFTER_REMOVED)


def wall_clock_ms() -> int:
    """Return the current time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
