"""The partitions that this node follows, and the threads that fetch them (Kafka: ReplicaFetcherManager).

An image decides: each partition that is served here and that another node leads is fetched from that node, at its
address in the image. Replicas in sync, catching up and throttled (KIP-73) have separate fetcher threads, and so has
each log directory, so that none delays another.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable

from storage_node.config.table import FETCHERS
from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.replication.fetcher_thread import ReplicaFetcherThread
from storage_node.replication.following import Followed, Kind, Place
from storage_node.replication.host import FetcherManagerHost, FollowedReplica

log = logging.getLogger(__name__)


class ReplicaFetcherManager:
    """The fetcher threads of a node. Thread-safe; no method but `stop` waits for a disk or a leader."""

    def __init__(self, node: FetcherManagerHost) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, Followed] = {}
        self._fetchers: dict[Place, ReplicaFetcherThread] = {}
        self._image = ClusterImage()
        self._threads = 1
        self._registered = False
        """Whether the image has this start of the node; an image from before may still count the replica as in sync."""
        self._closed = False

    def start(self) -> None:
        """Register for directory failures; the images then add partitions."""
        self._node.on_directory_failure(self._directory_failed)

    def reconcile(self, image: ClusterImage) -> None:
        """Follow the partitions of this image; call it after the image's roles were applied to the replicas here."""
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
            # A change of the nodes or of the number of threads may affect every partition.
            same = before.nodes == image.nodes and threads == self._threads
            touched: set[Place] = set()
            for topic in image.topics.values():
                if not (same and before.topics.get(topic.name) is topic):
                    for row in topic.partitions:
                        self._place(TopicPartition(topic.name, row.index), topic, row, touched)
            for tp in [tp for tp in self._followed if image.partition(tp) is None]:
                self._drop(tp, touched)
            self._assign(touched if before.nodes == image.nodes else {*touched, *self._fetchers})

    def follow(self, tps: Iterable[TopicPartition]) -> None:
        """Follow these partitions by the newest image, which came before they were served here."""
        with self._lock:
            if self._closed:
                return
            touched: set[Place] = set()
            for tp in tps:
                topic, row = self._image.topics.get(tp.topic), self._image.partition(tp)
                if topic is not None and row is not None:
                    self._place(tp, topic, row, touched)
            self._assign(touched)

    def forget(self, tp: TopicPartition) -> None:
        """Stop fetching a partition that is being removed, whatever the newest image has."""
        with self._lock:
            touched: set[Place] = set()
            self._drop(tp, touched)
            self._assign(touched)

    def following(self, tp: TopicPartition) -> Place | None:
        """Return where a partition is fetched from, None if it is not."""
        followed = self._followed.get(tp)
        return followed.place if followed is not None else None

    def stop(self) -> None:
        """Stop all threads; return when nothing more is appended, except by threads that hang in a disk."""
        with self._lock:
            self._closed = True
            fetchers = list(self._fetchers.values())
            for followed in self._followed.values():
                followed.place = None
            self._followed, self._fetchers = {}, {}
        for fetcher in fetchers:
            fetcher.stop()
        for fetcher in fetchers:
            fetcher.join()

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
                before.place = self._fetcher(place, partition.directory).place
            return
        if before is not None:
            self._drop(tp, touched)
        fetcher = self._fetcher(place, partition.directory)
        raw = base64.urlsafe_b64decode(topic.id + "==")
        self._followed[tp] = Followed(self._node, partition, raw, row.leader_epoch, fetcher.place)
        touched.add(place)

    def _where(self, partition: FollowedReplica, topic: TopicImage, row: PartitionImage) -> Place | None:
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

    def _fetcher(self, place: Place, directory: LogDirectory) -> ReplicaFetcherThread:
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcherThread(self._node, place, directory, self._misplaced)
        return fetcher

    def _drop(self, tp: TopicPartition, touched: set[Place]) -> None:
        followed = self._followed.pop(tp, None)
        if followed is not None and followed.place is not None:
            touched.add(followed.place)
            followed.place = None

    def _assign(self, touched: set[Place]) -> None:
        """Assign these threads their partitions; stop those that have none left."""
        if not touched:
            return
        members: defaultdict[Place, list[Followed]] = defaultdict(list)
        for followed in self._followed.values():
            if followed.place is not None:
                members[followed.place].append(followed)
        row = self._image.nodes.get(self._node.id)
        epoch = row.broker_epoch if row is not None else -1
        for place in touched:
            fetcher = self._fetchers.get(place)
            if fetcher is None:
                continue
            if members[place]:
                fetcher.set(sorted(members[place], key=lambda followed: (followed.topic_id, followed.tp)), epoch)
            else:
                del self._fetchers[place]
                fetcher.stop()

    def _misplaced(self) -> None:
        """Reassign the replicas that were moved to another directory to that directory's threads."""
        with self._lock:
            touched: set[Place] = set()
            for tp, followed in list(self._followed.items()):
                place = followed.place
                topic, row = self._image.topics.get(tp.topic), self._image.partition(tp)
                if place is not None and place.directory != followed.partition.directory.name and topic and row:
                    self._place(tp, topic, row, touched)
            self._assign(touched)

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        with self._lock:
            touched: set[Place] = set()
            for tp, followed in list(self._followed.items()):
                if followed.place is not None and followed.place.directory == directory.name:
                    self._drop(tp, touched)
            self._assign(touched)
