"""Write Kafka's three offset checkpoints of each directory from its served replicas; entries of offline ones stay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from storage_node.directories.checkpoints import OffsetCheckpoint, write_together
from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log, LogClosed
from storage_node.model.ids import TopicPartition
from storage_node.move.future import FutureLog
from storage_node.move.host import PartitionLike
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from storage_node.replication.host import FollowedReplica

_Start = Callable[[LogDirectory, TopicPartition, Log], None]
"""What is done to a replica's log start offset in the file."""

_Logs = dict[TopicPartition, Log | FutureLog]

_Entries = Callable[[_Logs], dict[TopicPartition, int]]
"""The entries of a file for these logs."""


@dataclass(slots=True)
class _Writers:
    """The writers of one directory's files: one at a time, for all requests that came before it began."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    done: int = 0
    moving: dict[TopicPartition, PartitionLike] = field(default_factory=dict)
    """Partitions that are about to be swapped into the directory, until they are or their copy is discarded."""


class OffsetFiles:
    """The checkpoint files of a node. Thread-safe; every call raises StorageError when the directory is unwritable."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        # The served replicas are read and written in one step: a writer with an earlier view never writes later.
        self._writers: WeakKeyDictionary[LogDirectory, _Writers] = WeakKeyDictionary()
        self._asking = threading.Lock()

    def write_all(self, directory: LogDirectory, moving: PartitionLike | None = None) -> None:
        """Write all three; with `moving`, that partition by its copy, which is about to become the replica there.

        Of many concurrent calls one writes for all.
        """
        with self._asking:
            writers = self._writers.setdefault(directory, _Writers())
            writers.asked += 1
            mine = writers.asked
            if moving is not None:
                writers.moving[moving.tp] = moving
        with writers.lock:
            if writers.done >= mine:
                return
            with self._asking:
                upto = writers.asked
            offline, logs = set(self._replicas.offline), self._logs(directory)
            starts = dict(_hidden_starts(logs.items()))  # first: its flushes raise recovery points
            new = (
                (directory.recovery_points, _recovery_points(logs)),
                (directory.log_start_offsets, starts),
                (directory.high_watermarks, self._high_watermarks(logs)),
            )
            kept = offline - logs.keys()
            write_together(directory.name, [(file, {**_entries(file, kept), **offsets}) for file, offsets in new])
            writers.done = upto

    def recovery_points(self, directory: LogDirectory) -> None:
        """Write the offset up to which each log is flushed."""
        self._write(directory, directory.recovery_points, _recovery_points)

    def truncate(self, partition: FollowedReplica, offset: int) -> None:
        """Truncate a replica and its copy at `offset` (LogManager.truncateTo); raises like `Partition.truncate_to` too.

        The recovery points on disk are lowered before anything is appended again: otherwise a start would count new
        records below the old points as flushed.
        """
        self._cut(partition, partition.truncate_to, offset, _lower_start)

    def restart_at(self, partition: FollowedReplica, offset: int) -> None:
        """Drop all of a replica and its copy, and restart at `offset`; raises like `Partition.restart_at` too.

        The checkpoints on disk may be beyond it: a start would drop, or hide, what is appended from now on.
        """
        self._cut(partition, partition.restart_at, offset, _drop_start)

    def _cut(self, partition: FollowedReplica, cut: Callable[[int], object], offset: int, start: _Start) -> None:
        """Truncate a replica and its copy, and adapt the files to the result, also if that failed midway.

        The files of the copy's directory are left: no swap takes place before they are written again, see `Swapper`.
        """
        with partition.changing():
            try:
                cut(offset)
            finally:
                self._lower(partition.directory, partition.tp, partition.log, start)

    def _lower(self, directory: LogDirectory, tp: TopicPartition, log: Log, start: _Start) -> None:
        with self._of(directory).lock:
            directory.recovery_points.lower({tp: log.recovery_point})
            start(directory, tp, log)

    def log_starts(self, directory: LogDirectory) -> None:
        """Write log start offsets that the first segment's name does not contain."""
        self._write(directory, directory.log_start_offsets, lambda logs: dict(_hidden_starts(logs.items())))

    def keep_start(self, replica: Partition) -> None:
        """Write the log start offset of a replica that went offline alone, before it is opened again or the node stops.

        What DeleteRecords deleted before that must not return with it.
        """
        directory = replica.directory
        with self._of(directory).lock:
            directory.log_start_offsets.update(dict(_hidden_starts([(replica.tp, replica.log)])), ())

    def high_watermarks(self, directory: LogDirectory) -> None:
        """Write the high watermark of each replica."""
        self._write(directory, directory.high_watermarks, self._high_watermarks)

    def _write(self, directory: LogDirectory, file: OffsetCheckpoint, entries: _Entries) -> None:
        with self._of(directory).lock:
            offline, logs = set(self._replicas.offline), self._logs(directory)
            file.write({**_entries(file, offline - logs.keys()), **entries(logs)})

    def forget(self, directory: LogDirectory, tps: Collection[TopicPartition]) -> None:
        """Remove entries of earlier replicas of these names, before new ones are created there.

        Otherwise a start would hide, or drop, the new records below the old log start offset, and trust bytes below the
        old recovery point that were never flushed.
        """
        with self._of(directory).lock:
            for file in (directory.recovery_points, directory.log_start_offsets, directory.high_watermarks):
                file.update({}, tps)

    def _of(self, directory: LogDirectory) -> _Writers:
        with self._asking:
            return self._writers.setdefault(directory, _Writers())

    def _logs(self, directory: LogDirectory) -> _Logs:
        logs: _Logs = {partition.tp: partition.log for partition in self._replicas.in_directory(directory)}
        with self._asking:
            moving = self._writers[directory].moving
            for tp, partition in list(moving.items()):
                copy = partition.future
                if copy is not None and copy.directory == directory.name:
                    logs[tp] = copy
                else:
                    del moving[tp]
        return logs

    def _high_watermarks(self, logs: _Logs) -> dict[TopicPartition, int]:
        served = self._replicas.served
        return {tp: _watermark(served.get(tp), log) for tp, log in logs.items()}


