"""What the handlers need of their node, by family; a handler names the narrowest of these.

A module whose handlers need more declares that beside them; the listener's table needs all of it
(`storage_node.protocol.listener.NodeHost`).
"""

from __future__ import annotations

from typing import Protocol

from storage_node.admin import Admin
from storage_node.config.node_config import NodeConfig
from storage_node.errors import StorageError
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.metadata.cache import MetadataCache
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas


class MetadataHost(Protocol):
    """The node, as those that read its metadata see it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def host(self) -> str:
        """The host name that the node advertises to clients."""
        ...

    @property
    def port(self) -> int:
        """The port that the node advertises to clients."""
        ...

    @property
    def cluster_id(self) -> str: ...


class AdminHost(MetadataHost, Protocol):
    """The node, as those that request changes of the metadata see it."""

    @property
    def admin(self) -> Admin: ...


class ReplicaHost(MetadataHost, Protocol):
    """The node, as those that use its replicas see it."""

    @property
    def replicas(self) -> Replicas: ...

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return the replica that is served, whichever node leads it."""
        ...

    def leader(self, tp: TopicPartition) -> Partition:
        """Return the replica of a partition that this node leads; raises the error for the client if there is none."""
        ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory offline that the error names, or the replica `tp` alone."""
        ...


class GroupsHost(MetadataHost, Protocol):
    """The node, as the requests for consumer groups see it."""

    @property
    def groups(self) -> GroupCoordinator: ...
