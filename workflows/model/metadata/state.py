"""The controller's state: what one `Cluster` workflow owns, as immutable values and as compact rows.

Every change has a version of its own, which stamps the changed row; no two rows share one, so that a delta is "all rows
changed since" and a list of rows can be split anywhere (image.py). The stamps are kept beside the values, which nodes
have as well. A topic has a stamp for each partition, so that a change of one of them does not send the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node.model.ids import NO_LEADER
from storage_node.model.image import ImageMessage
from storage_node.model.image_rows import RowReader, node_row, read_node, topic_row
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage, metadata_digest
from workflows.model.metadata.rules import RULES

FORMAT = 1
#: The number of deletions to remember after every node has confirmed them, for disks that return later.
REMEMBERED_DELETIONS = 2_000
#: Producer ids of one generation: a controller that lost its state must not issue an id twice.
PRODUCER_IDS_PER_GENERATION = 1 << 40


@dataclass(frozen=True, slots=True)
class TopicStamps:
    """The versions at which a topic changed: at all, in its id, its configs or the number of its partitions (`shaped`),
    and in each of its partitions (empty if all changed at `shaped`).
    """

    changed: int
    shaped: int
    partitions: tuple[int, ...] = ()

    def since(self, version: int, topic: TopicImage) -> tuple[PartitionImage, ...] | None:
        """Return the partitions of the topic that changed after a version; None if the topic itself did as well."""
        if self.shaped > version or not self.partitions:
            return None
        pairs = zip(topic.partitions, self.partitions, strict=True)
        return tuple([each for each, stamp in pairs if stamp > version])

    def first_since(self, version: int) -> int:
        """Return the version of the first change that a delta from `version` has."""
        if self.shaped > version:
            return self.shaped
        return min((stamp for stamp in self.partitions if stamp > version), default=self.changed)

    def row(self) -> list[Any]:
        """Return the columns that a continue-as-new appends to the topic's row."""
        return [self.changed, self.shaped, list(self.partitions)]

    @staticmethod
    def after(known: TopicStamps | None, before: TopicImage | None, now: TopicImage, version: int) -> TopicStamps:
        """Return the stamps of a topic after a change from `before` to `now` at this version."""
        if known is None or before is None or (before.id, len(before.partitions)) != (now.id, len(now.partitions)):
            return TopicStamps(version, version)
        if before.configs != now.configs:
            return TopicStamps(version, version)
        stamps = known.partitions or (known.shaped,) * len(now.partitions)
        pairs = zip(stamps, before.partitions, now.partitions, strict=True)
        return TopicStamps(version, known.shaped, tuple([at if was is each else version for at, was, each in pairs]))


