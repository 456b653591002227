"""Find partitions and directories by the names in requests, and report errors to their directory."""

from __future__ import annotations

from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirNotFound, StorageError, UnknownTopicOrPartition
from storage_node.model.ids import TopicPartition
from storage_node.move.host import MoveHost, PartitionLike


class Lookup:
    """The host, with errors for what does not exist."""

    def __init__(self, host: MoveHost) -> None:
        self.host = host

    def find(self, tp: TopicPartition) -> PartitionLike | None:
        """Return the replica on this node, or None."""
        return self.host.partition(tp)

    def partition(self, tp: TopicPartition) -> PartitionLike:
        """Return the replica on this node; raises UnknownTopicOrPartition, also for one that is being deleted.

        The node serves a replica until its log is a `.delete`: a move that began in between would leave its `.move` on
        disk for ever.
        """
        partition = self.host.partition(tp)
        if partition is not None and partition.deleted:
            raise UnknownTopicOrPartition(f"{tp} is being deleted from this node")
        if partition is None:
            raise UnknownTopicOrPartition(f"{tp} is not on this node")
        return partition

    def directory(self, path: Path | str) -> LogDirectory:
        """Return the log directory with exactly this path; raises LogDirNotFound."""
        for directory in self.host.directories():
            if directory.name == str(path):
                return directory
        raise LogDirNotFound(f"{path} is not one of this node's log.dirs")

    def fail(self, error: StorageError) -> None:
        """Take the directory that the error names offline, if the error proves that its disk is bad."""
        for directory in self.host.directories():
            directory.fail_on(error)
