"""Declare what the housekeeping and the reports of offline replicas need of their node."""

from __future__ import annotations

from typing import Protocol

from storage_node.asking import ControllerHost
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import StorageError
from storage_node.lifecycle.failures import Failures
from storage_node.metadata.cache import MetadataCache
from storage_node.model.ids import TopicPartition
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.registry import Replicas
from storage_node.replication.host import BalanceHost
from storage_node.replication.partition_epoch_checkpoint import PartitionEpochCheckpoint


class KnowsLost(Protocol):
    """The publisher (`storage_node.publisher.metadata_publisher.MetadataPublisher`), as the reports use it."""

    @property
    def lost_replicas(self) -> frozenset[TopicPartition]:
        """Replicas that the metadata has here and that no disk holds, but that may be created again."""
        ...


class RetriesRemovals(KnowsLost, Protocol):
    """The publisher, as the housekeeping uses it."""

    def retry_removals(self) -> None:
        """Delete what could not be deleted before."""
        ...


class TopsUp(Protocol):
    """The producer ids (`storage_node.admin.ProducerIds`), as the housekeeping uses them."""

    async def top_up(self) -> None:
        """Reserve more ids if few are left."""
        ...


class OfflineReportsHost(ControllerHost, Protocol):
    """The node, as the reports of its offline replicas use it."""

    @property
    def id(self) -> int: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def epoch(self) -> int:
        """The broker epoch of the newest image; -1 before the first registration."""
        ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def metadata_publisher(self) -> KnowsLost: ...


class HousekeepingHost(ControllerHost, BalanceHost, Protocol):
    """The node, as its housekeeping uses it."""

    @property
    def incarnation(self) -> str: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    @property
    def offset_files(self) -> OffsetFiles: ...

    @property
    def producer_ids(self) -> TopsUp: ...

    @property
    def metadata_publisher(self) -> RetriesRemovals: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory that the error names offline, or only the replica `tp`."""
        ...
