"""Register the replicas of this node: those that are served, and those that are offline with the reason."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition

log = logging.getLogger(__name__)


class Replicas:
    """The served and the offline replicas. Thread-safe; `served` may be read without a lock."""

    def __init__(self) -> None:
        self.served: dict[TopicPartition, Partition] = {}
        self.offline: dict[TopicPartition, str] = {}
        self.files: dict[TopicPartition, str] = {}
        """The file or folder that took a replica offline, absolute, where it is known."""
        self.retired: dict[TopicPartition, Partition] = {}
        """Replicas that went offline alone: their directory was online, their log may still be open."""
        self.doomed: frozenset[TopicPartition] = frozenset()
        """Replicas that are offline until their folders are deleted."""
        self.changed: Callable[[], None] = lambda: None
        """Called, on any thread, after replicas went offline or online again."""
        self._directories: dict[TopicPartition, LogDirectory] = {}
        self._lock = threading.Lock()

    def add(self, partition: Partition) -> None:
        """Serve a partition from now on."""
        self.add_all([partition])

    def add_all(self, partitions: Iterable[Partition]) -> None:
        """Serve several partitions at once."""
        with self._lock:
            added = {partition.tp: partition for partition in partitions}
            for tp in added:
                self._forget(tp)
            self.served = {**self.served, **added}
        self.changed()

    def set_offline(
        self, reasons: Mapping[TopicPartition, str], files: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Stop serving these; requests get a storage error. `files`: what failed, where it is known."""
        if not reasons:
            return
        with self._lock:
            found = [(self.served[tp], reason) for tp, reason in reasons.items() if tp in self.served]
            self.served = {tp: partition for tp, partition in self.served.items() if tp not in reasons}
            self.offline.update(reasons)
            self.files.update(files or {})
            for partition, _ in found:
                self._directories[partition.tp] = partition.directory
                if partition.directory.online:
                    self.retired[partition.tp] = partition
        for partition, reason in found:
            partition.take_offline(reason)
        self.changed()

    def doom(self, tp: TopicPartition, partition: Partition | None, reason: str) -> None:
        """Take a replica offline that was removed, and whose folder is still to be deleted."""
        with self._lock:
            self.served = {key: value for key, value in self.served.items() if key != tp}
            self.offline[tp] = reason
            self.doomed |= {tp}
            if partition is not None:
                self.retired[tp] = partition
                self._directories[tp] = partition.directory
        self.changed()

    def spare(self, tp: TopicPartition) -> None:
        """Leave a replica offline whose deletion is decided again, once its directory is online."""
        with self._lock:
            self.doomed -= {tp}

    def last_directory(self, tp: TopicPartition) -> LogDirectory | None:
        """Return the directory that a replica was served from before it went offline."""
        return self._directories.get(tp)

    def _forget(self, tp: TopicPartition) -> None:
        for known in (self.offline, self.files, self.retired, self._directories):
            known.pop(tp, None)
        self.doomed -= {tp}

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Forget replicas that were deleted."""
        gone = set(tps)
        with self._lock:
            self.served = {key: value for key, value in self.served.items() if key not in gone}
            for tp in gone:
                self._forget(tp)
        self.changed()

    def in_online_directories(self) -> frozenset[TopicPartition]:
        """Return the replicas that are served from a directory that is online."""
        return frozenset(tp for tp, partition in self.served.items() if partition.directory.online)

    def in_directory(self, directory: LogDirectory) -> list[Partition]:
        """Return the replicas that are served from a directory."""
        return [partition for partition in self.served.values() if partition.directory is directory]

    def sizes(self) -> list[tuple[LogDirectory, int]]:
        """Return directory and bytes of every replica, for placing new ones."""
        return [(partition.directory, partition.log.size) for partition in self.served.values()]
