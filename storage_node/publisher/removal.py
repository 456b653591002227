"""Delete replicas from this node: those of deleted topics, and those that the metadata has reassigned to other nodes.

Nothing is deleted for being unknown: a topic must be listed as gone, by its id; a partition of a topic that is known,
by its id, must have a row that does not name this node and is newer than the last one that did.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.errors import LogDirectoryOffline, LogDirNotFound, RequestRefused, StorageError
from storage_node.model.evidence import Evidence, Verdict
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage
from storage_node.partitions.partition import Partition
from storage_node.publisher.host import RemovalHost
from storage_node.publisher.pending_removals import PendingRemovals
from storage_node.replicas.marker import Reason

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK = 0.2  # seconds between two checks of whether a directory that is waited for has failed
ANSWER = 5.0  # seconds for a health check, once a job has not ended in time
ROUNDS = 3  # how many times log.dir.failure.timeout.ms a disk may take that passes health checks meanwhile


class Removal:
    """The remover of replicas; its calls block, for one image at a time."""

    def __init__(self, node: RemovalHost) -> None:
        self._node = node
        self._reported: set[TopicPartition] = set()
        self.pending = PendingRemovals(node)
        """Replicas that could not be deleted, and are offline until they are."""

    def delete_gone(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Delete this node's replicas of deleted topics."""
        node = self._node
        gone = [part for part in node.replicas.served.values() if part.topic_id and part.topic_id in image.gone]
        for partition in gone:
            node.replica_fetchers.forget(partition.tp)
            partition.delete()
        # Until their folders are renamed, the replicas respond that the topic is unknown: the image is published later.
        self._discard_all(gone, Reason.TOPIC)
        node.replicas.remove(partition.tp for partition in gone if partition.tp not in self.pending)
        self._forget_offline(image, before)

    def take_away(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Delete replicas of partitions that other nodes hold now; others that are not this node's are left, and logged
        once.

        Topics that are the same as in `before` are skipped.
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
            if node.partition_epochs.reassigned(tp, partition.topic_id, row):
                # The replica stops leading before it is removed: until then clients are redirected to the new leader.
                brokers, age = node.alter_partition_manager.brokers, image.cluster_generation
                if partition.assign(row, partition.topic_id, node.id, brokers, cluster_generation=age):
                    taken.append(partition)
            elif tp not in self._reported:
                self._reported.add(tp)
                log.warning(
                    "%s in %s is kept: the metadata has it on nodes %s, in a partition epoch that is not above "
                    "the one under which this node held it",
                    tp, partition.directory.path, ", ".join(map(str, row.replicas)),
                )  # fmt: skip
        for partition in taken:
            log.info("%s goes from %s: other nodes hold it now", partition.tp, partition.directory.path)
            node.replica_fetchers.forget(partition.tp)
        node.replicas.remove(partition.tp for partition in taken)
        for partition in taken:
            partition.delete()
        self._discard_all(taken, Reason.REASSIGNED)
        self._reported.difference_update(partition.tp for partition in taken)
        unavailable: dict[TopicPartition, frozenset[str]] = {}
        for tp in list(node.replicas.offline):
            row = self._elsewhere(image, tp)
            if tp in self.pending:
                continue
            if node.metadata_publisher.unresolved.stranger(tp):
                continue  # its directory's checkpoint is about another topic, which the metadata may have yet
            topic_id = image.topics[tp.topic].id if row is not None else ""
            if row is not None and node.partition_epochs.reassigned(tp, topic_id, row):
                unavailable[tp] = frozenset({topic_id})
        self._abandon(unavailable, Reason.REASSIGNED)

    def _elsewhere(self, image: ClusterImage, tp: TopicPartition) -> PartitionImage | None:
        """Return the row of a known partition that is not assigned to this node."""
        row = image.partition(tp)
        return row if row is not None and self._node.id not in row.replicas else None

    def _discard_all(self, gone: Sequence[Partition], reason: Reason) -> None:
        """Delete replicas that were removed. Those whose folders cannot be renamed now are pending from here on."""
        node = self._node
        stuck = self._cancel_moves(gone, reason)
        jobs: list[tuple[Partition, Future[None]]] = []
        kept: list[Partition] = []
        for partition in gone:
            if partition.tp in stuck:
                # Its move waits for a disk that hangs: the directory's thread must not wait for it too.
                kept.append(partition)
                continue
            try:
                job = partition.directory.for_image(self._discard, partition, reason)
            except StorageError:
                continue  # offline: the start that finds the directory again finds that the replica must be deleted
            jobs.append((partition, job))
        kept += [partition for partition, job in jobs if not self._done(partition.tp, job, partition.directory)]
        for partition in kept:
            self.pending.keep(partition.tp, (partition.topic_id,), reason, partition)
        node.partition_epochs.forget(partition.tp for partition in gone if partition.tp not in self.pending)
        if stuck:
            self.pending.begin()

    def _done(self, tp: TopicPartition, job: Future[Any], directory: LogDirectory) -> bool:
        """Wait for a deletion; return False if the folder may still have its name in a directory that is online."""
        try:
            self.result(job, directory)
            return True
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("%s could not be deleted: %s", tp, error)
        except (RequestRefused, MalformedFile) as error:
            log.error("%s could not be deleted: %s", tp, error)
        return not directory.online

    def _discard(self, partition: Partition, reason: Reason) -> None:
        self._node.engine.discard(partition.tp, reason, partition)

    def _cancel_moves(self, gone: Sequence[Partition], reason: Reason) -> set[TopicPartition]:
        """End the moves of partitions that are deleted, each in its target's background; return those that did not end.

        So a target that hangs delays no other directory.
        """
        engine = self._node.engine
        jobs: list[tuple[Partition, LogDirectory, Future[None]]] = []
        stuck: set[TopicPartition] = set()
        for partition in gone:
            target = self._target(partition.tp)
            if target is None or target is partition.directory or not target.online:
                continue  # no move, or one that `discard` ends without the target
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

    def _target(self, tp: TopicPartition) -> LogDirectory | None:
        """Return the target of a partition's move; None without one. That of an ended move may be removed by now."""
        status = self._node.engine.status(tp)
        if status is None or not status.directory:
            return None
        with contextlib.suppress(LogDirNotFound):
            return self._node.dirs.by_path(status.directory)
        return None

    def _forget_offline(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Forget unreachable replicas of deleted topics, and discard their copies on good disks.

        A topic of the same name may exist already: it is another one, and gets a replica of its own.
        """
        node = self._node
        names = set(image.gone.values()) - set(image.topics)
        if before is not None:
            names |= {topic.name for topic in before.topics.values() if topic.id in image.gone}
        ids = frozenset(image.gone)
        unavailable = {
            tp: ids
            for tp in list(node.replicas.offline)
            if tp not in self.pending
            and tp not in node.metadata_publisher.unresolved
            and (tp.topic in names or ((part := node.replicas.retired.get(tp)) is not None and part.topic_id in ids))
        }
        self._abandon(unavailable, Reason.TOPIC)

    def _abandon(self, unavailable: Mapping[TopicPartition, Collection[str]], reason: Reason) -> None:
        """Forget replicas that are offline, of these topics: delete what is of them on good disks, copies included.

        What is on a disk that is offline, the start that finds it again deletes, by its directory's checkpoint.
        """
        node = self._node
        jobs: list[tuple[LogDirectory, Future[None]]] = []
        for tp in unavailable:
            target = self._target(tp)
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
                log.error("the copy of a removed replica is left to the next start: %s", error)
        kept = self._discard_offline(unavailable, reason)
        for tp in kept:
            self.pending.keep(tp, unavailable[tp], reason, node.replicas.retired.get(tp))
        gone = unavailable.keys() - kept
        node.replicas.remove(gone)
        node.partition_epochs.forget(gone)

    def _discard_offline(
        self, unavailable: Mapping[TopicPartition, Collection[str]], reason: Reason
    ) -> set[TopicPartition]:
        """Delete the folders of offline replicas in directories that are online; return those that are still there."""
        node = self._node
        jobs: list[tuple[TopicPartition, LogDirectory, Future[Any]]] = []
        for tp, topic_ids in unavailable.items():
            partition = node.replicas.retired.get(tp)
            if partition is not None and partition.directory.online and partition.topic_id in topic_ids:
                with contextlib.suppress(StorageError):
                    job: Future[Any] = partition.directory.for_image(self._discard, partition, reason)
                    jobs.append((tp, partition.directory, job))
                continue
            for directory in node.dirs.online():
                with contextlib.suppress(StorageError):
                    job = directory.for_image(node.engine.discard_unopened, tp, reason, directory, topic_ids)
                    jobs.append((tp, directory, job))
        return {tp for tp, directory, job in jobs if not self._done(tp, job, directory)}

    def result(self, job: Future[T], directory: LogDirectory, progress: Callable[[], int] = int) -> T:
        """Return the result of a directory's job; a directory that hangs is taken offline, so that the others continue.

        A disk that passes health checks meanwhile is slow, or has much to do: it gets `ROUNDS` times as long, and that
        again whenever `progress` is another number. A directory that is offline is not waited for: a job behind a call
        that hangs there never ends.
        """
        seconds = self._node.config.log_dir_failure_timeout_ms / 1000
        number, rounds, before = 0, 0, progress()
        while rounds < ROUNDS:
            number, rounds = number + 1, rounds + 1
            for pause in health.waits(seconds, LOOK):
                if wait([job], pause if directory.online else 0).done:
                    return job.result()
                if not directory.online:
                    raise LogDirectoryOffline(directory.name, "applying a cluster image")
            if health.silent([directory], min(seconds, ANSWER)):
                break
            log.warning("applying a cluster image in %s has taken %g s: it is slow", directory.name, number * seconds)
            if (now := progress()) != before:
                before, rounds = now, 0
        text = f"applying a cluster image there did not end within {number * seconds:g} s: the disk hangs"
        directory.fail(text, Evidence(Verdict.HUNG, "applying a cluster image", directory.name, time=time.time()))
        raise LogDirectoryOffline(directory.name, "applying a cluster image")

    def _wait(self, job: Future[T], directories: Sequence[LogDirectory]) -> T:
        """Return the result of a job that uses several directories; those that hang are taken offline.

        Raises TimeoutError when the job does not end.
        """
        seconds = self._node.config.log_dir_failure_timeout_ms / 1000
        for pause in health.waits(seconds, LOOK):
            if not all(directory.online for directory in directories):
                break
            if wait([job], pause).done:
                return job.result()
        for directory in health.silent(directories, min(seconds, ANSWER)):
            evidence = Evidence(Verdict.HUNG, "the health check", directory.name, time=time.time())
            directory.fail(f"it did not respond within {seconds:g} s: the disk hangs", evidence)
        return job.result(LOOK)
