"""What nodes submit to the controller: changes of the metadata, as values. How they travel: command_rows.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_node.model.evidence import Evidence, Sign
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import DirectoryRegistration

# --- what commands are made of


@dataclass(frozen=True, slots=True)
class ListChange:
    """A config that is a list is changed by what others may have changed as well: items come to it or go from it."""

    append: tuple[str, ...] = ()
    subtract: tuple[str, ...] = ()


#: A config's new value, None for none, or what is done to its list.
ConfigChange = str | ListChange | None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; `assignment` (partition index -> replicas) overrides the two counts, which are -1 for the
    defaults.
    """

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
class Malformed:
    """An entry of a request that cannot be read, and why; it fails alone. `name` is its topic's, "" without one."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """Where a node holds a replica: directory id, and the replica's generation there."""

    partition: TopicPartition
    topic_id: str
    directory_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica of a node that is offline although its log directory is online: why, and the file or folder that failed
    ("" for none). `reason` "" reports it usable again.

    `directory_id` is "" where the node does not know in which directory it is.
    """

    partition: TopicPartition
    topic_id: str
    directory_id: str
    generation: int
    reason: str = ""
    file: str = ""


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

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes alone."""
        return tuple(node for node, _ in self.isr)


@dataclass(frozen=True, slots=True)
class Reassign:
    """A partition's wanted replicas, in order of preference; None cancels the reassignment under way (KIP-455)."""

    partition: TopicPartition
    replicas: tuple[int, ...] | None


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
    """A log directory of a node is offline: since when (`noticed`, seconds since the epoch), why, what it held.

    `incarnation` is the start of the node that noticed it. One failure is reported with the same `noticed` by all
    starts that find the directory still offline.
    """

    directory_id: str
    path: str
    reason: str
    noticed: float
    incarnation: str
    replicas: tuple[ReplicaDirectory, ...] = ()
    moves: tuple[EndedMove, ...] = ()
    evidence: Evidence | None = None
    """The operation that failed; None in reports of nodes of an earlier version."""
    signs: tuple[Sign, ...] = ()
    """What the directory showed since it was last taken into use, the first of each kind, oldest first."""


# --- commands


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """Create topics, each by itself; a name that occurs twice fails both times."""

    topics: tuple[NewTopic | Malformed, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Delete topics for good, by name and by id."""

    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Add partitions to topics, each by itself; a name that occurs twice fails both times."""

    topics: tuple[MorePartitions | Malformed, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Set configs of a "topic", or of a "broker" (its id, or "" for the default of all), all or none of them."""

    kind: str
    name: str
    changes: Mapping[str, ConfigChange]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class NextProducerIds:
    """Reserve producer ids."""

    count: int


@dataclass(frozen=True, slots=True)
class RaiseGenerations:
    """Record the generation that a move will give each replica; the rows have the one that the replica has now."""

    node: int
    replicas: tuple[ReplicaDirectory, ...]


@dataclass(frozen=True, slots=True)
class AssignDirectories:
    """Record where replicas are (AssignReplicasToDirs, KIP-858)."""

    node: int
    replicas: tuple[ReplicaDirectory, ...]


@dataclass(frozen=True, slots=True)
class FailDirectory:
    """Record that a directory has failed."""

    node: int
    failure: DirectoryFailed


@dataclass(frozen=True, slots=True)
class ReportReplicas:
    """Take replicas offline, or online again, under the node's broker epoch."""

    node: int
    epoch: int
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitions:
    """Change the in-sync replicas of partitions that the node leads."""

    node: int
    partitions: tuple[IsrChange, ...]


@dataclass(frozen=True, slots=True)
class AlterReassignments:
    """Begin, change or cancel reassignments. `client` and `principal`: who requested it, for the record."""

    partitions: tuple[Reassign, ...]
    may_change_factor: bool = True
    client: str = ""
    principal: str = ""


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Make the preferred replica the leader, or, `unclean`, any that can lead where there is no leader."""

    partitions: tuple[TopicPartition, ...]
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """A starting node: a new incarnation with its addresses and directories.

    `known_generation` and `known_version` are those of the newest cluster image on its disks (0, 0 without one);
    `cluster` is the cluster of that image, "" without one; `image` is the image itself, "" where it is left out, so
    that a controller that lost its own state can be rebuilt from the nodes.
    """

    node: int
    incarnation: str
    host: str
    port: int
    directories: tuple[DirectoryRegistration, ...]
    known_cluster_generation: int = 0
    known_version: int = 0
    image: str = ""
    in_offline_directories: tuple[ReplicaDirectory, ...] = ()
    """Every replica in a directory that is offline: the controller may never have heard where it was (KIP-858)."""
    offline: tuple[ReplicaReport, ...] = ()
    """Every other replica that is offline; the metadata drops what an earlier registration or report named."""
    rack: str = ""
    """broker.rack, "" without one (KIP-36)."""
    unclean: bool = False
    """unclean.leader.election.enable of its server.properties."""
    cluster: str = ""
    assigned: tuple[ReplicaDirectory, ...] = ()
    """Replicas that are in another directory than the node's metadata has (KIP-858: before the node is unfenced)."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """Fence a node's incarnation: it stops, or its lease is lost and a probe failed."""

    node: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class QueryVersion:
    """Change nothing; the response brings the node up to date."""


Command = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | NextProducerIds
    | RaiseGenerations
    | AssignDirectories
    | FailDirectory
    | ReportReplicas
    | AlterPartitions
    | AlterReassignments
    | ElectLeaders
    | Registration
    | LeaseEnded
    | QueryVersion
)
