"""Keep the replicas that a start left offline because its image did not explain what is on the disks.

A node whose disks could not store the newest image starts with the one before it: a folder may belong to a topic that
was created after that, or to one that has been deleted since. The start's own table decides about it again once a newer
image explains it. Until then, and whenever the disks are not readable, it stays as it is, and nothing is created in its
place. So does a replica whose records all lie below its log start offset: once another node leads and it is out of the
ISR, it is opened without them, and follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.lifecycle.start_up import Left, Started, take_up
from storage_node.log.config import LogConfig
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.publisher.host import UnresolvedHost
from storage_node.publisher.roles import Roles
from storage_node.replication import lost_replicas

log = logging.getLogger(__name__)


class Unresolved:
    """The unresolved replicas. Used by one thread at a time, the one that applies an image."""

    def __init__(self, node: UnresolvedHost, roles: Roles, result: Callable[[Future[Any], LogDirectory], Any]) -> None:
        """Create it; `result` returns the result of a job in a directory's pool, or raises StorageError once that
        directory is given up.
        """
        self._node = node
        self._roles = roles
        self._result = result
        self._left: dict[TopicPartition, Left] = {}

    def add(self, left: Mapping[TopicPartition, Left]) -> None:
        """Add replicas that a start, or a later decision, did not serve."""
        self._left.update(left)

    def __contains__(self, tp: object) -> bool:
        """Return whether folders of known topics await an image that explains them."""
        left = self._left.get(tp) if isinstance(tp, TopicPartition) else None
        return left is not None and bool(left.topic_ids)

    def stranger(self, tp: TopicPartition) -> bool:
        """Return whether they belong to another topic than the metadata has had under that name."""
        left = self._left.get(tp)
        return left is not None and left.stranger

    def decide(self, image: ClusterImage, defaults: LogConfig) -> bool:
        """Serve, or delete, what this image explains; return whether there was any."""
        served = self._node.replicas.served
        self._left = {tp: left for tp, left in self._left.items() if tp not in served}
        # Everything of a deleted topic is deleted, wherever it is; where a topic stays, a missing directory may have
        # the newer replica.
        missing = self._node.dirs.missing_ids()
        gone = [tp for tp, left in self._left.items() if left.topic_ids and left.topic_ids.issubset(image.gone)]
        kept = [tp for tp, left in self._left.items() if not missing and _explained(image, tp, left)]
        taken = [tp for tp, left in self._left.items() if left.elsewhere(image.partition(tp), self._node.id)]
        elsewhere = [tp for tp, left in self._left.items() if left.beyond and self._elsewhere(image, tp)]
        known = {*gone, *kept, *taken, *elsewhere}
        started = self._look(known, image, defaults) if known else None
        if started is None:
            return False
        absent = {plan.tp for plan in started.plans} - {partition.tp for partition in started.partitions}
        # (What was taken away and is not found is in a directory that has failed since: its next start decides.)
        absent = {*gone, *({*taken, *absent} - started.offline.keys())}
        for tp in {*gone, *taken, *(plan.tp for plan in started.plans)}:
            del self._left[tp]
        self._node.replicas.remove(absent)
        self._node.partition_epochs.forget(absent)
        self._node.serve_opened(started)
        return True

    def _elsewhere(self, image: ClusterImage, tp: TopicPartition) -> bool:
        """Return whether another node has the records of a replica here, so that it may be opened without its own."""
        row, node = image.partition(tp), self._node
        missing = node.dirs.missing_ids()
        return row is not None and not lost_replicas.why_not(
            row, node.id, registered=self._roles.registered, missing=missing
        )

    def _look(self, tps: Collection[TopicPartition], image: ClusterImage, defaults: LogConfig) -> Started | None:
        names, registered = ", ".join(map(str, sorted(tps))), self._roles.registered
        log.info("%s: the metadata explains now what is on the disks", names)
        try:
            return take_up(self._node.dirs, tps, image, self._node.id, defaults, self._run, registered=registered)
        except StorageError as error:
            log.error("%s: offline as before, the next image decides: %s", names, error)
            return None

    def _run(self, directory: LogDirectory, work: Callable[[], Any]) -> Any:
        return self._result(directory.submit(work), directory)


def _explained(image: ClusterImage, tp: TopicPartition, left: Left) -> bool:
    """Return whether the image adds information, and shows of every topic id whether it is this topic's or deleted."""
    topic = image.topics.get(tp.topic)
    rest = left.topic_ids.difference(image.gone)
    return topic is not None and rest == {topic.id} and (left.stranger or rest != left.topic_ids)