def _entries(file: OffsetCheckpoint, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return a file's entries of offline replicas.

    They may be served from there again, once a newer image or the next start decides so, and records that DeleteRecords
    deleted must not return then.
    """
    before, _ = file.read_lenient() if tps else ({}, None)
    return {tp: before[tp] for tp in tps if tp in before}


def _recovery_points(logs: _Logs) -> dict[TopicPartition, int]:
    return {tp: log.recovery_point for tp, log in logs.items()}


def _watermark(partition: Partition | None, log: Log | FutureLog) -> int:
    """Return the high watermark of a replica, as far as this copy of it reaches."""
    end = log.log_end_offset
    return end if partition is None else min(end, partition.high_watermark)


def _drop_start(directory: LogDirectory, tp: TopicPartition, log: Log) -> None:
    directory.log_start_offsets.update({}, (tp,))


def _lower_start(directory: LogDirectory, tp: TopicPartition, log: Log) -> None:
    starts, _ = directory.log_start_offsets.read_lenient()
    if starts.get(tp, 0) > log.log_start_offset:
        # Otherwise a start would find all records below the promised log start, and drop them.
        directory.log_start_offsets.update({tp: log.log_start_offset})


def _hidden_starts(logs: Iterable[tuple[TopicPartition, Log | FutureLog]]) -> Iterable[tuple[TopicPartition, int]]:
    """Yield the log start offsets that the first segment's name does not contain, and that the log reaches on disk.

    Without the flush, a power loss could leave a log that ends before its log start offset. A start could not tell it
    from one with a wrong checkpoint, for which `Log.open` keeps the replica offline.
    """
    for tp, log in logs:
        start = log.log_start_offset
        if start > log.segments[0].base_offset:
            if start > log.recovery_point:
                with contextlib.suppress(LogClosed):
                    log.flush()
            yield tp, start
