"""The topics of Metadata and DescribeTopicPartitions responses, encoded once per change.

A topic's bytes depend on its row of the image and on which of its nodes and directories are online. Both are cached
with the bytes, so that after a change only the affected topics are encoded again.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import LOST
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.wire.primitives import array, string

#: The authorized operations of a topic without an authorizer (KIP-430): read, write, create, delete, alter, describe,
#: describe and alter configs.
TOPIC_OPERATIONS = struct.pack(">i", 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11)
#: The authorized operations of a response whose request does not include them.
NO_OPERATIONS = b"\x80\0\0\0"
NO_ID = bytes(16)
#: Kafka's internal topics, which clients hide by default.
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: Metadata changes without a request for a layout, after which its bytes are dropped.
IDLE = 100

_NODE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class View:
    """What is online: the nodes that are not fenced, and the offline directories as (node, directory id)."""

    live: frozenset[int]
    offline: frozenset[tuple[int, str]]

    @staticmethod
    def of(image: ClusterImage) -> View:
        """Return the view of an image."""
        offline = {(row.node, each.id) for row in image.nodes.values() for each in row.directories if not each.online}
        return View(frozenset(row.node for row in image.nodes.values() if not row.fenced), frozenset(offline))


@lru_cache(maxsize=64)
def _changed_nodes(before: View, after: View) -> frozenset[int]:
    """Return the nodes whose state differs between two views."""
    return (before.live ^ after.live) | {node for node, _ in before.offline ^ after.offline}


class Layout:
    """The encoding of a topic in some versions of an API."""

    def __init__(self, version: int, described: bool = False) -> None:
        self.described = described
        """Whether it is the layout of DescribeTopicPartitions, not of Metadata."""
        self.flexible = described or version >= 9
        self.internal = described or version >= 1
        self.epoch = described or version >= 7
        self.offline = described or version >= 5
        self.operations = described or version >= 8
        self.ids = described or version >= 10
        self.live_only = not described and version == 0
        """Version 0 has only the replicas on live nodes."""
        count, last = ("B", "B") if self.flexible else ("i", "")
        head = f">hii{'i' if self.epoch else ''}{count}i{count}i{count * 2 * described}"
        #: A partition with one replica, which is the leader, or is offline.
        self._up = struct.Struct(head + count * self.offline + last)
        self._down = struct.Struct(head + f"{count}i" * self.offline + last)
        one, none = (2, 1) if self.flexible else (1, 0)
        end = (0,) if self.flexible else ()
        self._one, self._elr = one, (none,) * 2 * described
        self._up_end = (*self._elr, *(none,) * self.offline, *end)
        self._end = end

    def topic(self, topic: TopicImage, view: View) -> bytes:
        """Encode a whole topic, without its authorized operations: these are in the last bytes."""
        rows = topic.partitions
        return self.head(topic.name, topic.id, len(rows)) + self.partitions(rows, view) + self.tail()

    def missing(self, name: str | None, topic_id: bytes, error: ErrorCode) -> bytes:
        """Encode a topic with an error, which has no partitions."""
        flexible = self.flexible
        null = b"\0" if flexible else b"\xff\xff"
        text = null if name is None else string(name, flexible)
        ids = topic_id if self.ids else b""
        flag = bytes((name in INTERNAL,)) if self.internal else b""
        return error.to_bytes(2, "big", signed=True) + text + ids + flag + array(0, flexible) + self.tail()

    def head(self, name: str, topic_id: str, partitions: int) -> bytes:
        """Encode the fields before the partitions of an existing topic."""
        out = b"\0\0" + string(name, self.flexible)
        if self.ids:
            out += raw_id(topic_id)
        if self.internal:
            out += bytes((name in INTERNAL,))
        return out + array(partitions, self.flexible)

    def tail(self) -> bytes:
        """Encode the fields after the partitions."""
        return (NO_OPERATIONS if self.operations else b"") + (b"\0" if self.flexible else b"")

    def allowed(self, row: bytes) -> bytes:
        """Return a topic's bytes with its authorized operations."""
        if not self.operations:
            return row
        return row[:-5] + TOPIC_OPERATIONS + b"\0" if self.flexible else row[:-4] + TOPIC_OPERATIONS

    def partitions(self, rows: Iterable[PartitionImage], view: View) -> bytes:
        """Encode partitions."""
        live, offline = view.live, view.offline
        up, one, end, epoch = self._up.pack, self._one, self._up_end, self.epoch
        out: list[bytes] = []
        for row in rows:
            replicas, leader = row.assignment.replicas, row.leader
            if len(replicas) != 1 or replicas != row.isr:
                out.append(self._partition(row, view))
                continue
            (node,) = replicas
            if leader != node or node not in live or (offline and (node, row.directories[0]) in offline):
                out.append(self._only_replica(row, node, view))
            elif epoch:
                out.append(up(0, row.index, leader, row.leader_epoch, one, leader, one, leader, *end))
            else:
                out.append(up(0, row.index, leader, one, leader, one, leader, *end))
        return b"".join(out)

    def _only_replica(self, row: PartitionImage, node: int, view: View) -> bytes:
        """Encode a partition whose only replica is in sync, but offline or not the leader."""
        if row.leader in view.live or node in view.live or not self.offline:
            return self._partition(row, view)
        error = 0 if self.described else ErrorCode.LEADER_NOT_AVAILABLE
        one = self._one
        return self._down.pack(
            *(error, row.index, -1, row.leader_epoch) if self.epoch else (error, row.index, -1),
            *(one, node, one, node, *self._elr, one, node, *self._end),
        )

    def _partition(self, row: PartitionImage, view: View) -> bytes:
        reported = {each.node for each in row.offline}
        offline = [
            node
            for node, directory in zip(row.replicas, row.directories, strict=True)
            if node not in view.live or directory == LOST or (node, directory) in view.offline or node in reported
        ]
        replicas: Sequence[int] = row.replicas
        isr: Sequence[int] = row.isr
        leader = row.leader if row.leader in view.live else -1
        error = ErrorCode.NONE if leader >= 0 or self.described else ErrorCode.LEADER_NOT_AVAILABLE
        if self.live_only:
            replicas, isr = ([node for node in nodes if node in view.live] for nodes in (replicas, isr))
            if leader >= 0 and (len(replicas), len(isr)) != (len(row.replicas), len(row.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        out = struct.pack(">hii", error, row.index, leader)
        if self.epoch:
            out += _NODE.pack(row.leader_epoch)
        out += self._nodes(replicas) + self._nodes(isr)
        if self.described:
            out += self._nodes(()) * 2  # the node keeps no eligible leader replicas (KIP-966)
        if self.offline:
            out += self._nodes(offline)
        return out + b"\0" if self.flexible else out

    def _nodes(self, nodes: Sequence[int]) -> bytes:
        return array(len(nodes), self.flexible) + b"".join(map(_NODE.pack, nodes))


@cache
def _layout(group: int) -> Layout:
    return Layout(group)


def layout_of(version: int) -> Layout:
    """Return the layout of a version of Metadata; versions with the same encoding of a topic share a layout."""
    return _layout(next(first for first in (10, 9, 8, 7, 5, 1, 0) if version >= first))


DESCRIBED = Layout(0, described=True)


@lru_cache(maxsize=4096)
def raw_id(topic_id: str) -> bytes:
    """Return the 16 bytes of an id, zeros for an invalid one."""
    try:
        raw = base64.urlsafe_b64decode(topic_id + "==")
    except (ValueError, binascii.Error):
        return NO_ID
    return raw if len(raw) == 16 else NO_ID


@lru_cache(maxsize=4096)
def text_id(raw: bytes) -> str:
    """Return the 22 characters of an id, "" for zeros."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=") if any(raw) else ""


@dataclass(frozen=True, slots=True)
class _Entry:
    topic: TopicImage
    view: View
    nodes: frozenset[int]
    data: bytes

    def good(self, topic: TopicImage, view: View) -> bool:
        """Return whether these are the topic's current bytes."""
        if self.topic is not topic:
            return False
        return self.view is view or self.nodes.isdisjoint(_changed_nodes(self.view, view))


class TopicRows:
    """The cached bytes. Thread-safe: entries are replaced, never changed, and each has the inputs of its bytes."""

    def __init__(self) -> None:
        self._entries: dict[Layout, dict[str, _Entry]] = {}
        self._unused: dict[Layout, int] = {}
        self._view = View(frozenset(), frozenset())

    def view(self, image: ClusterImage) -> View:
        """Return the view of an image: the same object while the view does not change."""
        view = View.of(image)
        if view != self._view:
            self._view = view
            return view
        return self._view

    def stale(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> int:
        """Return how many partitions `rows` would have to encode."""
        entries = self._entries.get(layout, {})
        count = 0
        for topic in topics:
            entry = entries.get(topic.name)
            if entry is None or not entry.good(topic, view):
                count += len(topic.partitions)
        return count

    def rows(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> list[bytes]:
        """Return each topic's bytes, in order."""
        self._unused[layout] = 0
        return self._encode(layout, topics, view)

    def _encode(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> list[bytes]:
        entries = self._entries.setdefault(layout, {})
        out: list[bytes] = []
        for topic in topics:
            entry = entries.get(topic.name)
            if entry is None or not entry.good(topic, view):
                nodes = frozenset(node for row in topic.partitions for node in (*row.replicas, row.leader))
                entry = entries[topic.name] = _Entry(topic, view, nodes, layout.topic(topic, view))
            elif entry.view is not view:
                entry = entries[topic.name] = _Entry(topic, view, entry.nodes, entry.data)
            out.append(entry.data)
        return out

    def prepare(self, image: ClusterImage) -> None:
        """Encode the changes of an image before it becomes the newest one, in the layouts of recent requests.

        Drops deleted topics, and the layouts without a request for IDLE changes.
        """
        view = self.view(image)
        for layout, entries in list(self._entries.items()):
            if len(entries) > 2 * len(image.topics) + 100:
                self._entries[layout] = {name: entries[name] for name in image.topics if name in entries}
            unused = self._unused[layout] = self._unused.get(layout, 0) + 1
            if unused > IDLE:
                self._entries.pop(layout, None)
                self._unused.pop(layout, None)
            else:
                self._encode(layout, [topic for name, topic in image.topics.items() if name in entries], view)
