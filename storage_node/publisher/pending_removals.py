"""Delete replicas later whose folders could not be deleted when the metadata took them from this node.

Such a replica is offline with the reason, and `doomed`: nothing opens it or creates it until its folder is gone. Each
attempt has a thread of its own, so that a disk that hangs delays no image, and no other replica.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass

from storage_node.directories.errors import MalformedFile
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from storage_node.publisher.host import RemovalHost
from storage_node.replicas.marker import GOES, Reason

log = logging.getLogger(__name__)

#: Attempts at the same time.
AT_ONCE = 16


@dataclass(slots=True)
class _Pending:
    """A replica of one of these topics; `partition` is None where no start could open it."""

    topic_ids: Collection[str]
    reason: Reason
    partition: Partition | None
    attempt: threading.Thread | None = None

    @property
    def under_way(self) -> bool:
        return self.attempt is not None and self.attempt.is_alive()


class PendingRemovals:
    """The replicas that are still to be deleted. Thread-safe; no call waits for a disk."""

    def __init__(self, node: RemovalHost) -> None:
        self._node = node
        self._pending: dict[TopicPartition, _Pending] = {}
        self._lock = threading.Lock()
        self._freed = False
        """Whether a replica was deleted since the last `retry`: its name is free for a new one."""

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._pending

    def keep(self, tp: TopicPartition, topic_ids: Collection[str], reason: Reason, partition: Partition | None) -> None:
        """Take a replica offline until it is deleted."""
        with self._lock:
            self._pending[tp] = _Pending(topic_ids, reason, partition)
        self._node.replicas.doom(tp, partition, f"{GOES[reason]}; its folder could not be deleted yet")

    def retry(self) -> bool:
        """Begin the attempts that are due; return whether a replica was deleted since the last call."""
        with self._lock:
            freed, self._freed = self._freed, False
        self.begin()
        return freed

    def begin(self) -> None:
        """Begin the attempts that are due."""
        with self._lock:
            running = sum(one.under_way for one in self._pending.values())
            for tp, one in list(self._pending.items()):
                if one.under_way:
                    continue
                if one.partition is not None and not one.partition.directory.online:
                    # The start that finds the directory again, or its return, finds that it must be deleted.
                    del self._pending[tp]
                    self._node.replicas.spare(tp)
                elif running < AT_ONCE:
                    running += 1
                    one.attempt = threading.Thread(target=self._try, args=(tp, one), name=f"remove-{tp}", daemon=True)
                    one.attempt.start()

    def _try(self, tp: TopicPartition, one: _Pending) -> None:
        node = self._node
        try:
            if one.partition is not None:
                with one.partition.directory.working():
                    node.engine.discard(tp, one.reason, one.partition)
            else:
                for directory in node.dirs.online():
                    with directory.working():
                        node.engine.discard_unopened(tp, one.reason, directory, one.topic_ids)
        except StorageError as error:
            node.storage_failed(error)
            log.info("%s could not be deleted: %s", tp, error)
        except (RequestRefused, MalformedFile) as error:
            log.info("%s could not be deleted: %s", tp, error)
        else:
            node.replicas.remove([tp])
            node.partition_epochs.forget([tp])
            with self._lock:
                del self._pending[tp]
                self._freed = True
