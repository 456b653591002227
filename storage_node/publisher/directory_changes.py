"""Change the log directories of a running node on the operator's command: one comes back, is replaced, added, removed.

One change at a time. Each is repeatable: what is done already is done.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage_node.config.node_config import NodeConfig
from storage_node.directories.directory import LogDirectory
from storage_node.directories.image_store import StoredImage
from storage_node.directories.io_faults import reason_of
from storage_node.directories.layout import normalise
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import LogDirNotFound, RequestRefused
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.lifecycle.directory_history import DirectoryHistory, Event, entry_row
from storage_node.lifecycle.failures import Failures, assigned
from storage_node.log.config import LogConfig
from storage_node.metadata.cache import MetadataCache
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.move.engine import MoveEngine
from storage_node.partitions.registry import Replicas
from storage_node.ports import Controller
from storage_node.publisher.metadata_publisher import MetadataPublisher
from storage_node.publisher.returning import Result, Returned, take_in
from storage_node.replicas.boot import scan
from storage_node.replicas.preferred_log_dirs import PreferredLogDirs
from storage_node.replication.partition_epoch_checkpoint import PartitionEpochCheckpoint

log = logging.getLogger(__name__)


class DirectoryHost(Protocol):
    """The node, as the changes of its log directories use it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def controller(self) -> Controller | None: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def engine(self) -> MoveEngine: ...

    @property
    def partition_epochs(self) -> PartitionEpochCheckpoint: ...

    @property
    def preferred_log_dirs(self) -> PreferredLogDirs: ...

    @property
    def metadata_publisher(self) -> MetadataPublisher: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def history(self) -> DirectoryHistory: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    def watch(self, directory: LogDirectory) -> None:
        """Handle the failures of a directory from now on, and find them by health checks."""
        ...

    def unwatch(self, directory: LogDirectory) -> None:
        """End the health checks of a directory that is removed."""
        ...


#: Seconds for the controller to record a failure that is reported; it takes one or two.
RECORD_PATIENCE = 10.0
_LOOK = 0.05
_EVENTS = {"reopened": Event.ONLINE, "replaced": Event.REPLACED, "added": Event.ADDED}


