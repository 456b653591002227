"""Write what a swap leaves for later: the final states of the markers, and the source's checkpoints without the
replica.

The swap is complete before: a start that finds the earlier states reaches the same result. The final states serve a
start without the source's disk (a sealed copy alone may have been undone there, a confirmed one cannot) and record the
time at which the `.delete` is due. No caller waits for them, so a swap does not either: with many small moves in one
request it would cost a good part of each. They are written when no swap has come for a moment, and soon in any case.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path

from storage_node import failpoints
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import replica_name
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition
from storage_node.move.future import FLUSHED
from storage_node.move.host import MoveHost
from storage_node.replicas import marker as markers
from storage_node.replicas.deletion import Deletion
from storage_node.replicas.marker import Reason, State

AFTER_SETTLED = failpoints.register("swap.after_settled")
AFTER_SOURCE_SETTLED = failpoints.register("swap.after_source_settled")

QUIET = 1.0  # seconds without a swap after which the final states are written
LONGEST = 10.0  # seconds after which they are in any case
PATIENCE = 5.0  # seconds that a stopping node waits for them
# Seconds in all that a directory's jobs wait for partitions' guards, which jobs of other directories may hold.
TURN = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    """A pending write in one directory.

    `write` returns False when the partition's guard, or the deletion, is not free within the given seconds.
    """

    directory: LogDirectory
    write: Callable[[float], bool]
    left: bool = False  # a replica has left the directory


class Settler:
    """The pending writes of swaps. Thread-safe; each directory's own threads write, so that a disk that hangs delays no
    other directory.
    """

    def __init__(self, host: MoveHost, guard: Callable[[TopicPartition], threading.RLock]) -> None:
        """Create it; `guard` returns the lock under which names and markers of a partition change."""
        self._host = host
        self._guard = guard
        self._jobs: list[_Job] = []
        self._under_way: list[tuple[LogDirectory, Future[None]]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._oldest = self._newest = 0.0
        self._thread: threading.Thread | None = None

    def add(self, tp: TopicPartition, target: LogDirectory, generation: int, deletion: Deletion) -> None:
        """Add the writes of a swap: the copy of `tp` in `target` is the replica of this generation, its source
        `deletion`.
        """

        def replica(patience: float) -> bool:
            guard = self._guard(tp)
            if not guard.acquire(timeout=patience):
                return False
            try:
                settle_replica(target.path / replica_name(tp), generation)
            finally:
                guard.release()
            return True

        now = time.monotonic()
        with self._changed:
            if self._closed:
                return
            self._oldest, self._newest = (self._oldest if self._jobs else now), now
            self._jobs += [
                _Job(target, replica),
                _Job(deletion.directory, lambda _: settle_source(deletion), left=True),
            ]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="settling", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Write everything now and wait for it, except on a disk that hangs or under a guard that another thread holds.

        Writes already in progress are waited for as well.
        """
        wait(self._begin(), PATIENCE)

    def _begin(self) -> list[Future[None]]:
        with self._changed:
            jobs, self._jobs = self._jobs, []
            by_directory: dict[LogDirectory, list[_Job]] = {}
            for job in jobs:
                by_directory.setdefault(job.directory, []).append(job)
            # The node does not wait for a disk that it gave up.
            self._under_way = [(where, job) for where, job in self._under_way if where.online and not job.done()]
            for directory, here in by_directory.items():
                # Writes of a directory that is offline or closing are left to the next start.
                with contextlib.suppress(StorageError, RuntimeError):
                    self._under_way.append((directory, directory.background(self._write, directory, here)))
            return [job for _, job in self._under_way]

    def close(self) -> None:
        """Write what is left, if the disks accept it soon; otherwise the next start does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.settle()

    def _write(self, directory: LogDirectory, jobs: list[_Job]) -> None:
        try:
            self._host.checkpoint(directory, None)
        except StorageError as error:
            directory.fail_on(error)
            # The seals hold what the checkpoints lack: they stay until there is room, or until the next start.
            for job in [each for each in jobs if not each.left and directory.online]:
                self._again(job, LONGEST)
            jobs = [job for job in jobs if job.left]
        until = time.monotonic() + TURN
        for job in jobs:
            try:
                if directory.online and not job.write(max(0.0, until - time.monotonic())):
                    self._again(job)
            except StorageError as error:
                directory.fail_on(error)
            except markers.MarkerCorrupt as error:
                _log.error("after a swap: %s", error)

    def _again(self, job: _Job, pause: float = 0.0) -> None:
        with self._changed:
            if not self._closed:
                self._oldest = self._newest = time.monotonic() + pause
                self._jobs.append(job)
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = min(self._newest + QUIET, self._oldest + LONGEST) if self._jobs else None
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
            self._begin()


def settle_replica(path: Path, generation: int) -> None:
    """Mark the sealed copy of this generation as the replica, under the partition's guard. The directory's checkpoint
    has its log start offset from here on, which may also fall again.

    What another move, a deletion or a start has written there since, stays. Raises StorageError, MarkerCorrupt.
    """
    found = markers.read(path)
    if found is None or found.state is not State.SEALED or found.generation != generation:
        return
    markers.write(path, replace(found.settled(), log_start=-1))
    with contextlib.suppress(OSError):
        (path / FLUSHED).unlink(missing_ok=True)
    failpoint(AFTER_SETTLED)


def settle_source(deletion: Deletion) -> bool:
    """Record why the source of a swap is a `.delete` and when it is due; return False while it is being removed.

    Raises StorageError.
    """
    if not deletion.removing.acquire(blocking=False):
        return False
    try:
        path = deletion.path
        found = None if deletion.gone or deletion.tried else markers.read_any(path)
        if found is None or found.state not in (State.CURRENT, State.SEALED):
            return True
        full = f"{replica_name(deletion.tp)}.{path.name.rsplit('.', 2)[1]}.delete"
        due = deletion.due_ms
        markers.write(path, replace(found, state=State.DELETED, reason=Reason.SWAP, delete_at_ms=due, full_name=full))
        failpoint(AFTER_SOURCE_SETTLED)
        return True
    finally:
        deletion.removing.release()