@dataclass(frozen=True, slots=True)
class Stamps:
    """The versions at which rows last changed, by their keys in `ClusterState`."""

    topics: Mapping[str, TopicStamps] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[int, int] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """A change in a delta: its version, the field of the `ImageMessage` (`kind`), the key in it and the new value."""

    version: int
    kind: str
    key: Any
    value: Any


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All metadata of a cluster. The cluster generation outranks all epochs; the version counts changes within it.

    `gone` holds the names of deleted topics by their id, each until every registered node has deleted its replicas,
    however long that takes. `rules` is the version of the rules by which the state is changed (rules.py); it belongs to
    the run, not to the rows.
    """

    cluster: str
    cluster_generation: int = 1
    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[int, NodeImage] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    rules: int = RULES
    stamps: Stamps = field(default_factory=Stamps)
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """Return the digest of all metadata in images; nodes at the same pair compute the same."""
        known = self._digest
        if known is None:
            known = metadata_digest(self.topics.values(), self.nodes.values(), self.configs)
            object.__setattr__(self, "_digest", known)
        return known

    @property
    def pair(self) -> tuple[int, int]:
        """Return (cluster generation, version), which orders the states of a cluster."""
        return self.cluster_generation, self.version

    @property
    def alive(self) -> tuple[int, ...]:
        """Return the unfenced nodes, in order."""
        return tuple(sorted(node.node for node in self.nodes.values() if not node.fenced))

    @property
    def controller(self) -> int:
        """Return the node that clients see as the controller: the first unfenced one, since every node accepts the
        controller's requests; -1 without one.
        """
        return next(iter(self.alive), NO_LEADER)

    def partitions(self) -> Iterator[tuple[TopicImage, PartitionImage]]:
        """Yield every partition with its topic."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def with_topics(self, *topics: TopicImage) -> ClusterState:
        """Return the state with these topics added or replaced, each at a version of its own."""
        held, stamps, version = dict(self.topics), dict(self.stamps.topics), self.version
        for topic in topics:
            version += 1
            stamps[topic.name] = TopicStamps.after(stamps.get(topic.name), held.get(topic.name), topic, version)
            held[topic.name] = topic
        return replace(self, topics=held, version=version, stamps=replace(self.stamps, topics=stamps))

    def with_node(self, node: NodeImage) -> ClusterState:
        """Return the state with this registration added or replaced."""
        version = self.version + 1
        stamps = replace(self.stamps, nodes={**self.stamps.nodes, node.node: version})
        return replace(self, nodes={**self.nodes, node.node: node}, version=version, stamps=stamps)

    def with_configs(self, kind: str, name: str, values: Mapping[str, str]) -> ClusterState:
        """Return the state with these dynamic configs of one broker (`name` is its id), or of all (""); empty ones are
        kept, since a delta must be able to transfer the removal.
        """
        version = self.version + 1
        stamps = replace(self.stamps, configs={**self.stamps.configs, (kind, name): version})
        return replace(self, configs={**self.configs, (kind, name): values}, version=version, stamps=stamps)

    def without_topic(self, name: str) -> ClusterState:
        """Return the state without this topic, which is remembered in `gone`."""
        version = self.version + 1
        topics, stamps = dict(self.topics), dict(self.stamps.topics)
        topic = topics.pop(name)
        del stamps[name]
        after = replace(self.stamps, topics=stamps, gone={**self.stamps.gone, topic.id: version})
        return replace(self, topics=topics, gone={**self.gone, topic.id: name}, version=version, stamps=after)

    def forget_deletions(self, confirmed: int) -> ClusterState:
        """Return the state without the oldest deletions of those that every node has confirmed (up to `confirmed`)."""
        known = sum(1 for stamp in self.stamps.gone.values() if stamp <= confirmed)
        drop = known - REMEMBERED_DELETIONS
        if drop <= 0:
            return self
        gone, stamps = dict([*self.gone.items()][drop:]), dict([*self.stamps.gone.items()][drop:])
        return replace(self, gone=gone, stamps=replace(self.stamps, gone=stamps))

    # --- images

    def changes(self, since: int) -> list[Changed]:
        """Return all changes after a version, in an order in which the list may be split anywhere.

        Each is placed at the first version after `since` at which its row changed. So a receiver of all rows up to some
        version has every topic created before it, and a delta from there brings later changes. If topics were placed at
        their last change, such a delta might have only one partition of a topic that the receiver lacks; and if
        partitions were, it would miss those that changed before.
        """
        found: list[Changed] = []
        for name, stamp in self.stamps.topics.items():
            if stamp.changed > since:
                topic = self.topics[name]
                partitions, first = stamp.since(since, topic), stamp.first_since(since)
                if partitions is None:
                    found.append(Changed(first, "topics", name, topic))
                else:
                    found.append(Changed(first, "partitions", name, partitions))
        stamps = self.stamps
        found += [Changed(at, "gone", key, self.gone[key]) for key, at in stamps.gone.items() if at > since]
        found += [Changed(at, "nodes", key, self.nodes[key]) for key, at in stamps.nodes.items() if at > since]
        found += [Changed(at, "configs", key, self.configs[key]) for key, at in stamps.configs.items() if at > since]
        return sorted(found, key=lambda each: each.version)

    def weight(self, since: int) -> int:
        """Return how many partitions changed after a version."""
        count = 0
        for name, stamp in self.stamps.topics.items():
            if stamp.changed > since:
                partitions = stamp.since(since, self.topics[name])
                count += len(self.topics[name].partitions if partitions is None else partitions)
        return count

    def message(self, since: int = 0) -> ImageMessage:
        """Return all changes after a version as a message for nodes; by default the whole metadata."""
        return self.message_of(self.changes(since), since, self.version)

    def message_of(self, changes: list[Changed], since: int, version: int) -> ImageMessage:
        """Return a message with these changes, which brings a receiver from `since` to `version`."""
        fields: dict[str, dict[Any, Any]] = {}
        for each in changes:
            fields.setdefault(each.kind, {})[each.key] = each.value
        return ImageMessage(self.cluster, self.cluster_generation, version, since, controller=self.controller, **fields)

    # --- rows

    def rows(self) -> dict[str, Any]:
        """Return the state as compact rows, for a continue-as-new."""
        stamps = self.stamps
        return {
            "v": FORMAT,
            "cluster": self.cluster,
            "generation": self.cluster_generation,
            "version": self.version,
            "topics": [[*topic_row(topic), *stamps.topics[name].row()] for name, topic in self.topics.items()],
            "gone": [[name, topic_id, stamps.gone[topic_id]] for topic_id, name in self.gone.items()],
            "nodes": [[*node_row(node), stamps.nodes[number]] for number, node in self.nodes.items()],
            "configs": [[*key, dict(values), stamps.configs[key]] for key, values in self.configs.items()],
            "next_producer_id": self.next_producer_id,
        }

    @staticmethod
    def of(rows: Mapping[str, Any], rules: int = RULES) -> ClusterState:
        """Return the state of such rows, to be changed by these rules. Raises ValueError for another format."""
        if rows.get("v") != FORMAT:
            raise ValueError(f"the rows have format {rows.get('v')}, but this program only reads format {FORMAT}")
        reader = RowReader()
        topics, gone, nodes, configs = rows["topics"], rows["gone"], rows["nodes"], rows["configs"]
        stamps = Stamps(
            {row[0]: TopicStamps(row[4], row[5], tuple(row[6])) for row in topics},
            {topic_id: stamp for _, topic_id, stamp in gone},
            {row[0]: row[-1] for row in nodes},
            {(kind, name): stamp for kind, name, _, stamp in configs},
        )
        return ClusterState(
            rows["cluster"],
            rows["generation"],
            rows["version"],
            {row[0]: reader.topic(row) for row in topics},
            {topic_id: name for name, topic_id, _ in gone},
            {row[0]: read_node(row[:-1]) for row in nodes},
            {(kind, name): dict(values) for kind, name, values, _ in configs},
            rows["next_producer_id"],
            rules,
            stamps,
        )