@dataclass(slots=True)
class DirectoryChanges:
    """The changes. Calls block; thread-safe. Results are for the operator: the directory, and what was done."""

    node: DirectoryHost
    result: Result
    """Returns the result of a job in a directory's pool; raises StorageError once that directory is given up."""
    _one: threading.Lock = field(default_factory=threading.Lock)

    def bring_online(self, path: str) -> dict[str, Any]:
        """Take a directory back whose disk was repaired: check, lock and open it as a start does, and register it.

        Raises LogDirNotFound, and RequestRefused with what is still wrong; it then stays offline.
        """
        with self._one:
            before = self.node.dirs.by_path(path)
            if before.online:
                return self._row(before, "online")
            self._await_record(before)
            return self._take_in(self._open(before), before, "reopened")

    def replace(self, path: str) -> dict[str, Any]:
        """Format and use the disk at the path of an offline directory: what the former one held is lost by the
        operator's request, and its directory id is forgotten.

        Raises LogDirNotFound, and RequestRefused while the directory is online, is the one that failed, or is unusable.
        """
        with self._one:
            before = self.node.dirs.by_path(path)
            if before.online:
                raise RequestRefused(
                    f"log directory {before.path} of node {self.node.id} is online; only one that failed is replaced",
                    ErrorCode.INVALID_REQUEST,
                )
            self._await_record(before)
            return self._take_in(self._open(before, format=True), before, "replaced")

    def history(self, path: str) -> dict[str, Any]:
        """Return a directory's entries, oldest first, with what became of the replicas that each of them names.

        A path that the node has no longer, or not yet, has the entries of the past. Raises LogDirNotFound without any.
        """
        node, name = self.node, normalise(path)
        rows = [entry_row(entry) for entry in node.history.of(name)]
        for row in rows:
            row["became"] = [self._became(TopicPartition(topic, index)) for topic, index in row["replicas"]]
        try:
            now = node.dirs.by_path(path)
        except LogDirNotFound:
            if not rows:
                raise
            return {"path": name, "id": "", "state": "removed", "failure": None, "signs": {}, "entries": rows}
        return {
            "path": now.name,
            "id": now.id,
            "state": "online" if now.online else "offline",
            "failure": now.failure,
            "signs": now.signs() if now.online else {},
            "probe": {"seconds": now.latency.last, "usual": now.latency.usual},
            "entries": rows,
        }

    def _became(self, tp: TopicPartition) -> str:
        """Return where a partition is now, by this node's disks and metadata."""
        node = self.node
        served = node.replicas.served.get(tp)
        if served is not None:
            return f"in {served.directory.name}"
        row = node.metadata.image.partition(tp)
        if row is None:
            return "deleted"
        if node.id not in row.replicas:
            return f"on nodes {', '.join(map(str, row.replicas))}"
        return "offline, without another in-sync replica" if set(row.isr) <= {node.id} else "offline"

    def losses(self, path: str) -> dict[str, Any]:
        """Return what the metadata has in a directory: `replicas`, those `in_sync`, and `alone`, without another one in
        sync.
        """
        directory, image = self.node.dirs.by_path(path), self.node.metadata.image
        held = sorted(row.partition for row in assigned(image, self.node.id, directory.id)) if directory.id else []
        rows = {tp: set(row.isr) for tp in held if (row := image.partition(tp)) is not None}
        alone = [tp for tp, isr in rows.items() if isr <= {self.node.id}]
        return {
            "path": directory.name,
            "id": directory.id,
            "online": directory.online,
            "replicas": [str(tp) for tp in held],
            "in_sync": [str(tp) for tp, isr in rows.items() if self.node.id in isr],
            "alone": [str(tp) for tp in alone],
        }

    def add(self, path: str) -> dict[str, Any]:
        """Use another directory, which is created or formatted if it needs to be.

        Raises RequestRefused for a path that is unusable, or of a directory that is offline.
        """
        if not path.startswith("/"):
            raise RequestRefused(f"{path!r} is not an absolute path", ErrorCode.INVALID_REQUEST)
        if "," in path or "\n" in path or path != path.strip():
            raise RequestRefused(
                f"{path!r} cannot be a log directory: log.dirs is a list separated by commas, without spaces around "
                f"its entries; choose another path",
                ErrorCode.INVALID_REQUEST,
            )
        with self._one:
            try:
                known = self.node.dirs.by_path(path)
            except LogDirNotFound:
                pass
            else:
                if known.online:
                    return self._row(known, "online")
                raise RequestRefused(
                    f"log directory {known.path} is one of node {self.node.id} already, and offline "
                    f"({known.failure}); run: rehome dirs online {self.node.id} {shlex.quote(str(known.path))}",
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )
            config = self.node.config
            directory = self.node.dirs.open_new(
                normalise(path), threads=config.io_threads_per_dir, patience=config.log_dir_failure_timeout_ms / 1000
            )
            return self._take_in(directory, None, "added")

    def remove(self, path: str) -> dict[str, Any]:
        """Stop using a directory that holds nothing; its files are left.

        Raises RequestRefused while it is offline, the last one, or holds a replica, a copy or a deleted folder.
        """
        with self._one:
            directory = self.node.dirs.by_path(path)
            if not directory.online:
                raise RequestRefused(
                    f"log directory {directory.path} is offline, and what it holds is unknown; bring it online or "
                    f"replace it before it is removed",
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )
            self.node.metadata_publisher.between_images(lambda: self._take_out(directory))
            self.node.unwatch(directory)
            _close(directory)
            self._tell()
            self.node.history.add(directory, Event.REMOVED, "by the operator's request")
            log.info("log directory %s is no longer used", directory.path)
            return self._row(directory, "removed")

    def between_changes(self, work: Callable[[], None]) -> None:
        """Do something while no directory comes back, is replaced, added or removed."""
        with self._one:
            work()

    # Parts

    def _await_record(self, before: LogDirectory) -> None:
        """Wait until the controller has taken the directory's replicas out of the in-sync replicas, and other nodes
        lead. Raises RequestRefused if it has not.

        What the disk has lost, the other replicas would truncate: a replica that comes back must not lead in the
        leader epoch in which it failed, and must not count as in sync. Sole in-sync replicas stay what they are.
        """
        until = time.monotonic() + RECORD_PATIENCE
        while missing := self._in_sync(before):
            if time.monotonic() >= until:
                raise RequestRefused(
                    f"log directory {before.path} is not online: the controller has not recorded yet that it failed "
                    f"({min(missing)} is in sync on node {self.node.id}, by the metadata); request it again once it "
                    f"runs, see: rehome stack status",
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )
            time.sleep(_LOOK)

    def _in_sync(self, before: LogDirectory) -> set[TopicPartition]:
        """Return the replicas of an offline directory that are in sync, or lead, beside others, by the metadata."""
        node = self.node
        image = node.metadata.image
        held = {row.partition for row in assigned(image, node.id, before.id)} if before.id else set()
        held |= {tp for tp in list(node.replicas.offline) if node.replicas.last_directory(tp) is before}
        rows = ((tp, image.partition(tp)) for tp in held)
        return {tp for tp, row in rows if row is not None and node.id in row.isr and set(row.isr) != {node.id}}

    def _open(self, before: LogDirectory, *, format: bool = False) -> LogDirectory:
        config = self.node.config
        patience = config.log_dir_failure_timeout_ms / 1000
        return self.node.dirs.open_again(before, threads=config.io_threads_per_dir, patience=patience, format=format)

    def _take_in(self, directory: LogDirectory, before: LogDirectory | None, outcome: str) -> dict[str, Any]:
        node = self.node

        def decide(image: ClusterImage, defaults: LogConfig) -> Returned:
            self._put(directory, before)
            found = take_in(node, directory, before, image, defaults, self.result)
            for plan in found.beside:
                node.engine.resume(plan)
            return found

        try:
            left = node.metadata_publisher.take_in(decide).left
        except Exception as error:
            if directory not in node.dirs.directories:
                directory.close()
            else:
                directory.fail(f"what it holds could not be decided: {reason_of(error)}")
                _close(before)
            raise
        _close(before)
        image = node.metadata.image
        node.dirs.images.spread(StoredImage(*image.pair, image.encode()))
        self._tell()
        row = self._row(directory, outcome, left)
        event, held = _EVENTS[outcome], [part.tp for part in node.replicas.in_directory(directory)]
        node.history.add(directory, event, "by the operator's request", held=held)
        if not directory.online:  # It failed meanwhile, which was taken for the failure that it has returned from.
            node.history.add(directory, Event.FAILED, directory.failure or "", directory.evidence, held)
        log.info("log directory %s is %s, with %d replicas", directory.path, outcome, row["replicas"])
        return row

    def _put(self, directory: LogDirectory, before: LogDirectory | None) -> None:
        """Use a directory from now on, with everything that a start gives it."""
        node = self.node
        if before is not None:
            node.engine.let_go(before)
        node.dirs.put(directory, {before.id} - {directory.id, ""} if before is not None else ())
        node.watch(directory)
        self.result(directory.submit(node.partition_epochs.load, [directory]), directory)
        self.result(directory.submit(node.engine.add_directory, directory), directory)
        if before is not None:
            node.failures.healed(before.id)

    def _take_out(self, directory: LogDirectory) -> None:
        node = self.node
        if len(node.dirs.online()) < 2:
            raise RequestRefused(f"log directory {directory.path} is the last one of node {node.id} that is online")
        every = node.dirs.directories
        # From here on no replica or copy is created in it.
        node.dirs.drop(directory)
        try:
            seen, _ = self.result(directory.submit(scan.look, directory), directory)
            here = {row.partition for row in assigned(node.metadata.image, node.id, directory.id)}
            here |= {tp for tp, _ in seen}
            if here:
                raise RequestRefused(
                    f"log directory {directory.path} of node {node.id} still holds {len(here)} replicas, {min(here)} "
                    f"for example; move them to other directories first"
                )
            node.engine.remove_directory(directory)
        except BaseException:
            node.dirs.restore(every)
            raise
        node.dirs.forget(directory.id)

    def _tell(self) -> None:
        """Keep files in the directories that there are now, and register them with the controller."""
        self.node.preferred_log_dirs.directories_changed()
        self.node.groups.directories_changed()
        if self.node.controller is not None:
            self.node.controller.register_again()

    def _row(
        self, directory: LogDirectory, outcome: str, left: Mapping[TopicPartition, str] | None = None
    ) -> dict[str, Any]:
        return {
            "path": directory.name,
            "id": directory.id,
            "outcome": outcome,
            "replicas": len(self.node.replicas.in_directory(directory)),
            "left": {str(tp): why for tp, why in sorted((left or {}).items())},
            "log_dirs": [each.name for each in self.node.dirs.directories],
        }


def _close(directory: LogDirectory | None) -> None:
    """End the threads of a directory that is not used any more; a disk that hangs delays no caller."""
    if directory is not None:
        threading.Thread(target=directory.close, name=f"close-{directory.path.name}", daemon=True).start()
