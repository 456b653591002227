"""What replication needs of its node, and of the replicas that the node serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from storage_node.asking import ControllerHost
from storage_node.config.node_config import NodeConfig
from storage_node.config.values import BrokerValues
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.log.batches.batch import Buffer
from storage_node.log.log import Appended, Log
from storage_node.metadata.cache import MetadataCache
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.ports import Controller
from storage_node.replication.leading import LeaderState
from storage_node.replication.quota import Quotas
from storage_node.waiting import Waiter

R = TypeVar("R", covariant=True)


class Served(Protocol[R]):
    """The replicas of a node (`storage_node.partitions.registry.Replicas`)."""

    @property
    def served(self) -> Mapping[TopicPartition, R]:
        """The replicas that are served; may be read without a lock."""
        ...


class LedReplica(Protocol):
    """A replica, as the ISR changes see it (`storage_node.partitions.partition.Partition`)."""

    @property
    def leading(self) -> LeaderState | None:
        """The state of the followers, while this node leads with some."""
        ...


class FollowedReplica(Protocol):
    """A replica, as the fetchers see it (`storage_node.partitions.partition.Partition`). Thread-safe."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def log(self) -> Log: ...

    @property
    def directory(self) -> LogDirectory: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def offline(self) -> str:
        """Why the replica cannot be used, "" while it can."""
        ...

    def changing(self, *, waits: bool = True, within: LogDirectory | None = None) -> AbstractContextManager[None]:
        """Take the lock while no swap holds the log; raises LogHeld if it must not wait (`waits`)."""
        ...

    def append_as_follower(self, records: Buffer, leader_epoch: int, high_watermark: int, log_start: int) -> Appended:
        """Append what the leader of an epoch sent, and adopt its high watermark and log start offset."""
        ...

    def truncate_to(self, offset: int) -> object:
        """Truncate the log and its copy; for `Truncates`, which lowers the checkpoints too."""
        ...

    def restart_at(self, offset: int) -> object:
        """Drop all of the log and its copy; for `Truncates`, which lowers the checkpoints too."""
        ...

    def add_waiter(self, waiter: Waiter, *, to_end: bool = False) -> None:
        """Call `waiter(bytes)` when there is more to read, with `to_end` after each append."""
        ...

    def remove_waiter(self, waiter: Waiter) -> None: ...


class Truncates(Protocol):
    """The checkpoint files (`storage_node.partitions.offset_files.OffsetFiles`), as the fetchers see them."""

    def truncate(self, partition: FollowedReplica, offset: int) -> None:
        """Truncate a replica and its copy, and lower its checkpoints; raises StorageError."""
        ...

    def restart_at(self, partition: FollowedReplica, offset: int) -> None:
        """Drop all of a replica and its copy, and lower its checkpoints; raises StorageError."""
        ...


class AlterPartitionHost(ControllerHost, Protocol):
    """The node, as its ISR changes see it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def replicas(self) -> Served[LedReplica]: ...


class BalanceHost(Protocol):
    """The node, as the check of its preferred partitions sees it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def controller(self) -> Controller | None: ...

    @property
    def metadata(self) -> MetadataCache: ...


class FollowedHost(Protocol):
    """The node, as a followed partition sees it."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def offset_files(self) -> Truncates: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory offline that the error names, or the replica `tp` alone."""
        ...


class FetcherHost(Protocol):
    """The node, as a fetcher thread sees it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def quotas(self) -> Quotas: ...


class FetcherManagerHost(FetcherHost, FollowedHost, Protocol):
    """The node, as its fetcher threads' manager sees it."""

    @property
    def incarnation(self) -> str: ...

    @property
    def controller(self) -> Controller | None: ...

    @property
    def replicas(self) -> Served[FollowedReplica]: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...

    def on_directory_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` after the replicas of a failed directory were taken offline."""
        ...
