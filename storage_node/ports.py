"""Declare what the storage node needs from above; it is implemented there.

The node knows neither Temporal nor the controller's code. Tests implement these ports in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage_node.model.commands import (
    ConfigChange,
    DirectoryFailed,
    IsrChange,
    MorePartitions,
    NewTopic,
    Reassign,
    ReplicaDirectory,
    ReplicaReport,
)
from storage_node.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of one change: Kafka's error code, a message, and the image version that holds the change."""

    error: int = 0
    message: str = ""
    version: int = 0
    topic_id: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move that was accepted and needs a run; sizes in bytes."""

    partition: TopicPartition
    source: str
    directory: str
    claim: int
    generation: int
    size: int


class Controller(Protocol):
    """The owner of the metadata. Every call may raise `RequestTimedOut` when no response came in `timeout` seconds."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout: float
    ) -> list[ChangeResult]:
        """Create topics; one result per topic, in order."""
        ...

    async def delete_topics(self, names: Sequence[str], *, timeout: float) -> list[ChangeResult]:
        """Delete topics by name; one result per name, in order."""
        ...

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, validate_only: bool, timeout: float
    ) -> list[ChangeResult]:
        """Add partitions to topics; one result per topic, in order."""
        ...

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, ConfigChange], *, timeout: float
    ) -> ChangeResult:
        """Set (or, with None, delete) dynamic configs of a `topic`, or of a `broker` (its id, or "" for all)."""
        ...

    async def next_producer_ids(self, count: int, *, timeout: float) -> int:
        """Reserve `count` producer ids; return the first."""
        ...

    async def raise_generations(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        """Record, before anything is on disk, the generation that a move will give each replica (compare-and-set).

        `ReplicaDirectory.generation` is the generation the replica has now, `directory_id` the directory it is in now;
        `ChangeResult.value` is the new one.
        """
        ...

    async def assign_directories(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        """Report the present directories of replicas (AssignReplicasToDirs, KIP-858)."""
        ...

    async def report_replicas(
        self, reports: Sequence[ReplicaReport], *, broker_epoch: int, timeout: float
    ) -> list[ChangeResult]:
        """Report replicas offline, or online again (KIP-18): an offline one leaves the ISR, and another node leads.

        The reports are valid for exactly this broker epoch of the node; one result each.
        """
        ...

    async def alter_partitions(self, changes: Sequence[IsrChange], *, timeout: float) -> list[ChangeResult]:
        """Change the in-sync replicas of partitions that this node leads; `value` is the new partition epoch."""
        ...

    async def alter_reassignments(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, timeout: float, client: str = ""
    ) -> list[ChangeResult]:
        """Begin, change or cancel reassignments; one result per partition, in order. `client`: the requester, for the
        record.
        """
        ...

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout: float
    ) -> list[ChangeResult]:
        """Make the preferred replica the leader, or, `unclean`, any live one where there is none; one result each."""
        ...

    async def query_version(self, *, timeout: float) -> ChangeResult:
        """Return the present version of the metadata; the image that has it is on its way to the node, or applied."""
        ...

    def start_moves(self, moves: Sequence[PlannedMove], *, throttle: int | None) -> None:
        """Start the runs for accepted moves; returns at once and is retried until it is accepted."""
        ...

    def register_again(self) -> None:
        """Register again soon, since the node's directories have changed; returns at once."""
        ...

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """Record a failed directory, also in the metadata; returns at once.

        The report is retried until the controller has recorded it; then `taken` is called.
        """
        ...
