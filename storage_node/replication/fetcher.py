"""Which partitions this node follows, from whom, and the threads that fetch them.

An image decides: each partition that another node leads and that is served here is fetched from that node, at the
address that the image has for it. Replicas in sync, those that catch up and those that are throttled (KIP-73) are
fetched by threads of their own, and each log directory has its own: none waits for another.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from storage_node.config_table import FETCHERS
from storage_node.directories.directory import LogDirectory
from storage_node.metadata import ClusterImage, PartitionImage, TopicImage
from storage_node.replication.following import Followed, Kind, Place
from storage_node.replication.lane import Lane
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

log = logging.getLogger(__name__)


class Fetchers:
    """Thread-safe; nothing here waits for a disk or a leader, but `stop`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, Followed] = {}
        self._lanes: dict[Place, Lane] = {}
        self._image = ClusterImage()
        self._threads = 1
        self._registered = False
        """Whether the image knows this start of the node: one from before may take it for in sync after a long time."""
        self._closed = False

    def start(self) -> None:
        """Learn of directories that fail; what is followed comes with the images."""
        self._node.on_directory_failure(self._directory_failed)

    def reconcile(self, image: ClusterImage) -> None:
        """Follow what this image says, once the replicas that are here have the roles that it gives them."""
        node = self._node
        values = node.broker_values(image)
        with self._lock:
            if self._closed:
                return
            node.quotas.configure(image, values)
            before, self._image = self._image, image
            threads, self._threads = self._threads, values.number(FETCHERS)
            own = image.nodes.get(node.id)
            self._registered = node.controller is None or (own is not None and own.incarnation == node.incarnation)
            # Where nodes are, and how fast this one may fetch, may concern every partition.
            same = before.nodes == image.nodes and threads == self._threads
            touched: set[Place] = set()
            for topic in image.topics.values():
                if not (same and before.topics.get(topic.name) is topic):
                    for row in topic.partitions.values():
                        self._place(TopicPartition(topic.name, row.partition), topic, row, touched)
            for tp in [tp for tp in self._followed if image.partition(tp) is None]:
                self._drop(tp, touched)
            self._tell(touched if before.nodes == image.nodes else {*touched, *self._lanes})

    def follow(self, tps: Iterable[TopicPartition]) -> None:
        """Follow what the newest image says of these: they are served only since it came."""
        with self._lock:
            if self._closed:
                return
            touched: set[Place] = set()
            for tp in tps:
                topic, row = self._image.topics.get(tp.topic), self._image.partition(tp)
                if topic is not None and row is not None:
                    self._place(tp, topic, row, touched)
            self._tell(touched)

    def forget(self, tp: TopicPartition) -> None:
        """Fetch a partition no more, whatever the newest image says: it goes from here."""
        with self._lock:
            touched: set[Place] = set()
            self._drop(tp, touched)
            self._tell(touched)

    def following(self, tp: TopicPartition) -> Place | None:
        """Where a partition is fetched from, None where it is not."""
        followed = self._followed.get(tp)
        return followed.place if followed is not None else None

    def stop(self) -> None:
        """Fetch nothing more; returns when nothing more is appended, but for what hangs in a disk."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
            for followed in self._followed.values():
                followed.place = None
            self._followed, self._lanes = {}, {}
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.join()

    def _place(self, tp: TopicPartition, topic: TopicImage, row: PartitionImage, touched: set[Place]) -> None:
        partition = self._node.replicas.served.get(tp)
        place = self._where(partition, topic, row) if partition is not None else None
        before = self._followed.get(tp)
        if partition is None or place is None:
            if before is not None:
                self._drop(tp, touched)
            return
        if before is not None and before.partition is partition and before.epoch == row.leader_epoch:
            if before.place != place:
                touched.add(place)
                if before.place is not None:
                    touched.add(before.place)
                before.place = self._lane(place, partition.directory).place
            return
        if before is not None:
            self._drop(tp, touched)
        lane = self._lane(place, partition.directory)
        raw = base64.urlsafe_b64decode(topic.id + "==")
        self._followed[tp] = Followed(self._node, partition, raw, row.leader_epoch, lane.place)
        touched.add(place)

    def _where(self, partition: Partition, topic: TopicImage, row: PartitionImage) -> Place | None:
        me, tp = self._node.id, partition.tp
        leader = self._image.nodes.get(row.leader)
        if leader is None or row.leader == me or me not in row.replicas or partition.topic_id != topic.id:
            return None
        if partition.leader_epoch != row.leader_epoch or partition.offline:
            return None
        if me in row.isr and self._registered:
            kind = Kind.IN_SYNC
        else:
            kind = Kind.THROTTLED if self._node.quotas.follower.listed(tp) else Kind.CATCHING_UP
        index = hash(tp) % self._threads if kind is not Kind.THROTTLED else 0
        return Place(leader.node, leader.host, leader.port, partition.directory.name, kind, index)

    def _lane(self, place: Place, directory: LogDirectory) -> Lane:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(self._node, place, directory, self._misplaced)
        return lane

    def _drop(self, tp: TopicPartition, touched: set[Place]) -> None:
        followed = self._followed.pop(tp, None)
        if followed is not None and followed.place is not None:
            touched.add(followed.place)
            followed.place = None

    def _tell(self, touched: set[Place]) -> None:
        """Let these threads know whom they fetch now; those that have nobody left end."""
        if not touched:
            return
        members: defaultdict[Place, list[Followed]] = defaultdict(list)
        for followed in self._followed.values():
            if followed.place is not None:
                members[followed.place].append(followed)
        row = self._image.nodes.get(self._node.id)
        epoch = row.broker_epoch if row is not None else -1
        for place in touched:
            lane = self._lanes.get(place)
            if lane is None:
                continue
            if members[place]:
                lane.set(sorted(members[place], key=lambda followed: (followed.topic_id, followed.tp)), epoch)
            else:
                del self._lanes[place]
                lane.stop()

    def _misplaced(self) -> None:
        """A replica was moved to another directory: another thread fetches it from now on."""
        with self._lock:
            touched: set[Place] = set()
            for tp, followed in list(self._followed.items()):
                place = followed.place
                topic, row = self._image.topics.get(tp.topic), self._image.partition(tp)
                if place is not None and place.directory != followed.partition.directory.name and topic and row:
                    self._place(tp, topic, row, touched)
            self._tell(touched)

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        with self._lock:
            touched: set[Place] = set()
            for tp, followed in list(self._followed.items()):
                if followed.place is not None and followed.place.directory == directory.name:
                    self._drop(tp, touched)
            self._tell(touched)
