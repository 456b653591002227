"""The cluster image: what the controller tells every node, as a value, its codec, and a cache with a current snapshot.

The format is compressed JSON with compact rows; `from` = 0 marks a whole image, else the image is a delta for a
receiver at that version or later of the same generation. A pair (generation, version) orders images over the loss of
the controller's own state.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node import metadata_digest
from storage_node.types import TopicPartition

FORMAT_VERSION = 1

#: Kafka's reserved directory ids (KIP-858) that say "not known" and "lost".
UNASSIGNED = "AAAAAAAAAAAAAAAAAAAAAQ"
MIGRATING = "AAAAAAAAAAAAAAAAAAAAAA"
LOST = "AAAAAAAAAAAAAAAAAAAAAg"

#: A decompressed image beyond this is refused: it cannot be ours.
MAX_IMAGE_BYTES = 512 * 1024 * 1024


class BadImage(ValueError):
    """An image that cannot be decoded, or a delta that does not fit the image that it builds on."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition as the controller has it; `directories` and `generations` stand in the order of `replicas`."""

    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    generations: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    leader_epoch: int = 0
    partition_epoch: int = 0
    offline: tuple[tuple[int, str, str], ...] = ()
    """Replicas that their nodes report offline in directories that are online: (node, reason, file or folder)."""
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            sets = (self.replicas, self.adding, self.removing, self.original)
            epochs = (self.leader, self.leader_epoch, self.partition_epoch)
            row = (self.partition, sets, self.directories, self.generations, self.isr, epochs, self.offline)
            known = metadata_digest.of_row(row)
            object.__setattr__(self, "_digest", known)
        return known

    def offline_on(self, node: int) -> tuple[str, str] | None:
        """Why the node reports its replica offline, and the file or folder ("" for none); None while it does not."""
        return next(((reason, file) for number, reason, file in self.offline if number == node), None)

    def directory_of(self, node: int) -> str | None:
        """The directory id assigned to the node's replica; None when it has none, or none is assigned yet."""
        try:
            directory = self.directories[self.replicas.index(node)]
        except (ValueError, IndexError):
            return None
        return None if directory in ("", UNASSIGNED, MIGRATING) else directory

    def generation_of(self, node: int) -> int:
        """The generation that the metadata holds for the node's replica, 0 without one."""
        try:
            return self.generations[self.replicas.index(node)]
        except (ValueError, IndexError):
            return 0


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; its partitions by index."""

    name: str
    id: str
    configs: Mapping[str, str]
    partitions: Mapping[int, PartitionImage]
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row and those of its partitions; computed once."""
        known = self._digest
        if known is None:
            below = metadata_digest.total(each.digest for each in self.partitions.values())
            configs = metadata_digest.of_items(self.configs)
            known = metadata_digest.of_row(("topic", self.name, self.id, configs, below))
            object.__setattr__(self, "_digest", known)
        return known


