"""Topics as Metadata and DescribeTopicPartitions show them, encoded once per change.

A topic's bytes depend on its own row of the image and on which of its nodes and directories are up. Both are kept with
the bytes, so that after a change only the topics that it touches are encoded again: with a thousand topics the rest is
put together from what is there.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from storage_node.errors import ErrorCode
from storage_node.metadata import LOST, ClusterImage, PartitionImage, TopicImage
from storage_node.protocol.wire import array, string

#: What clients may do with a topic where nobody checks who they are: read, write, create, delete, alter, describe,
#: describe and alter configs (KIP-430).
TOPIC_OPERATIONS = struct.pack(">i", 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11)
#: What stands there for who did not ask.
NO_OPERATIONS = b"\x80\0\0\0"
NO_ID = bytes(16)
#: Topics that Kafka's clients hide, whoever made them.
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: Changes of the metadata after which a layout that nobody asked for is not kept ready any more.
IDLE = 100

_NODE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class View:
    """What is up: the nodes that are not fenced, and (node, directory id) of the directories that are offline."""

    live: frozenset[int]
    lost: frozenset[tuple[int, str]]

    @staticmethod
    def of(image: ClusterImage) -> View:
        """What an image says."""
        lost = {(row.node, id_) for row in image.nodes.values() for id_, _, online in row.directories if not online}
        return View(frozenset(row.node for row in image.nodes.values() if not row.fenced), frozenset(lost))


@lru_cache(maxsize=64)
def _touched(before: View, after: View) -> frozenset[int]:
    """The nodes of which something is shown in another way."""
    return (before.live ^ after.live) | {node for node, _ in before.lost ^ after.lost}


class Layout:
    """How some versions write a topic."""

    def __init__(self, version: int, described: bool = False) -> None:
        self.described = described
        """DescribeTopicPartitions instead of Metadata."""
        self.flexible = described or version >= 9
        self.internal = described or version >= 1
        self.epoch = described or version >= 7
        self.offline = described or version >= 5
        self.operations = described or version >= 8
        self.ids = described or version >= 10
        self.live_only = not described and version == 0
        """Version 0 names only the replicas that are up."""
        count, last = ("B", "B") if self.flexible else ("i", "")
        head = f">hii{'i' if self.epoch else ''}{count}i{count}i{count * 2 * described}"
        #: A partition of one replica that leads it, and of one that cannot be reached.
        self._up = struct.Struct(head + count * self.offline + last)
        self._down = struct.Struct(head + f"{count}i" * self.offline + last)
        one, none = (2, 1) if self.flexible else (1, 0)
        end = (0,) if self.flexible else ()
        self._one, self._elr = one, (none,) * 2 * described
        self._up_end = (*self._elr, *(none,) * self.offline, *end)
        self._end = end

    def topic(self, topic: TopicImage, view: View) -> bytes:
        """A whole topic; what it may be done with stands in the last bytes, as for who did not ask."""
        rows = topic.partitions.values()
        return self.head(topic.name, topic.id, len(rows)) + self.partitions(rows, view) + self.tail()

    def missing(self, name: str | None, topic_id: bytes, error: ErrorCode) -> bytes:
        """A topic that is not there, or not shown."""
        flexible = self.flexible
        null = b"\0" if flexible else b"\xff\xff"
        text = null if name is None else string(name, flexible)
        ids = topic_id if self.ids else b""
        flag = bytes((name in INTERNAL,)) if self.internal else b""
        return error.to_bytes(2, "big", signed=True) + text + ids + flag + array(0, flexible) + self.tail()

    def head(self, name: str, topic_id: str, partitions: int) -> bytes:
        """What stands before the partitions of a topic that is there."""
        out = b"\0\0" + string(name, self.flexible)
        if self.ids:
            out += raw_id(topic_id)
        if self.internal:
            out += bytes((name in INTERNAL,))
        return out + array(partitions, self.flexible)

    def tail(self) -> bytes:
        """What stands behind the partitions."""
        return (NO_OPERATIONS if self.operations else b"") + (b"\0" if self.flexible else b"")

    def allowed(self, row: bytes) -> bytes:
        """A topic's bytes for who asked what may be done with it."""
        if not self.operations:
            return row
        return row[:-5] + TOPIC_OPERATIONS + b"\0" if self.flexible else row[:-4] + TOPIC_OPERATIONS

    def partitions(self, rows: Iterable[PartitionImage], view: View) -> bytes:
        """Partitions, one after the other."""
        live, lost = view.live, view.lost
        up, one, end, epoch = self._up.pack, self._one, self._up_end, self.epoch
        out: list[bytes] = []
        for row in rows:
            replicas, leader = row.replicas, row.leader
            if len(replicas) != 1 or replicas != row.isr:
                out.append(self._partition(row, view))
                continue
            (node,) = replicas
            if leader != node or node not in live or (lost and (node, (row.directories or ("",))[0]) in lost):
                out.append(self._alone(row, node, view))
            elif epoch:
                out.append(up(0, row.partition, leader, row.leader_epoch, one, leader, one, leader, *end))
            else:
                out.append(up(0, row.partition, leader, one, leader, one, leader, *end))
        return b"".join(out)

    def _alone(self, row: PartitionImage, node: int, view: View) -> bytes:
        """One replica that is in sync, and without a leader or not to be reached."""
        if row.leader in view.live or node in view.live or not self.offline:
            return self._partition(row, view)
        error = 0 if self.described else ErrorCode.LEADER_NOT_AVAILABLE
        one = self._one
        return self._down.pack(
            *(error, row.partition, -1, row.leader_epoch) if self.epoch else (error, row.partition, -1),
            *(one, node, one, node, *self._elr, one, node, *self._end),
        )

    def _partition(self, row: PartitionImage, view: View) -> bytes:
        directories = (*row.directories, *("",) * len(row.replicas))
        reported = {node for node, _, _ in row.offline}
        offline = [
            node
            for node, directory in zip(row.replicas, directories, strict=False)
            if node not in view.live or directory == LOST or (node, directory) in view.lost or node in reported
        ]
        replicas: Sequence[int] = row.replicas
        isr: Sequence[int] = row.isr
        leader = row.leader if row.leader in view.live else -1
        error = ErrorCode.NONE if leader >= 0 or self.described else ErrorCode.LEADER_NOT_AVAILABLE
        if self.live_only:
            replicas, isr = ([node for node in nodes if node in view.live] for nodes in (replicas, isr))
            if leader >= 0 and (len(replicas), len(isr)) != (len(row.replicas), len(row.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        out = struct.pack(">hii", error, row.partition, leader)
        if self.epoch:
            out += _NODE.pack(row.leader_epoch)
        out += self._nodes(replicas) + self._nodes(isr)
        if self.described:
            out += self._nodes(()) * 2  # eligible leaders beyond the ISR (KIP-966) are not kept
        if self.offline:
            out += self._nodes(offline)
        return out + b"\0" if self.flexible else out

    def _nodes(self, nodes: Sequence[int]) -> bytes:
        return array(len(nodes), self.flexible) + b"".join(map(_NODE.pack, nodes))


@cache
def _layout(group: int) -> Layout:
    return Layout(group)


def layout_of(version: int) -> Layout:
    """The layout of a version of Metadata; versions that write a topic alike share one."""
    return _layout(next(first for first in (10, 9, 8, 7, 5, 1, 0) if version >= first))


DESCRIBED = Layout(0, described=True)


@lru_cache(maxsize=4096)
def raw_id(topic_id: str) -> bytes:
    """The 16 bytes of an id, zeros for what is none."""
    try:
        raw = base64.urlsafe_b64decode(topic_id + "==")
    except (ValueError, binascii.Error):
        return NO_ID
    return raw if len(raw) == 16 else NO_ID


@lru_cache(maxsize=4096)
def text_id(raw: bytes) -> str:
    """The 22 characters of 16 bytes, "" for zeros."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=") if any(raw) else ""


@dataclass(frozen=True, slots=True)
class _Entry:
    topic: TopicImage
    view: View
    nodes: frozenset[int]
    data: bytes

    def good(self, topic: TopicImage, view: View) -> bool:
        """Whether these are the bytes of that topic as things are."""
        if self.topic is not topic:
            return False
        return self.view is view or self.nodes.isdisjoint(_touched(self.view, view))


class TopicRows:
    """The kept bytes. May be used by several threads: entries are replaced, never changed, and each says of what it is
    made.
    """

    def __init__(self) -> None:
        self._entries: dict[Layout, dict[str, _Entry]] = {}
        self._unasked: dict[Layout, int] = {}
        self._view = View(frozenset(), frozenset())

    def view(self, image: ClusterImage) -> View:
        """What an image says is up; the same object for as long as it says the same."""
        view = View.of(image)
        if view != self._view:
            self._view = view
            return view
        return self._view

    def stale(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> int:
        """How many partitions `rows` would have to encode."""
        entries = self._entries.get(layout, {})
        count = 0
        for topic in topics:
            entry = entries.get(topic.name)
            if entry is None or not entry.good(topic, view):
                count += len(topic.partitions)
        return count

    def rows(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> list[bytes]:
        """Each topic's bytes, in order."""
        self._unasked[layout] = 0
        return self._encode(layout, topics, view)

    def _encode(self, layout: Layout, topics: Iterable[TopicImage], view: View) -> list[bytes]:
        entries = self._entries.setdefault(layout, {})
        out: list[bytes] = []
        for topic in topics:
            entry = entries.get(topic.name)
            if entry is None or not entry.good(topic, view):
                nodes = frozenset(node for row in topic.partitions.values() for node in (*row.replicas, row.leader))
                entry = entries[topic.name] = _Entry(topic, view, nodes, layout.topic(topic, view))
            elif entry.view is not view:
                entry = entries[topic.name] = _Entry(topic, view, entry.nodes, entry.data)
            out.append(entry.data)
        return out

    def prepare(self, image: ClusterImage) -> None:
        """Encode what an image changes before it is the one that is answered from, as those who asked lately want it.

        Layouts that nobody has asked for in a while are dropped, and the topics that are gone.
        """
        view = self.view(image)
        for layout, entries in list(self._entries.items()):
            if len(entries) > 2 * len(image.topics) + 100:
                self._entries[layout] = {name: entries[name] for name in image.topics if name in entries}
            unasked = self._unasked[layout] = self._unasked.get(layout, 0) + 1
            if unasked > IDLE:
                self._entries.pop(layout, None)
                self._unasked.pop(layout, None)
            else:
                self._encode(layout, [topic for name, topic in image.topics.items() if name in entries], view)
