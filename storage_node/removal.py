"""Replicas that go from this node: those of deleted topics, and those that the metadata has on other nodes now.

Nothing is deleted for being unknown: a topic must be listed as gone, by its id; a partition of a topic that is known,
by its id, must have a row that does not name this node and is newer than the last one that did.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, RequestRefused, StorageError
from storage_node.metadata import ClusterImage, PartitionImage
from storage_node.move.marker import Reason
from storage_node.partition import Partition
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK = 0.2  # seconds between two looks at whether a directory that is waited for has failed
ANSWER = 5.0  # seconds for a health check, once something has not come to an end
ROUNDS = 3  # how many times log.dir.failure.timeout.ms a disk may take that answers meanwhile


class Removal:
    """Blocking; called for one image at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reported: set[TopicPartition] = set()

    def delete_gone(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Delete what topics that are gone have here."""
        node = self._node
        gone = [part for part in node.replicas.served.values() if part.topic_id and part.topic_id in image.gone]
        for partition in gone:
            node.fetchers.forget(partition.tp)
            partition.delete()
        self._discard_all(gone, Reason.TOPIC)
        node.replicas.remove(partition.tp for partition in gone)
        node.held.forget(partition.tp for partition in gone)
        self._forget_offline(image, before)

    def take_away(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Delete replicas of partitions that other nodes hold now; what else is not ours is left, and reported once.

        Topics that are the same as `before` are passed over.
        """
        node = self._node
        known = before.topics if before is not None else {}
        taken: list[Partition] = []
        for tp, partition in node.replicas.served.items():
            topic = image.topics.get(tp.topic)
            if topic is None or topic is known.get(tp.topic) or topic.id != partition.topic_id:
                continue
            row = self._elsewhere(image, tp)
            if row is None:
                continue
            if node.held.taken_away(tp, partition.topic_id, row):
                # Not the leader any more before it is unknown here: clients are sent to the one that leads now.
                brokers, age = node.isr.brokers, image.generation
                if partition.assign(row, partition.topic_id, node.id, brokers, generation=age):
                    taken.append(partition)
            elif tp not in self._reported:
                self._reported.add(tp)
                log.warning(
                    "%s in %s is left alone: the metadata has it on nodes %s, and it is not known since when it is not "
                    "to be here",
                    tp, partition.directory.path, ", ".join(map(str, row.replicas)),
                )  # fmt: skip
        for partition in taken:
            log.info("%s goes from %s: other nodes hold it now", partition.tp, partition.directory.path)
            node.fetchers.forget(partition.tp)
        node.replicas.remove(partition.tp for partition in taken)
        for partition in taken:
            partition.delete()
        self._discard_all(taken, Reason.REASSIGNED)
        node.held.forget(partition.tp for partition in taken)
        self._reported.difference_update(partition.tp for partition in taken)
        lost = []
        for tp in list(node.replicas.offline):
            row = self._elsewhere(image, tp)
            if node.images.undecided.stranger(tp):
                continue  # what its directory remembers is of another topic, which may come yet
            if row is not None and node.held.taken_away(tp, image.topics[tp.topic].id, row):
                lost.append(tp)  # the start that sees it again takes it away, by what its directory remembers
        self._abandon(lost, Reason.REASSIGNED)

    def _elsewhere(self, image: ClusterImage, tp: TopicPartition) -> PartitionImage | None:
        """The row of a partition that is known and not this node's."""
        row = image.partition(tp)
        return row if row is not None and self._node.id not in row.replicas else None

    def _discard_all(self, gone: Sequence[Partition], reason: Reason) -> None:
        node = self._node
        stuck = self._cancel_moves(gone, reason)
        jobs: list[tuple[Partition, Future[None]]] = []
        for partition in gone:
            if partition.tp in stuck:
                # Its move is in the hands of a disk that does not answer: whoever waits for it must not be the other's.
                threading.Thread(
                    target=self._discard_late, args=(partition, reason), name="discard", daemon=True
                ).start()
                continue
            try:
                job = partition.directory.for_image(self._discard, partition, reason)
            except StorageError:
                continue  # offline: the start that sees the directory again finds that it is to go
            jobs.append((partition, job))
        for partition, job in jobs:
            try:
                self.result(job, partition.directory)
            except StorageError as error:
                node.storage_failed(error)
            except RequestRefused as error:
                log.error("%s could not be deleted: %s", partition.tp, error)

    def _discard(self, partition: Partition, reason: Reason) -> None:
        self._node.engine.discard(partition.tp, reason, partition)

    def _discard_late(self, partition: Partition, reason: Reason) -> None:
        """Waits as long as the disk takes; what it does not come to is left to a start, which finds what is to go."""
        try:
            self._node.engine.discard(partition.tp, reason, partition)
        except StorageError as error:
            self._node.storage_failed(error)
        except RequestRefused as error:
            log.info("%s is left to the next start: %s", partition.tp, error)

    def _cancel_moves(self, gone: Sequence[Partition], reason: Reason) -> set[TopicPartition]:
        """End the moves of partitions that go, each in its target's background, so that a target that hangs holds up
        nobody else's work; answers those that could not be ended.
        """
        engine = self._node.engine
        jobs: list[tuple[Partition, LogDirectory, Future[None]]] = []
        stuck: set[TopicPartition] = set()
        for partition in gone:
            status = engine.status(partition.tp)
            target = self._node.dirs.by_path(status.directory) if status is not None and status.directory else None
            if target is None or target is partition.directory or not target.online:
                continue  # none, or one that `discard` ends without touching the target
            with contextlib.suppress(StorageError):
                jobs.append((partition, target, target.for_image(engine.abandon, partition.tp, reason)))
        for partition, target, job in jobs:
            try:
                self._wait(job, (target, partition.directory))
            except StorageError as error:
                self._node.storage_failed(error)
            except TimeoutError:
                stuck.add(partition.tp)
            except RequestRefused as error:
                log.error("the move of %s could not be ended: %s", partition.tp, error)
        return stuck

    def _forget_offline(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Replicas of deleted topics that cannot be reached go from memory, and their copies on good disks with them.

        A topic of the same name may be there already: it is another one, and gets a replica of its own.
        """
        node = self._node
        names = set(image.gone.values()) - set(image.topics)
        if before is not None:
            names |= {topic.name for topic in before.topics.values() if topic.id in image.gone}
        lost = [tp for tp in list(node.replicas.offline) if tp.topic in names and tp not in node.images.undecided]
        self._abandon(lost, Reason.TOPIC)

    def _abandon(self, lost: Sequence[TopicPartition], reason: Reason) -> None:
        """Replicas that cannot be reached go from memory, and their copies on good disks with them."""
        node = self._node
        jobs: list[tuple[LogDirectory, Future[None]]] = []
        for tp in lost:
            status = node.engine.status(tp)
            target = node.dirs.by_path(status.directory) if status is not None and status.directory else None
            if target is not None and target.online:
                try:
                    jobs.append((target, target.for_image(node.engine.abandon, tp, reason)))
                    continue
                except StorageError as error:
                    node.storage_failed(error)
            try:
                node.engine.abandon(tp, reason)
            except StorageError as error:
                node.storage_failed(error)
            except RequestRefused as error:
                log.info("the move of %s is left to the next start: %s", tp, error)
        for directory, job in jobs:
            try:
                self.result(job, directory)
            except StorageError as error:
                node.storage_failed(error)
            except RequestRefused as error:
                log.error("a copy of what goes from here is left to the next start: %s", error)
        node.replicas.remove(lost)
        node.held.forget(lost)

    def result(self, job: Future[T], directory: LogDirectory) -> T:
        """What a directory's pool made; one that hangs is taken offline, so that the others go on.

        A disk that answers meanwhile is slow, or has much to do: it gets `ROUNDS` times as long. One that is offline is
        not waited for: what stands behind a call that hangs there never ends.
        """
        seconds = self._node.config.log_dir_failure_timeout_ms / 1000
        for number in range(1, ROUNDS + 1):
            for pause in health.waits(seconds, LOOK):
                if wait([job], pause if directory.online else 0).done:
                    return job.result()
                if not directory.online:
                    raise LogDirectoryOffline(directory.name, "applying a cluster image")
            if health.silent([directory], min(seconds, ANSWER)):
                break
            log.warning("applying a cluster image in %s has taken %g s: it is slow", directory.name, number * seconds)
        directory.fail(f"applying a cluster image there did not end within {number * seconds:g} s: the disk hangs")
        raise LogDirectoryOffline(directory.name, "applying a cluster image")

    def _wait(self, job: Future[T], directories: Sequence[LogDirectory]) -> T:
        """The result of what touches several directories; those of them that hang are taken offline.

        Raises TimeoutError when it does not come.
        """
        seconds = self._node.config.log_dir_failure_timeout_ms / 1000
        for pause in health.waits(seconds, LOOK):
            if not all(directory.online for directory in directories):
                break
            if wait([job], pause).done:
                return job.result()
        for directory in health.silent(directories, min(seconds, ANSWER)):
            directory.fail(f"it did not answer within {seconds:g} s: the disk hangs")
        return job.result(LOOK)