@dataclass(frozen=True, slots=True)
class NodeImage:
    """A registered node; `directories` holds (id, path, online)."""

    node: int
    incarnation: str
    broker_epoch: int
    host: str
    port: int
    directories: tuple[tuple[str, str, bool], ...] = ()
    fenced: bool = False
    rack: str = ""
    unclean: bool = False
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            directories = tuple((id_, path, int(online)) for id_, path, online in self.directories)
            who = ("node", self.node, self.incarnation, self.broker_epoch, self.host, self.port, directories)
            known = metadata_digest.of_row((*who, int(self.fenced), self.rack, int(self.unclean)))
            object.__setattr__(self, "_digest", known)
        return known


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything at one version of the metadata."""

    cluster: str = ""
    generation: int = 0
    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)  # topic id -> name, of topics deleted lately
    nodes: Mapping[int, NodeImage] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    controller: int = -1
    _names: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of all but the deleted topics, as it travels; computed once. The controller's at the same pair is
        the same (metadata_digest.py).
        """
        known = self._digest
        if known is None:
            digests = [each.digest for each in self.topics.values()]
            digests += [each.digest for each in self.nodes.values()]
            digests += [
                metadata_digest.of_row(("configs", kind, name, metadata_digest.of_items(values)))
                for (kind, name), values in self.configs.items()
            ]
            known = metadata_digest.text(metadata_digest.total(digests))
            object.__setattr__(self, "_digest", known)
        return known

    @property
    def age(self) -> tuple[int, int]:
        """The pair that orders images."""
        return self.generation, self.version

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

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

    def apply(self, row: Mapping[str, Any]) -> ClusterImage:
        """The image after a decoded whole image or delta; raises BadImage when a row is malformed."""
        try:
            topics = {topic.name: topic for topic in map(_topic, row["topics"])}
            changed = {str(name): list(map(_partition, rows)) for name, rows in row.get("partitions", ())}
            gone = {str(topic_id): str(name) for name, topic_id in row["gone"]}
            nodes = {node.node: node for node in map(_node, row["nodes"])}
            configs = {(str(kind), str(name)): dict(values) for kind, name, values in row["configs"]}
            whole = row["from"] == 0
            cluster, controller = str(row["cluster"]), int(row.get("controller", -1))
            generation, version = int(row["generation"]), int(row["version"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadImage(f"a row of the cluster image is malformed: {error!r}") from error
        if whole:
            return ClusterImage(cluster, generation, version, topics, gone, nodes, configs, controller)
        kept = {name: topic for name, topic in self.topics.items() if topic.id not in gone}
        for name, partitions in changed.items():
            kept[name] = _with_partitions(kept.get(name), name, partitions)
        return ClusterImage(
            cluster,
            generation,
            version,
            {**kept, **topics},
            {**self.gone, **gone},
            {**self.nodes, **nodes},
            {**self.configs, **configs},
            controller,
        )

    def encode(self) -> str:
        """This image, whole."""
        return encode_row(
            {
                "v": FORMAT_VERSION,
                "cluster": self.cluster,
                "generation": self.generation,
                "version": self.version,
                "from": 0,
                "topics": [topic_row(topic) for topic in self.topics.values()],
                "gone": [[name, topic_id] for topic_id, name in self.gone.items()],
                "nodes": [node_row(node) for node in self.nodes.values()],
                "configs": [[kind, name, dict(values)] for (kind, name), values in self.configs.items()],
                "controller": self.controller,
            }
        )


def encode_row(row: Mapping[str, Any]) -> str:
    """base64(zlib(compact JSON))."""
    return base64.b64encode(zlib.compress(json.dumps(row, separators=(",", ":")).encode(), 1)).decode("ascii")


def decode_row(text: str) -> dict[str, Any]:
    """The JSON object of an image; raises BadImage."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), MAX_IMAGE_BYTES)
        if unzip.unconsumed_tail or not unzip.eof:
            raise BadImage("a cluster image is cut off or larger than any that is ours")
        row = json.loads(data)
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise BadImage(f"a cluster image cannot be decoded: {error}") from error
    if not isinstance(row, dict) or row.get("v") != FORMAT_VERSION:
        raise BadImage(f"a cluster image of format {row.get('v') if isinstance(row, dict) else row!r}, expected 1")
    return row


def decode(text: str) -> ClusterImage:
    """A whole image; raises BadImage."""
    row = decode_row(text)
    if row.get("from") != 0:
        raise BadImage("a delta where a whole image was expected")
    return ClusterImage().apply(row)


def _topic(row: Any) -> TopicImage:
    name, topic_id, configs, partitions = row
    return TopicImage(
        str(name),
        str(topic_id),
        {str(key): str(value) for key, value in configs.items()},
        {image.partition: image for image in map(_partition, partitions)},
    )


def _with_partitions(topic: TopicImage | None, name: str, partitions: list[PartitionImage]) -> TopicImage:
    """A topic of which these partitions have changed; raises BadImage if one does not exist."""
    held = topic.partitions if topic is not None else {}
    if topic is None or any(each.partition not in held for each in partitions):
        raise BadImage(f"a delta changes partitions of {name} that the image it builds on does not have")
    return replace(topic, partitions={**held, **{each.partition: each for each in partitions}})


def _partition(row: Any) -> PartitionImage:
    index, replicas, adding, removing, original, directories, generations, isr, *epochs = row
    leader, epoch, partition_epoch, *offline = epochs
    if not len(replicas) == len(directories) == len(generations):
        raise ValueError(f"partition {index} has {replicas} in {directories} at {generations}")
    return PartitionImage(
        int(index),
        tuple(replicas),
        tuple(adding),
        tuple(removing),
        tuple(original),
        tuple(directories),
        tuple(generations),
        tuple(isr),
        int(leader),
        int(epoch),
        int(partition_epoch),
        tuple((int(node), str(reason), str(file)) for node, reason, file in offline[0]) if offline else (),
    )


def _node(row: Any) -> NodeImage:
    node, incarnation, epoch, host, port, directories, fenced, *more = row  # rows of old images have no rack
    dirs = tuple((str(id_), str(path), bool(online)) for id_, path, online in directories)
    where, unclean = str(more[0]) if more else "", len(more) > 1 and bool(more[1])
    return NodeImage(int(node), str(incarnation), int(epoch), str(host), int(port), dirs, bool(fenced), where, unclean)


def set_back(before: ClusterImage, after: ClusterImage) -> list[TopicPartition]:
    """The partitions that `after` has at earlier epochs than `before` does, or led by another node in the same leader
    epoch. Within a generation no controller decides so that goes on from what it decided before.
    """
    return [
        TopicPartition(name, index)
        for name, topic in after.topics.items()
        if (known := before.topics.get(name)) is not None and known is not topic and known.id == topic.id
        for index, row in topic.partitions.items()
        if (held := known.partitions.get(index)) is not None and held is not row and _sets_back(held, row)
    ]


def _sets_back(held: PartitionImage, row: PartitionImage) -> bool:
    if (row.leader_epoch, row.partition_epoch) < (held.leader_epoch, held.partition_epoch):
        return True
    # Without a leader the epoch stays what it was: the next one is elected under a higher one.
    return row.leader_epoch == held.leader_epoch and row.leader != held.leader and -1 not in (row.leader, held.leader)


def topic_row(topic: TopicImage) -> list[Any]:
    """A topic as it stands in an image."""
    rows = [
        [
            image.partition,
            list(image.replicas),
            list(image.adding),
            list(image.removing),
            list(image.original),
            list(image.directories),
            list(image.generations),
            list(image.isr),
            image.leader,
            image.leader_epoch,
            image.partition_epoch,
            *([[list(each) for each in image.offline]] if image.offline else []),
        ]
        for image in topic.partitions.values()
    ]
    return [topic.name, topic.id, dict(topic.configs), rows]


def node_row(node: NodeImage) -> list[Any]:
    """A registration as it stands in an image."""
    dirs = [[id_, path, int(online)] for id_, path, online in node.directories]
    more = [node.rack, 1] if node.unclean else [node.rack] if node.rack else []
    return [node.node, node.incarnation, node.broker_epoch, node.host, node.port, dirs, int(node.fenced), *more]


class MetadataCache:
    """The newest image, replaced as a whole; readers take `image` without a lock.

    Listeners are called, on the thread that published, after every change.
    """

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image or ClusterImage()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[ClusterImage], None]] = []
        self.prepare: Callable[[ClusterImage], None] = lambda _: None
        """Called with an image before it is the newest one, on the thread that publishes it."""

    @contextmanager
    def listening(self, listener: Callable[[ClusterImage], None]) -> Iterator[None]:
        """Call `listener` after every change while the block runs."""
        with self._changed:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(listener)

    def publish(self, image: ClusterImage) -> None:
        """Make `image` the newest one and wake who waits for its version."""
        self.prepare(image)
        with self._changed:
            self.image = image
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener(image)

    def wait_for_version(self, version: int, timeout: float) -> bool:
        """Block until an image of at least this version is there; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.image.version >= version, timeout)
