"""What the storage node needs from above, declared here and implemented above it.

The node knows neither Temporal nor the controller's code. Tests implement these ports in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage_node.types import TopicPartition


@dataclass(frozen=True, slots=True)
class DirectoryRegistration:
    """A log directory as the controller sees it: its id (KIP-858), absolute path and whether it is online."""

    id: str
    path: str
    online: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica of this node that is offline although its log directory is online: why, and the file or folder that
    failed ("" for none). `reason` "" reports it usable again.

    `directory_id` is "" where the node does not know in which directory it is.
    """

    partition: TopicPartition
    topic_id: str
    directory_id: str
    generation: int
    reason: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """A starting node: a new incarnation with its addresses and directories.

    `known_generation` and `known_version` are those of the newest cluster image on its disks (0, 0 without one);
    `image` is that image itself, "" where it is left out, so that a controller that lost its own state can be rebuilt
    from the nodes.
    """

    node: int
    incarnation: str
    host: str
    port: int
    directories: tuple[DirectoryRegistration, ...]
    known_generation: int = 0
    known_version: int = 0
    image: str = ""
    lost: tuple[ReplicaDirectory, ...] = ()
    """Every replica in a directory that is offline: the controller may never have heard where it was (KIP-858)."""
    offline: tuple[ReplicaReport, ...] = ()
    """Every other replica that is offline; the metadata drops what an earlier registration or report named."""
    rack: str = ""
    """broker.rack, "" without one (KIP-36)."""
    unclean: bool = False
    """unclean.leader.election.enable of its server.properties."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """A config that is a list is changed by what others may have changed as well: items come to it or go from it."""

    items: tuple[str, ...]
    append: bool


#: A config's new value, None for none, or what is done to its list.
ConfigChange = str | ListChange | None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; `assignment` (partition index -> replicas) overrides the two counts."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic and how many partitions it is to have in all; `assignment`: the replicas of each new one, if given."""

    name: str
    count: int
    assignment: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The answer to one change: Kafka's error code, a sentence, and the image version that holds the change."""

    error: int = 0
    message: str = ""
    version: int = 0
    topic_id: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """Where this node holds a replica: directory id, and the replica's generation there."""

    partition: TopicPartition
    topic_id: str
    directory_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader wants its in-sync replicas to be (AlterPartition, KIP-497): (node, broker epoch) each, -1 where
    the leader does not know the follower's epoch (KIP-903).

    It holds against exactly this leader epoch and partition epoch.
    """

    partition: TopicPartition
    topic_id: str
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Reassign:
    """A partition's wanted replicas, in order of preference; None cancels the reassignment under way (KIP-455)."""

    partition: TopicPartition
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move that was accepted and for which a run is to be started; sizes in bytes."""

    partition: TopicPartition
    source: str
    directory: str
    claim: int
    generation: int
    size: int


@dataclass(frozen=True, slots=True)
class EndedMove:
    """A move from or to a directory that failed: its run (`owner` "" before one has come to it) and why it ended."""

    partition: TopicPartition
    source: str
    directory: str
    owner: str = ""
    run_id: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """A log directory of this node is offline: since when (`noticed`, seconds since the epoch), why, what it held.

    `incarnation` is the start of the node that noticed it. One failure is told with the same `noticed` by all starts
    that find the directory still offline.
    """

    directory_id: str
    path: str
    reason: str
    noticed: float
    incarnation: str
    replicas: tuple[ReplicaDirectory, ...] = ()
    moves: tuple[EndedMove, ...] = ()


class Controller(Protocol):
    """The owner of the metadata. Every call may raise `RequestTimedOut` when no answer came in `timeout` seconds."""

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
        """Reserve `count` producer ids; answers the first."""
        ...

    async def raise_generations(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        """Record, before anything is on disk, the generation that a move will give each replica (compare-and-set).

        `ReplicaDirectory.generation` is the generation the replica has now, `directory_id` the directory it is in now;
        `ChangeResult.value` is the new one.
        """
        ...

    async def assign_directories(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        """Tell where replicas now are (AssignReplicasToDirs, KIP-858)."""
        ...

    async def report_replicas(
        self, reports: Sequence[ReplicaReport], *, broker_epoch: int, timeout: float
    ) -> list[ChangeResult]:
        """Report replicas offline, or online again (KIP-18): an offline one leaves the ISR, and another node leads.

        Holds against exactly this broker epoch of the node; one result each.
        """
        ...

    async def alter_partitions(self, changes: Sequence[IsrChange], *, timeout: float) -> list[ChangeResult]:
        """Change the in-sync replicas of partitions that this node leads; `value` is the new partition epoch."""
        ...

    async def alter_reassignments(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, timeout: float, client: str = ""
    ) -> list[ChangeResult]:
        """Begin, change or cancel reassignments; one result per partition, in order. `client`: who asked, for the
        record.
        """
        ...

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout: float
    ) -> list[ChangeResult]:
        """Make the preferred replica the leader, or, `unclean`, any live one where there is none; one result each."""
        ...

    async def tell_version(self, *, timeout: float) -> ChangeResult:
        """The version of the metadata now; the image that has it is on its way to the node, or there."""
        ...

    def start_moves(self, moves: Sequence[PlannedMove], *, throttle: int | None) -> None:
        """Start the runs for accepted moves; returns at once and is tried again until it is taken."""
        ...

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """Have a failed directory put on record and into the metadata; returns at once and is tried again until it is
        taken, when `taken` is called.
        """
        ...
