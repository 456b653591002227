"""The replicas of this node: those that are served, and those that are offline with the reason."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories import names, partition_metadata
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.directories.latch import Fault, fault_of, reason_of
from storage_node.errors import LogFlushError, RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.move import marker as markers
from storage_node.move.marker import Marker
from storage_node.partition import Partition
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)


class Replicas:
    """Which partition is served from where. Thread-safe; `served` may be read without a lock."""

    def __init__(self) -> None:
        self.served: dict[TopicPartition, Partition] = {}
        self.offline: dict[TopicPartition, str] = {}
        self.files: dict[TopicPartition, str] = {}
        """The file or folder that took a replica offline, absolute, where it is known."""
        self.retired: dict[TopicPartition, Partition] = {}
        """What was served before it went offline alone: its directory was online, its log may still be open."""
        self.changed: Callable[[], None] = lambda: None
        """Called, on any thread, after replicas went offline or came back."""
        self._directories: dict[TopicPartition, LogDirectory] = {}
        self._lock = threading.Lock()

    def add(self, partition: Partition) -> None:
        """Serve a partition from now on."""
        self.add_all([partition])

    def add_all(self, partitions: Iterable[Partition]) -> None:
        """Serve several at once."""
        with self._lock:
            added = {partition.tp: partition for partition in partitions}
            for tp in added:
                self._forget(tp)
            self.served = {**self.served, **added}
        self.changed()

    def set_offline(
        self, reasons: Mapping[TopicPartition, str], files: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Serve these no more; requests are told that their storage failed. `files`: what failed, where it is known."""
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

    def last_directory(self, tp: TopicPartition) -> LogDirectory | None:
        """The directory that a replica was served from before it went offline."""
        return self._directories.get(tp)

    def _forget(self, tp: TopicPartition) -> None:
        for known in (self.offline, self.files, self.retired, self._directories):
            known.pop(tp, None)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Forget replicas that were deleted."""
        gone = set(tps)
        with self._lock:
            self.served = {key: value for key, value in self.served.items() if key not in gone}
            for tp in gone:
                self._forget(tp)
        self.changed()

    def in_directory(self, directory: LogDirectory) -> list[Partition]:
        """The replicas that are served from a directory."""
        return [partition for partition in self.served.values() if partition.directory is directory]

    def sizes(self) -> list[tuple[LogDirectory, int]]:
        """Directory and bytes of every replica, for placing new ones."""
        return [(partition.directory, partition.log.size) for partition in self.served.values()]


@dataclass(frozen=True, slots=True)
class NewReplica:
    """A replica that is to be made; a `generation` above 0 is written down with it, and `created_epoch`, which is -1
    where all directories are online: see `Marker`.
    """

    tp: TopicPartition
    topic_id: str
    config: LogConfig
    generation: int = 0
    created_epoch: int = -1


def create_logs(directory: LogDirectory, wanted: Iterable[NewReplica]) -> list[tuple[TopicPartition, str, Log]]:
    """Make new, empty logs in one directory, durable when this returns; runs in the directory's pool.

    Answers (partition, topic id, log); what cannot be made for reasons of its own (something of that name stands there,
    the disk is full) is left out. Raises StorageError.
    """
    directory.check_online()
    made = []
    for new in wanted:
        tp, topic_id, config = new.tp, new.topic_id, new.config
        path = directory.path / names.replica_name(tp)
        ours = False
        try:
            _mkdir(directory, path)
            ours = True
            if new.generation or new.created_epoch >= 0:
                markers.write(path, _marker(new, directory))
            if topic_id:
                partition_metadata.write(path, topic_id, directory=directory.name)
            made.append((tp, topic_id, Log.open(path, tp, config, directory=directory.name, clean=True)))
        except (RequestRefused, StorageError) as error:
            if isinstance(error, StorageError) and fault_of(error) is Fault.DISK:
                raise
            # What is wrong with one name, or no room for it, is no reason to do without the others.
            log.error("%s cannot be created in %s: %s", tp, directory.path, reason_of(error))
            if ours:
                _unmake(path)
    if made:
        with io_errors(directory.name, "flushing the names of new replicas", LogFlushError):
            fsync_dir(directory.path)
    return made


def _marker(new: NewReplica, directory: LogDirectory) -> Marker:
    """Says that this replica is newer than what a directory that failed may have of it."""
    return Marker(
        new.tp.topic,
        new.tp.partition,
        topic_id=new.topic_id,
        source_id=directory.id,
        generation=new.generation,
        created_epoch=new.created_epoch,
    )


def _mkdir(directory: LogDirectory, path: Path) -> None:
    with io_errors(directory.name, f"creating {path}"):
        try:
            with full_is_no_room():
                path.mkdir()
        except FileExistsError:
            # Left by a crash while it was made, before anything was written to it: the start would have served it else.
            if path.is_symlink() or not path.is_dir():
                raise RequestRefused(f"{path} is no directory; look at it and move it away") from None
            if any(entry.suffix == ".log" for entry in path.iterdir()):
                raise RequestRefused(f"{path} holds a log already; look at it and move it away") from None


def _unmake(path: Path) -> None:
    """Take away a replica's folder whose creation failed: it may be made elsewhere, and must not stand beside that one.

    Where even this fails, a start knows the folder by its having no segments.
    """
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
