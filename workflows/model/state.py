"""The controller's state: what one `Cluster` workflow owns, as immutable values and as compact rows.

Everything that changes carries the version at which it last changed (`changed`); no two rows share one, so that a delta
is "all rows changed since" and a list of rows can be cut anywhere (image.py). A topic knows besides which of its
partitions changed when, so that the change of one of them does not send the others. Rows are decoded by hand: typed
decoding of thousands of partitions would take seconds inside a workflow task.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workflows.model import digest
from workflows.model.assignment import Assignment
from workflows.model.rules import RULES

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
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            held = self.assignment
            sets = (held.replicas, held.adding, held.removing, held.original)
            epochs = (self.leader, self.leader_epoch, self.partition_epoch)
            offline = tuple((each.node, each.reason, each.file) for each in self.offline)
            row = (self.index, sets, self.directories, self.generations, self.isr, epochs, offline)
            known = digest.of_row(row)
            object.__setattr__(self, "_digest", known)
        return known

    @property
    def replicas(self) -> tuple[int, ...]:
        """The nodes that hold it, in order of preference."""
        return self.assignment.replicas

    def offline_on(self, node: int) -> OfflineReplica | None:
        """What the node reports of its replica; None while it is usable."""
        return next((each for each in self.offline if each.node == node), None)

    def at_least(self, leader_epoch: int) -> Partition:
        """The partition at this leader epoch, where its own is lower."""
        return self if self.leader_epoch >= leader_epoch else replace(self, leader_epoch=leader_epoch)

    def row(self) -> list[Any]:
        """The partition row of the cluster image; replicas that are reported offline stand behind the rest."""
        held = self.assignment
        return [
            self.index,
            held.replicas,
            held.adding,
            held.removing,
            held.original,
            self.directories,
            self.generations,
            self.isr,
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            *([[[each.node, each.reason, each.file] for each in self.offline]] if self.offline else []),
        ]

    @staticmethod
    def of(row: list[Any], assignments: dict[Any, Assignment] | None = None) -> Partition:
        """The partition of an image's row. Raises ValueError unless each replica has a directory and a generation.

        `assignments` holds those that were read before: thousands of partitions share a few.
        """
        index, replicas, adding, removing, original, directories, generations, isr, *epochs = row
        leader, leader_epoch, epoch, *offline = epochs
        if not len(replicas) == len(directories) == len(generations):
            raise ValueError(f"partition {index} has {replicas} in {directories} at {generations}")
        key = (tuple(replicas), tuple(adding), tuple(removing), tuple(original))
        held = assignments.get(key) if assignments is not None else None
        if held is None:
            held = Assignment(*key)
            if assignments is not None:
                assignments[key] = held
        in_sync = held.replicas if isr == replicas else tuple(isr)
        return Partition(
            index,
            held,
            tuple(directories),
            tuple(generations),
            in_sync,
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
    shaped: int = field(default=0, compare=False)
    """The version at which its id, its configs or the number of its partitions last changed."""
    stamps: tuple[int, ...] = field(default=(), compare=False)
    """The version at which each partition last changed; empty where all did at `shaped`."""
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    def changed_since(self, version: int) -> list[Partition] | None:
        """The partitions that changed after `version`; None where the topic itself did, too."""
        if self.shaped > version or not self.stamps:
            return None
        return [each for each, stamp in zip(self.partitions, self.stamps, strict=True) if stamp > version]

    def stamped(self, before: Topic | None, version: int) -> Topic:
        """The topic as it changes to from `before` at this version."""
        if before is None or (before.id, len(before.partitions)) != (self.id, len(self.partitions)):
            return replace(self, changed=version, shaped=version, stamps=())
        if before.configs != self.configs:
            return replace(self, changed=version, shaped=version, stamps=())
        stamps = before.stamps or (before.shaped,) * len(self.partitions)
        stamps = tuple(
            stamp if was is now else version
            for stamp, was, now in zip(stamps, before.partitions, self.partitions, strict=True)
        )
        return replace(self, changed=version, shaped=before.shaped, stamps=stamps)

    @property
    def digest(self) -> int:
        """The digest of its row and those of its partitions; computed once."""
        known = self._digest
        if known is None:
            below = digest.total(each.digest for each in self.partitions)
            known = digest.of_row(("topic", self.name, self.id, digest.of_items(self.configs), below))
            object.__setattr__(self, "_digest", known)
        return known

    def row(self) -> list[Any]:
        """The topic row of the cluster image."""
        return [self.name, self.id, dict(self.configs), [partition.row() for partition in self.partitions]]

    def carried(self) -> list[Any]:
        """The row with what else a continue-as-new has to bring over."""
        return [*self.row(), self.changed, self.shaped, list(self.stamps)]

    @staticmethod
    def of(row: list[Any], assignments: dict[Any, Assignment] | None = None) -> Topic:
        """The topic of an image's row, or of a row that was carried over."""
        name, topic_id, configs, partitions, *carried = row
        changed = carried[0] if carried else 0
        shaped, stamps = carried[1:] if len(carried) > 1 else (changed, ())  # rows of before know only when
        held = tuple([Partition.of(each, assignments) for each in partitions])
        return Topic(name, topic_id, dict(configs), held, changed, shaped, tuple(stamps))


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
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            directories = tuple((each.id, each.path, int(each.online)) for each in self.directories)
            who = ("node", self.node, self.incarnation, self.broker_epoch, self.host, self.port, directories)
            known = digest.of_row((*who, int(self.fenced), self.rack, int(self.unclean)))
            object.__setattr__(self, "_digest", known)
        return known

    def holds(self, directory_id: str) -> bool:
        """Whether the node can serve from this directory now; one not known yet ("") counts as good."""
        if self.fenced or directory_id == "":
            return not self.fenced
        for each in self.directories:  # a loop: it is gone through for each replica of a failed node
            if each.id == directory_id:
                return each.online
        return False

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

    @property
    def digest(self) -> int:
        """The digest of its row."""
        return digest.of_row(("configs", self.kind, self.name, digest.of_items(self.values)))


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All metadata of a cluster. The cluster generation stands above all epochs; the version counts changed rows within
    it. `rules`: the version of the rules by which it is changed (rules.py), which is the run's and no part of the rows.
    """

    cluster: str
    generation: int = 1
    version: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    nodes: Mapping[int, Node] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Configs] = field(default_factory=dict)
    next_producer_id: int = 0
    rules: int = RULES
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of all that images convey, as it travels; nodes at the same pair compute the same (digest.py)."""
        known = self._digest
        if known is None:
            values: tuple[Mapping[Any, Topic | Node | Configs], ...] = (self.topics, self.nodes, self.configs)
            known = digest.text(digest.total(each.digest for rows in values for each in rows.values()))
            object.__setattr__(self, "_digest", known)
        return known

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
            held[topic.name] = topic.stamped(held.get(topic.name), version)
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
            "topics": [topic.carried() for topic in self.topics.values()],
            "gone": [[each.name, each.id, each.changed] for each in self.gone],
            "nodes": [[*node.row(), node.changed] for node in self.nodes.values()],
            "configs": [[each.kind, each.name, dict(each.values), each.changed] for each in self.configs.values()],
            "next_producer_id": self.next_producer_id,
        }

    @staticmethod
    def of(rows: Mapping[str, Any], rules: int = RULES) -> ClusterState:
        """The state of such rows, to be changed by these rules. Raises ValueError for another format."""
        if rows.get("v") != FORMAT:
            raise ValueError(f"rows of format {rows.get('v')}, this program reads {FORMAT}")
        assignments: dict[Any, Assignment] = {}
        return ClusterState(
            rows["cluster"],
            rows["generation"],
            rows["version"],
            {row[0]: Topic.of(row, assignments) for row in rows["topics"]},
            tuple(Gone(*row) for row in rows["gone"]),
            {row[0]: Node.of(row[:-1], row[-1]) for row in rows["nodes"]},
            {(row[0], row[1]): Configs(*row) for row in rows["configs"]},
            rows["next_producer_id"],
            rules,
        )


def pack(value: Any) -> str:
    """Compact JSON, zlib, base64: how states and images travel."""
    return compressed(compact(value))


def compact(value: Any) -> bytes:
    """Compact JSON.

    JSON's own escape takes the place of half of a surrogate pair, which UTF-8 cannot carry.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def compressed(text: bytes) -> str:
    """Compact JSON as it travels."""
    return base64.b64encode(zlib.compress(text, 6)).decode()


def unpack(text: str) -> Any:
    """What `pack` packed. Raises ValueError for anything else."""
    try:
        return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (zlib.error, RecursionError, TypeError) as problem:
        raise ValueError(f"not a packed value: {problem}") from problem
