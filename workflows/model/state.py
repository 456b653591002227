"""The controller's state: what one `Cluster` workflow owns, as immutable values and as compact rows.

Everything that changes carries the version at which it last changed (`changed`); no two rows share one, so that a delta
is "all rows changed since" and a list of rows can be cut anywhere (image.py). Rows are decoded by hand: typed decoding
of thousands of partitions would take seconds inside a workflow task.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workflows.model.assignment import Assignment

FORMAT = 1
NO_LEADER = -1
#: How many deletions are remembered after every node has confirmed them, for disks that come back from elsewhere.
REMEMBERED_DELETIONS = 2_000
#: Producer ids of one generation: a controller that lost its memory must not issue an id twice.
PRODUCER_IDS_PER_GENERATION = 1 << 40


@dataclass(frozen=True, slots=True)
class OfflineReplica:
    """A replica that its node reports as offline although the log directory is online: why, and which file or folder
    failed ("" where the node does not name one).
    """

    node: int
    reason: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. `directories` and `generations` stand in the order of the replicas; "" is a directory not known
    yet. `offline` holds the replicas that their nodes report as offline, by node.
    """

    index: int
    assignment: Assignment
    directories: tuple[str, ...]
    generations: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    offline: tuple[OfflineReplica, ...] = ()

    @property
    def replicas(self) -> tuple[int, ...]:
        """The nodes that hold it, in order of preference."""
        return self.assignment.replicas

    def offline_on(self, node: int) -> OfflineReplica | None:
        """What the node reports of its replica; None while it is usable."""
        return next((each for each in self.offline if each.node == node), None)

    def row(self) -> list[Any]:
        """The partition row of the cluster image; replicas that are reported offline stand behind the rest."""
        held = self.assignment
        return [
            self.index,
            list(held.replicas),
            list(held.adding),
            list(held.removing),
            list(held.original),
            list(self.directories),
            list(self.generations),
            list(self.isr),
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            *([[[each.node, each.reason, each.file] for each in self.offline]] if self.offline else []),
        ]

    @staticmethod
    def of(row: list[Any]) -> Partition:
        """The partition of an image's row. Raises ValueError unless each replica has a directory and a generation."""
        index, replicas, adding, removing, original, directories, generations, isr, *epochs = row
        leader, leader_epoch, epoch, *offline = epochs
        if not len(replicas) == len(directories) == len(generations):
            raise ValueError(f"partition {index} has {replicas} in {directories} at {generations}")
        return Partition(
            index,
            Assignment(tuple(replicas), tuple(adding), tuple(removing), tuple(original)),
            tuple(directories),
            tuple(generations),
            tuple(isr),
            leader,
            leader_epoch,
            epoch,
            tuple(OfflineReplica(*each) for each in offline[0]) if offline else (),
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its partitions, in order of their index."""

    name: str
    id: str
    configs: Mapping[str, str]
    partitions: tuple[Partition, ...]
    changed: int = 0

    def row(self) -> list[Any]:
        """The topic row of the cluster image."""
        return [self.name, self.id, dict(self.configs), [partition.row() for partition in self.partitions]]

    @staticmethod
    def of(row: list[Any], changed: int = 0) -> Topic:
        """The topic of an image's row."""
        name, topic_id, configs, partitions = row
        return Topic(name, topic_id, dict(configs), tuple(Partition.of(each) for each in partitions), changed)


@dataclass(frozen=True, slots=True)
class Directory:
    """A log directory as its node registered it."""

    id: str
    path: str
    online: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """A registered node: one incarnation with its epoch, address and directories. A fenced one leads nothing."""

    node: int
    incarnation: str
    broker_epoch: int
    host: str
    port: int
    directories: tuple[Directory, ...]
    fenced: bool = False
    changed: int = 0
    rack: str = ""
    unclean: bool = False
    """unclean.leader.election.enable of its server.properties."""

    def holds(self, directory_id: str) -> bool:
        """Whether the node can serve from this directory now; one not known yet ("") counts as good."""
        if self.fenced:
            return False
        return directory_id == "" or any(each.id == directory_id and each.online for each in self.directories)

    def row(self) -> list[Any]:
        """The registration row of the cluster image."""
        directories = [[each.id, each.path, int(each.online)] for each in self.directories]
        return [
            self.node,
            self.incarnation,
            self.broker_epoch,
            self.host,
            self.port,
            directories,
            int(self.fenced),
            *([self.rack, 1] if self.unclean else [self.rack] if self.rack else []),
        ]

    @staticmethod
    def of(row: list[Any], changed: int = 0) -> Node:
        """The registration of an image's row."""
        node, incarnation, epoch, host, port, directories, fenced, *more = row  # rows of old images have no rack
        held = tuple(Directory(each[0], each[1], bool(each[2])) for each in directories)
        rack, unclean = more[0] if more else "", len(more) > 1 and bool(more[1])
        return Node(node, incarnation, epoch, host, port, held, bool(fenced), changed, rack, unclean)


@dataclass(frozen=True, slots=True)
class Gone:
    """A deleted topic: kept until every registered node has deleted what it held of it, however long that takes."""

    name: str
    id: str
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Configs:
    """Dynamic configs of one broker (`name` is its id) or of all ("")."""

    kind: str
    name: str
    values: Mapping[str, str]
    changed: int = 0


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All metadata of a cluster. The cluster generation stands above all epochs; the version counts changed rows within
    it.
    """

    cluster: str
    generation: int = 1
    version: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    nodes: Mapping[int, Node] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Configs] = field(default_factory=dict)
    next_producer_id: int = 0

    @property
    def pair(self) -> tuple[int, int]:
        """What orders two states of a cluster: (generation, version)."""
        return self.generation, self.version

    @property
    def alive(self) -> tuple[int, ...]:
        """The unfenced nodes, in order."""
        return tuple(sorted(node.node for node in self.nodes.values() if not node.fenced))

    @property
    def controller(self) -> int:
        """The node that clients are told is the controller: any may be asked, so the first unfenced one; -1 without
        one.
        """
        return next(iter(self.alive), -1)

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        """Every partition with its topic."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def with_topics(self, *topics: Topic) -> ClusterState:
        """The state with these topics added or replaced, each under a version of its own."""
        held, version = dict(self.topics), self.version
        for topic in topics:
            version += 1
            held[topic.name] = replace(topic, changed=version)
        return replace(self, topics=held, version=version)

    def with_node(self, node: Node) -> ClusterState:
        """The state with this registration added or replaced."""
        version = self.version + 1
        return replace(self, nodes={**self.nodes, node.node: replace(node, changed=version)}, version=version)

    def with_configs(self, configs: Configs) -> ClusterState:
        """The state with these dynamic configs; empty ones are kept, since a delta must be able to say so."""
        version = self.version + 1
        held = {**self.configs, (configs.kind, configs.name): replace(configs, changed=version)}
        return replace(self, configs=held, version=version)

    def without_topic(self, name: str) -> ClusterState:
        """The state after this topic was deleted; it is remembered among the deleted ones."""
        version = self.version + 1
        topics = dict(self.topics)
        topic = topics.pop(name)
        gone = (*self.gone, Gone(name, topic.id, version))
        return replace(self, topics=topics, gone=gone, version=version)

    def forget_deletions(self, confirmed: int) -> ClusterState:
        """The state without the oldest deletions of those that every node has confirmed: up to this version."""
        known = sum(1 for each in self.gone if each.changed <= confirmed)
        drop = known - REMEMBERED_DELETIONS
        return self if drop <= 0 else replace(self, gone=self.gone[drop:])

    def rows(self) -> dict[str, Any]:
        """The state as compact rows, for a continue-as-new."""
        return {
            "v": FORMAT,
            "cluster": self.cluster,
            "generation": self.generation,
            "version": self.version,
            "topics": [[*topic.row(), topic.changed] for topic in self.topics.values()],
            "gone": [[each.name, each.id, each.changed] for each in self.gone],
            "nodes": [[*node.row(), node.changed] for node in self.nodes.values()],
            "configs": [[each.kind, each.name, dict(each.values), each.changed] for each in self.configs.values()],
            "next_producer_id": self.next_producer_id,
        }

    @staticmethod
    def of(rows: Mapping[str, Any]) -> ClusterState:
        """The state of such rows. Raises ValueError for another format."""
        if rows.get("v") != FORMAT:
            raise ValueError(f"rows of format {rows.get('v')}, this program reads {FORMAT}")
        return ClusterState(
            rows["cluster"],
            rows["generation"],
            rows["version"],
            {row[0]: Topic.of(row[:-1], row[-1]) for row in rows["topics"]},
            tuple(Gone(*row) for row in rows["gone"]),
            {row[0]: Node.of(row[:-1], row[-1]) for row in rows["nodes"]},
            {(row[0], row[1]): Configs(*row) for row in rows["configs"]},
            rows["next_producer_id"],
        )


def pack(value: Any) -> str:
    """Compact JSON, zlib, base64: how states and images travel."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(zlib.compress(text, 6)).decode()


def unpack(text: str) -> Any:
    """What `pack` packed. Raises ValueError for anything else."""
    try:
        return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except zlib.error as problem:
        raise ValueError(f"not a packed value: {problem}") from problem
