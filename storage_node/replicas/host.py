"""Declare what the replicas on disk need of their node: the replica that is served under a name, on any leader."""

from __future__ import annotations

from typing import Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition


class ServedReplica(Protocol):
    """A served replica (`storage_node.partitions.partition.Partition`)."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def log(self) -> Log: ...

    @property
    def directory(self) -> LogDirectory: ...

    @property
    def generation(self) -> int: ...


class ReplicasHost(Protocol):
    """The node, as the deletions use it. Thread-safe."""

    def partition(self, tp: TopicPartition) -> ServedReplica | None:
        """Return the replica on this node that is being served, or None."""
        ...
