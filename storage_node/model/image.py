"""Cluster images: all metadata at one version, and the messages by which the controller brings nodes there.

A message is a whole image, or a delta for a receiver of the same cluster generation at its version `since` or later. A
pair (cluster generation, version) orders images over the loss of the controller's own state.

The format is packed JSON (packing.py) with compact rows (image_rows.py): {"v", "cluster", "generation", "version",
"from", "topics", "partitions", "gone", "nodes", "configs", "controller"}. `from` 0 is a whole image. "partitions",
which only deltas have, holds [topic, [partition rows]] of topics of which nothing else has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node.model import image_rows, packing
from storage_node.model.ids import TopicPartition
from storage_node.model.image_check import are_texts, damaged, is_configs, is_list, is_number, is_text
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage, metadata_digest

FORMAT = 1

#: By kind ("broker") and name (its id, "" for all) what was set.
Configs = Mapping[tuple[str, str], Mapping[str, str]]


class BadImage(ValueError):
    """An image that cannot be decoded, or a delta that does not fit the image that it builds on."""


@dataclass(frozen=True, slots=True)
class ImageMessage:
    """A whole image, or a delta. `partitions` are those that changed in topics of which nothing else did; `gone` holds
    the names of deleted topics by their id.
    """

    cluster: str
    cluster_generation: int
    version: int
    since: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    partitions: Mapping[str, tuple[PartitionImage, ...]] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[int, NodeImage] = field(default_factory=dict)
    configs: Configs = field(default_factory=dict)
    controller: int = -1

    @property
    def pair(self) -> tuple[int, int]:
        """What orders images: (cluster generation, version)."""
        return self.cluster_generation, self.version

    def json(self) -> bytes:
        """The message before it is compressed."""
        content: dict[str, Any] = {
            "v": FORMAT,
            "cluster": self.cluster,
            "generation": self.cluster_generation,
            "version": self.version,
            "from": self.since,
            "topics": [image_rows.topic_row(each) for each in self.topics.values()],
            "gone": [[name, topic_id] for topic_id, name in self.gone.items()],
            "nodes": [image_rows.node_row(each) for each in self.nodes.values()],
            "configs": [[kind, name, dict(values)] for (kind, name), values in self.configs.items()],
            "controller": self.controller,
        }
        if self.partitions:
            content["partitions"] = [
                [name, [image_rows.partition_row(each) for each in changed]]
                for name, changed in self.partitions.items()
            ]
        return packing.compact(content)

    def encode(self, level: int = packing.SMALL) -> str:
        """The message as it travels."""
        return packing.compressed(self.json(), level)


class BadDelta(BadImage):
    """A delta with damaged rows; `header` is the message without any, by which a node knows whether it needs them."""

    def __init__(self, problem: str, header: ImageMessage) -> None:
        super().__init__(problem)
        self.header = header


class Reader:
    """Reads several images of one cluster, which have most rows in common: it reuses a topic whose row is known."""

    def __init__(self) -> None:
        self.rows = image_rows.RowReader()
        self._topics: dict[str, tuple[list[Any], TopicImage]] = {}

    def topic(self, row: Any) -> TopicImage:
        """The topic of a row. Raises ValueError."""
        known = self._topics.get(row[0]) if is_list(row, 1) and is_text(row[0]) else None
        if known is not None and known[0] == row:
            return known[1]
        made = self.rows.topic(row)
        self._topics[made.name] = row, made
        return made


def decode(text: str, reader: Reader | None = None) -> ImageMessage:
    """Read a message. Raises BadImage for one that is damaged, of another format or lacks fields."""
    content = _content(text)
    reader = reader or Reader()
    header = ImageMessage("", 0, 0)
    try:
        if not is_text(content.get("cluster")):
            raise damaged("cluster", content.get("cluster"))
        numbers = [_number(content, name) for name in ("generation", "version", "from")]
        header = ImageMessage(content["cluster"], numbers[0], numbers[1], numbers[2])
        return replace(
            header,
            topics={topic.name: topic for topic in map(reader.topic, _rows(content, "topics"))},
            partitions=dict(_changed(row, reader.rows) for row in _rows(content, "partitions", [])),
            gone={topic_id: name for name, topic_id in map(_gone, _rows(content, "gone"))},
            nodes={node.node: node for node in map(image_rows.read_node, _rows(content, "nodes"))},
            configs=dict(map(_configs, _rows(content, "configs"))),
            controller=_number(content, "controller", -1) if "controller" in content else -1,
        )
    except ValueError as problem:
        raise (BadDelta(str(problem), header) if header.since else BadImage(str(problem))) from problem


def decode_whole(text: str) -> ClusterImage:
    """A whole image; raises BadImage."""
    message = decode(text)
    if message.since:
        raise BadImage("a delta where a whole image was expected")
    return ClusterImage().after(message)


def _number(content: Mapping[str, Any], name: str, low: int = 0) -> int:
    found: Any = content.get(name)
    if not is_number(found, low):
        raise damaged(name, found)
    return int(found)


def _rows(content: Mapping[str, Any], name: str, default: Any = None) -> list[Any]:
    found = content.get(name, default)
    if not isinstance(found, list):
        raise damaged(name, found)
    return found


def _changed(row: Any, rows: image_rows.RowReader) -> tuple[str, tuple[PartitionImage, ...]]:
    if not (is_list(row, 2) and is_text(row[0])):
        raise damaged("partitions", row)
    return row[0], rows.partitions(row[1])


def _gone(row: Any) -> tuple[str, str]:
    if not (is_list(row, 2) and len(row) == 2 and are_texts(row)):
        raise damaged("gone", row)
    return row[0], row[1]


def _configs(row: Any) -> tuple[tuple[str, str], Mapping[str, str]]:
    if not (is_list(row, 3) and len(row) == 3 and are_texts(row[:2]) and is_configs(row[2])):
        raise damaged("configs", row)
    return (row[0], row[1]), row[2]


def cluster_of(text: str) -> str:
    """The cluster that an image is of. Raises BadImage as `decode` does."""
    return str(_content(text).get("cluster"))


def _content(text: str) -> dict[str, Any]:
    try:
        content = packing.unpack(text)
    except ValueError as problem:
        raise BadImage(f"a cluster image cannot be decoded: {problem}") from problem
    if not isinstance(content, dict) or content.get("v") != FORMAT:
        raise BadImage("not a cluster image of a format this program reads")
    return content


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything at one version of the metadata; `gone` holds the names of topics deleted lately, by their id."""

    cluster: str = ""
    cluster_generation: int = 0
    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[int, NodeImage] = field(default_factory=dict)
    configs: Configs = field(default_factory=dict)
    controller: int = -1
    _names: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of all but the deleted topics, as it travels; computed once. The controller's at the same pair is
        the same (digest.py).
        """
        known = self._digest
        if known is None:
            known = metadata_digest(self.topics.values(), self.nodes.values(), self.configs)
            object.__setattr__(self, "_digest", known)
        return known

    @property
    def pair(self) -> tuple[int, int]:
        """The pair that orders images."""
        return self.cluster_generation, self.version

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        """A partition; None where there is none."""
        topic = self.topics.get(tp.topic)
        return topic.partition(tp.partition) if topic else None

    def topic_by_id(self, topic_id: str) -> TopicImage | None:
        """The topic with this id; the index is made when it is first asked for, clients ask with every request."""
        names = self._names
        if names is None:
            names = {topic.id: topic.name for topic in self.topics.values()}
            object.__setattr__(self, "_names", names)
        name = names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def live_nodes(self) -> list[NodeImage]:
        """Registered nodes that are not fenced, by id."""
        return [node for _, node in sorted(self.nodes.items()) if not node.fenced]

    def dynamic_configs(self, node: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Dynamic broker configs: the node's own, and those of all brokers below them."""
        return self.configs.get(("broker", str(node)), {}), self.configs.get(("broker", ""), {})

    def after(self, message: ImageMessage) -> ClusterImage:
        """The image after a message. Raises BadImage for a delta that changes partitions which this image lacks."""
        topics, gone, nodes, configs = message.topics, message.gone, message.nodes, message.configs
        if message.since:
            topics = {**self._changed(message), **topics}
            gone, nodes = {**self.gone, **gone}, {**self.nodes, **nodes}
            configs = {**self.configs, **configs}
        return ClusterImage(
            message.cluster,
            message.cluster_generation,
            message.version,
            topics,
            gone,
            nodes,
            configs,
            message.controller,
        )

    def _changed(self, message: ImageMessage) -> dict[str, TopicImage]:
        """The topics without those that are gone, and with the partitions that a delta changes."""
        topics = dict(self.topics)
        if message.gone:
            topics = {name: topic for name, topic in topics.items() if topic.id not in message.gone}
        for name, changed in message.partitions.items():
            topic = topics.get(name)
            if topic is None or any(each.index >= len(topic.partitions) for each in changed):
                raise BadImage(f"a delta changes partitions of {name} that the image it builds on does not have")
            topics[name] = topic.with_partitions(changed)
        return topics

    def message(self) -> ImageMessage:
        """This image, whole."""
        return ImageMessage(
            self.cluster,
            self.cluster_generation,
            self.version,
            topics=self.topics,
            gone=self.gone,
            nodes=self.nodes,
            configs=self.configs,
            controller=self.controller,
        )

    def encode(self) -> str:
        """This image, whole, as disks keep it."""
        return self.message().encode(packing.FAST)


def set_back(before: ClusterImage, after: ClusterImage) -> list[TopicPartition]:
    """The partitions that `after` has at earlier epochs than `before` does, or led by another node in the same leader
    epoch. Within a cluster generation no controller that continues from its own state decides that way.
    """
    return [
        TopicPartition(name, row.index)
        for name, topic in after.topics.items()
        if (known := before.topics.get(name)) is not None and known is not topic and known.id == topic.id
        for held, row in zip(known.partitions, topic.partitions, strict=False)
        if held is not row and _sets_back(held, row)
    ]


def _sets_back(held: PartitionImage, row: PartitionImage) -> bool:
    if (row.leader_epoch, row.partition_epoch) < (held.leader_epoch, held.partition_epoch):
        return True
    # Without a leader the epoch stays what it was: the next one is elected under a higher one.
    return row.leader_epoch == held.leader_epoch and row.leader != held.leader and -1 not in (row.leader, held.leader)
