"""Kafka's three offset checkpoints of each directory, written from what is served there; what they say of replicas that
are offline stays.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from storage_node.directories.checkpoints import OffsetCheckpoint, write_together
from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.move.host import PartitionLike
from storage_node.partition import Partition
from storage_node.replicas import Replicas
from storage_node.types import TopicPartition

_Start = Callable[[LogDirectory, TopicPartition, Log], None]
"""What is done to a replica's log start offset in the file."""

_Entries = Callable[[dict[TopicPartition, Log]], dict[TopicPartition, int]]
"""What a file says of these logs."""


@dataclass(slots=True)
class _Writers:
    """Who writes the files of one directory: one at a time, for all who asked before he began."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    done: int = 0
    moving: dict[TopicPartition, PartitionLike] = field(default_factory=dict)
    """Partitions that are about to be swapped into the directory, until they are or their copy is gone."""


class OffsetFiles:
    """Thread-safe; every call raises StorageError when the directory cannot be written."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        # What is served is looked at and written in one step: a writer that looked earlier never writes later.
        self._writers: defaultdict[str, _Writers] = defaultdict(_Writers)
        self._asking = threading.Lock()

    def write_all(self, directory: LogDirectory, moving: PartitionLike | None = None) -> None:
        """All three; with `moving`, that partition by its copy, which is about to become the replica there.

        Of many who ask at the same time one writes for all.
        """
        with self._asking:
            writers = self._writers[directory.name]
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
            new = (
                (directory.recovery_points, _recovery_points(logs)),
                (directory.log_start_offsets, dict(_hidden_starts(logs.items()))),
                (directory.high_watermarks, self._high_watermarks(logs)),
            )
            kept = offline - logs.keys()
            write_together(directory.name, [(file, {**_entries(file, kept), **offsets}) for file, offsets in new])
            writers.done = upto

    def recovery_points(self, directory: LogDirectory) -> None:
        """Up to where each log is on the disk."""
        self._write(directory, directory.recovery_points, _recovery_points)

    def truncate(self, partition: Partition, offset: int) -> None:
        """Cut a replica and its copy off at `offset` (LogManager.truncateTo); raises like `Partition.truncate_to` too.

        Before anything is appended again the recovery points are lowered on the disk: a start would take the new
        records below the old points for flushed.
        """
        self._cut(partition, partition.truncate_to, offset, _lower_start)

    def restart_at(self, partition: Partition, offset: int) -> None:
        """Drop all of a replica and its copy, and go on at `offset`; raises like `Partition.restart_at` too.

        The checkpoints on the disk may be beyond it: a start would drop, or hide, what is appended from now on.
        """
        self._cut(partition, partition.restart_at, offset, _drop_start)

    def _cut(self, partition: Partition, cut: Callable[[int], object], offset: int, start: _Start) -> None:
        """Cut a replica and its copy off, and bring the files to where it is then, also where that failed midway.

        The files of the copy's directory are left: no swap takes place before they are written again, see `Swapper`.
        """
        with partition.changing():
            try:
                cut(offset)
            finally:
                self._lower(partition.directory, partition.tp, partition.log, start)

    def _lower(self, directory: LogDirectory, tp: TopicPartition, log: Log, start: _Start) -> None:
        with self._writers[directory.name].lock:
            directory.recovery_points.lower({tp: log.recovery_point})
            start(directory, tp, log)

    def log_starts(self, directory: LogDirectory) -> None:
        """Log start offsets that the first segment's name does not tell already."""
        self._write(directory, directory.log_start_offsets, lambda logs: dict(_hidden_starts(logs.items())))

    def high_watermarks(self, directory: LogDirectory) -> None:
        """The high watermark of each replica."""
        self._write(directory, directory.high_watermarks, self._high_watermarks)

    def _write(self, directory: LogDirectory, file: OffsetCheckpoint, entries: _Entries) -> None:
        with self._writers[directory.name].lock:
            offline, logs = set(self._replicas.offline), self._logs(directory)
            file.write({**_entries(file, offline - logs.keys()), **entries(logs)})

    def forget(self, directory: LogDirectory, tps: Collection[TopicPartition]) -> None:
        """Take out what earlier replicas of these names left, before new ones are made there.

        A start would otherwise hide, or drop, the new records that lie below the old log start offset, and trust bytes
        below the old recovery point that were never flushed.
        """
        with self._writers[directory.name].lock:
            for file in (directory.recovery_points, directory.log_start_offsets, directory.high_watermarks):
                file.update({}, tps)

    def _logs(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        logs = {partition.tp: partition.log for partition in self._replicas.in_directory(directory)}
        with self._asking:
            moving = self._writers[directory.name].moving
            for tp, partition in list(moving.items()):
                copy = partition.future
                if copy is not None and copy.directory == directory.name:
                    logs[tp] = copy
                else:
                    del moving[tp]
        return logs

    def _high_watermarks(self, logs: dict[TopicPartition, Log]) -> dict[TopicPartition, int]:
        served = self._replicas.served
        return {tp: _watermark(served.get(tp), log) for tp, log in logs.items()}


def _entries(file: OffsetCheckpoint, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """What a file has of replicas that are offline: they may be served from there again, once a newer image or the
    next start decides so, and what DeleteRecords took must not come back then.
    """
    before, _ = file.read_lenient() if tps else ({}, None)
    return {tp: before[tp] for tp in tps if tp in before}


def _recovery_points(logs: dict[TopicPartition, Log]) -> dict[TopicPartition, int]:
    return {tp: log.recovery_point for tp, log in logs.items()}


def _watermark(partition: Partition | None, log: Log) -> int:
    """The high watermark of a replica, as far as this copy of it reaches."""
    end = log.log_end_offset
    return end if partition is None else min(end, partition.high_watermark)


def _drop_start(directory: LogDirectory, tp: TopicPartition, log: Log) -> None:
    directory.log_start_offsets.update({}, (tp,))


def _lower_start(directory: LogDirectory, tp: TopicPartition, log: Log) -> None:
    starts, _ = directory.log_start_offsets.read_lenient()
    if starts.get(tp, 0) > log.log_start_offset:
        # A start would find all records below where they are promised to begin, and drop them.
        directory.log_start_offsets.update({tp: log.log_start_offset})


def _hidden_starts(logs: Iterable[tuple[TopicPartition, Log]]) -> Iterable[tuple[TopicPartition, int]]:
    for tp, log in logs:
        start = log.log_start_offset
        if start > log.segments[0].base_offset:
            yield tp, start
