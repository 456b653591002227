"""Finds partitions and directories by what requests name them, and passes on what is wrong with a directory."""

from __future__ import annotations

from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirNotFound, StorageError, UnknownTopicOrPartition
from storage_node.move.host import MoveHost, PartitionLike
from storage_node.types import TopicPartition


class Lookup:
    """The host, with errors for what is not there."""

    def __init__(self, host: MoveHost) -> None:
        self.host = host

    def find(self, tp: TopicPartition) -> PartitionLike | None:
        """The replica on this node, or None."""
        return self.host.partition(tp)

    def partition(self, tp: TopicPartition) -> PartitionLike:
        """The replica on this node; raises UnknownTopicOrPartition."""
        partition = self.host.partition(tp)
        if partition is None:
            raise UnknownTopicOrPartition(f"{tp} is not on this node")
        return partition

    def directory(self, path: Path | str) -> LogDirectory:
        """The log directory with exactly this path; raises LogDirNotFound."""
        for directory in self.host.directories():
            if directory.name == str(path):
                return directory
        raise LogDirNotFound(f"{path} is not one of this node's log.dirs")

    def fail(self, error: StorageError) -> None:
        """Take the directory offline that the error names, if it says that the disk is bad."""
        for directory in self.host.directories():
            directory.fail_on(error)
