"""Kafka's three offset checkpoints of each directory, written from what is served there."""

from __future__ import annotations

from collections.abc import Iterable

from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.move.host import PartitionLike
from storage_node.replicas import Replicas
from storage_node.types import TopicPartition


class OffsetFiles:
    """Thread-safe; every call raises StorageError when the directory cannot be written."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def write_all(self, directory: LogDirectory, moving: PartitionLike | None = None) -> None:
        """All three; with `moving`, that partition by its copy, which is about to become the replica there."""
        logs = self._logs(directory)
        if moving is not None and moving.future is not None:
            logs[moving.tp] = moving.future
        self._write_recovery_points(directory, logs)
        self._write_log_starts(directory, logs)
        self._write_high_watermarks(directory, logs)

    def recovery_points(self, directory: LogDirectory) -> None:
        """Up to where each log is on the disk."""
        self._write_recovery_points(directory, self._logs(directory))

    def log_starts(self, directory: LogDirectory) -> None:
        """Log start offsets that the first segment's name does not tell already."""
        self._write_log_starts(directory, self._logs(directory))

    def high_watermarks(self, directory: LogDirectory) -> None:
        """The high watermark of each replica."""
        self._write_high_watermarks(directory, self._logs(directory))

    def _logs(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        return {partition.tp: partition.log for partition in self._replicas.in_directory(directory)}

    def _write_recovery_points(self, directory: LogDirectory, logs: dict[TopicPartition, Log]) -> None:
        directory.recovery_points.write({tp: log.recovery_point for tp, log in logs.items()})

    def _write_log_starts(self, directory: LogDirectory, logs: dict[TopicPartition, Log]) -> None:
        directory.log_start_offsets.write(dict(_hidden_starts(logs.items())))

    def _write_high_watermarks(self, directory: LogDirectory, logs: dict[TopicPartition, Log]) -> None:
        directory.high_watermarks.write({tp: log.log_end_offset for tp, log in logs.items()})


def _hidden_starts(logs: Iterable[tuple[TopicPartition, Log]]) -> Iterable[tuple[TopicPartition, int]]:
    for tp, log in logs:
        start = log.log_start_offset
        if start > log.segments[0].base_offset:
            yield tp, start
