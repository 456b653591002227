"""The values of a plan: the cluster as its admin API describes it, and the moves that a plan consists of.

Sizes are bytes; -1 is a size that no broker has reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from storage_node.model.ids import NO_LEADER, TopicPartition

UNKNOWN_SIZE = -1


@dataclass(frozen=True, order=True, slots=True)
class Disk:
    """A log directory of a broker: its path, or "any" as long as the broker has not chosen one."""

    node: int
    path: str

    def __str__(self) -> str:
        return f"{self.node}:{self.path}"


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A log directory in DescribeLogDirs; `error` is the name of Kafka's error, "" for a directory that is online."""

    disk: Disk
    total: int = UNKNOWN_SIZE
    usable: int = UNKNOWN_SIZE
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A registered broker; `responds` says whether it returned its log directories."""

    node: int
    rack: str | None = None
    responds: bool = True


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in the metadata. `replicas` includes the adding and removing replicas of a reassignment."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int = 1

    @property
    def target(self) -> tuple[int, ...]:
        """Return the replicas after the reassignment in progress."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def under_replicated(self) -> bool:
        """Return whether a replica of the final set is out of the ISR."""
        return bool(set(self.target) - set(self.isr) - set(self.adding))


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica, or the future replica of a move between directories, in DescribeLogDirs."""

    path: str
    size: int
    offset_lag: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one moment. `replicas` and `futures` are by node and partition."""

    cluster_id: str
    nodes: Mapping[int, NodeView]
    directories: Mapping[Disk, DirectoryView]
    partitions: Mapping[TopicPartition, PartitionState]
    replicas: Mapping[tuple[int, TopicPartition], PlacedReplica] = field(default_factory=dict)
    futures: Mapping[tuple[int, TopicPartition], PlacedReplica] = field(default_factory=dict)

    def size_of(self, partition: TopicPartition) -> int:
        """Return the bytes of the leader's replica, else of the largest one; `UNKNOWN_SIZE` if none is reported."""
        state = self.partitions.get(partition)
        if state is None:
            return UNKNOWN_SIZE
        led = self.replicas.get((state.leader, partition))
        if led is not None:
            return led.size
        sizes = [self.replicas[node, partition].size for node in state.replicas if (node, partition) in self.replicas]
        return max(sizes, default=UNKNOWN_SIZE)


class MoveKind(StrEnum):
    """What a move changes: the log directory of a replica on its broker, or the brokers of a partition's replicas."""

    DIRECTORY = "directory"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One request to the cluster, and the unit that a plan starts, cancels, skips and rolls back.

    A `DIRECTORY` move takes the replica of `node` from `source` to `target`, two paths (KIP-113). A `REPLICAS` move
    changes the partition's replicas from `before` to `after` (KIP-455); `directories` are the log directories that the
    plan names for added replicas, by node. Both may stand beside each other for one partition.
    """

    kind: MoveKind
    partition: TopicPartition
    size: int
    node: int = NO_LEADER
    source: str = ""
    target: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    directories: Mapping[int, str] = field(default_factory=dict)
    reads: tuple[Disk, ...] = ()
    """The disks that are read: the source directory, or the leader's."""
    writes: tuple[Disk, ...] = ()
    """The disks that a copy is written to; "any" where the broker chooses. Empty if nothing is copied."""

    @property
    def key(self) -> str:
        """Return the move's name within its plan: `orders-0` for its replicas, `orders-0@1` for a directory."""
        return str(self.partition) if self.kind == MoveKind.REPLICAS else f"{self.partition}@{self.node}"


@dataclass(frozen=True, slots=True)
class Lane:
    """Moves that begin together, in order: about fifty small ones with the same disks, or a big one alone."""

    number: int
    moves: tuple[PlannedMove, ...]
    group: int = 0
    """The place of the lane's class in the plan's order: a lane of a lower group begins first."""

    @property
    def size(self) -> int:
        """Return the bytes that are copied, as far as they are known."""
        return sum(max(0, move.size) * len(move.writes) for move in self.moves)

    @property
    def loads(self) -> dict[Disk, int]:
        """Return the bytes that are read from and written to each disk, in the order of the disks.

        The source of several copies of a replica counts once: its page cache serves the others.
        """
        found: dict[Disk, int] = {}
        for move in self.moves:
            for disk in sorted({*move.reads, *move.writes}):
                found[disk] = found.get(disk, 0) + max(0, move.size)
        return dict(sorted(found.items()))

    @property
    def needs(self) -> dict[Disk, int]:
        """Return the bytes that each target disk must have free, in the order of the disks."""
        found: dict[Disk, int] = {}
        for move in self.moves:
            for disk in sorted(move.writes):
                found[disk] = found.get(disk, 0) + max(0, move.size)
        return dict(sorted(found.items()))

    @property
    def reads(self) -> frozenset[Disk]:
        """Return the disks that the lane reads from."""
        return frozenset(disk for move in self.moves for disk in move.reads)

    @property
    def writes(self) -> frozenset[Disk]:
        """Return the disks that the lane writes to."""
        return frozenset(disk for move in self.moves for disk in move.writes)
