"""Declare what the parts of the publisher need of their node, each for itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from storage_node.config.node_config import NodeConfig
from storage_node.config.values import BrokerValues
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import StorageError
from storage_node.lifecycle.failures import Failures
from storage_node.lifecycle.start_up import Left, Started
from storage_node.metadata.cache import MetadataCache
from storage_node.metadata.check import MetadataCheck
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.move.status import MoveStatus
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from storage_node.ports import Controller
from storage_node.replicas.marker import Reason
from storage_node.replicas.preferred_log_dirs import PreferredLogDirs
from storage_node.replication.leading import LeaderHost
from storage_node.replication.partition_epoch_checkpoint import PartitionEpochCheckpoint

# --- parts of the node, as the publisher uses them


class Strangers(Protocol):
    """The folders that await metadata (`storage_node.publisher.unresolved.Unresolved`)."""

    def __contains__(self, tp: object) -> bool:
        """Return whether folders of known topics await an image that explains them."""
        ...

    def stranger(self, tp: TopicPartition) -> bool:
        """Return whether they belong to another topic than the metadata has had under that name."""
        ...

    def add(self, left: Mapping[TopicPartition, Left]) -> None:
        """Add replicas that a start, or a later decision, did not serve."""
        ...


class KnowsUnresolved(Protocol):
    """The publisher, as the removal and the reopening of a replica use it."""

    @property
    def unresolved(self) -> Strangers: ...


class KnowsBrokers(Protocol):
    """The sender of ISR changes (`storage_node.replication.alter_partition_manager`), as the removal uses it."""

    @property
    def brokers(self) -> Mapping[int, int]:
        """The broker epochs of the nodes that are not fenced."""
        ...


class LearnsBrokers(LeaderHost, Protocol):
    """The same, as the roles use it."""

    def brokers_are(self, image: ClusterImage) -> None:
        """Take over the brokers that are not fenced."""
        ...


class LimitsConnections(Protocol):
    """The listener, as the roles use it."""

    def limit(self, connections: int, per_address: int) -> None:
        """Set the limits of connections, in total and per address; open ones stay."""
        ...


class LimitsMoves(Protocol):
    """The move engine, as the roles use it."""

    def set_node_rate(self, rate: int | None) -> None:
        """Change the rate that all moves share, in bytes per second."""
        ...


class CancelsMoves(Protocol):
    """The move engine, as the reopening of a replica uses it."""

    def cancel(
        self, tp: TopicPartition, claim: int | None = None, reason: str = "", run: str = ""
    ) -> MoveStatus | None:
        """Discard the `.move`; the source stays the replica."""
        ...


class EndsMoves(Protocol):
    """The move engine, as the removal uses it."""

    def status(self, tp: TopicPartition) -> MoveStatus | None:
        """Return the status of a partition's move, None without one."""
        ...

    def abandon(self, tp: TopicPartition, reason: Reason = Reason.TOPIC) -> None:
        """Forget an unreachable replica that is being deleted, and discard its copy."""
        ...

    def discard(self, tp: TopicPartition, reason: str = Reason.TOPIC, partition: Partition | None = None) -> None:
        """Delete the partition from this node."""
        ...

    def discard_unopened(
        self, tp: TopicPartition, reason: Reason, directory: LogDirectory, topic_ids: Collection[str]
    ) -> bool:
        """Delete a replica that could not be opened, if its folder in a directory is of one of these topics."""
        ...


class FollowsImage(Protocol):
    """The fetchers, as the roles use them."""

    def reconcile(self, image: ClusterImage) -> None:
        """Follow the partitions of this image."""
        ...


class FollowsReplicas(Protocol):
    """The fetchers, as the publisher uses them."""

    def follow(self, tps: Iterable[TopicPartition]) -> None:
        """Follow these partitions by the newest image, which came before they were served here."""
        ...


class ForgetsReplicas(Protocol):
    """The fetchers, as the removal uses them."""

    def forget(self, tp: TopicPartition) -> None:
        """Stop fetching a partition that is being removed."""
        ...


class ForgetsOffsets(Protocol):
    """The checkpoint files of offsets, as the creation of replicas uses them."""

    def forget(self, directory: LogDirectory, tps: Collection[TopicPartition]) -> None:
        """Remove entries of earlier replicas of these names."""
        ...


class KeepsLogStarts(Protocol):
    """The checkpoint files of offsets, as the reopening of a replica uses them."""

    def keep_start(self, replica: Partition) -> None:
        """Write the log start offset of a replica that went offline alone."""
        ...


class ReportsOffline(Protocol):
    """The reports of replicas that are offline alone, as the publisher uses them."""

    def image_came(self) -> None:
        """Compare soon with a newer image."""
        ...

    def seen(self, tp: TopicPartition) -> None:
        """Note that the image has this replica as reported offline."""
        ...


# --- the node, as each part uses it


class NextImageHost(Protocol):
    """The node, as the reader of images uses it."""

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def metadata_check(self) -> MetadataCheck: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory that the error names offline, or only the replica `tp`."""
        ...


class RolesHost(Protocol):
    """The node, as the roles of its replicas use it."""

    @property
    def id(self) -> int: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def controller(self) -> Controller | None: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def alter_partition_manager(self) -> LearnsBrokers: ...

    @property
    def engine(self) -> LimitsMoves: ...

    @property
    def listener(self) -> LimitsConnections: ...

    @property
    def replica_fetchers(self) -> FollowsImage: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...


class CreationHost(Protocol):
    """The node, as the creation of replicas uses it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    @property
    def preferred_log_dirs(self) -> PreferredLogDirs: ...

    @property
    def offset_files(self) -> ForgetsOffsets: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def failures(self) -> Failures: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory that the error names offline, or only the replica `tp`."""
        ...

    def take_offline_with(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Take replicas offline whose directory failed while they were created, and report them."""
        ...

    def directories_changed(self) -> None:
        """Report soon to the controller that replicas were created or moved."""
        ...


class ReopeningHost(Protocol):
    """The node, as the reopening of a replica uses it."""

    @property
    def offset_files(self) -> KeepsLogStarts: ...

    @property
    def id(self) -> int: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def engine(self) -> CancelsMoves: ...

    @property
    def metadata_publisher(self) -> KnowsUnresolved: ...


class UnresolvedHost(Protocol):
    """The node, as the replicas that await metadata use it."""

    @property
    def id(self) -> int: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    def serve_opened(self, started: Started) -> None:
        """Serve what was opened, and continue its moves and deletions."""
        ...


class RemovalHost(Protocol):
    """The node, as the removal of replicas uses it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    @property
    def replica_fetchers(self) -> ForgetsReplicas: ...

    @property
    def alter_partition_manager(self) -> KnowsBrokers: ...

    @property
    def engine(self) -> EndsMoves: ...

    @property
    def metadata_publisher(self) -> KnowsUnresolved: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory that the error names offline, or only the replica `tp`."""
        ...


class PublisherHost(Protocol):
    """The node, as the publisher itself uses it."""

    @property
    def id(self) -> int: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    @property
    def replica_fetchers(self) -> FollowsReplicas: ...

    @property
    def offline_reports(self) -> ReportsOffline: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...

    def serve_opened(self, started: Started) -> None:
        """Serve what was opened, and continue its moves and deletions."""
        ...

    def directories_changed(self) -> None:
        """Report soon to the controller that replicas were created or moved."""
        ...
