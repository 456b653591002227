"""All log directories of the node: opened and locked at the start, asked where a new replica goes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from storage_node.directories import (
    clean_shutdown,
    placement,
)
from storage_node.directories.atomic import io_errors
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.directory import LogDirectory
from storage_node.directories.formatting import prepare
from storage_node.directories.image_store import ImageStore
from storage_node.directories.layout import normalise
from storage_node.directories.lock import DirectoryLock
from storage_node.errors import LogDirectoryOffline, LogDirNotFound, MetadataIOError, StorageError

__all__ = ["DirectoryManager"]

_log = logging.getLogger(__name__)

#: Seconds that all directories together have to let go of their threads and locks, and one that is offline.
_CLOSING: Final = 30.0
_CLOSING_OFFLINE: Final = 1.0
_CLOSING_BESIDE: Final = 5.0  # while another is offline: a thread of this one may hang in that one


class DirectoryManager:
    """The node's log directories, in the order of log.dirs; the first is the metadata directory."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        cluster_id: str,
        node_id: int,
        directory_ids: Sequence[str],
        formatted: Sequence[str] = (),
        metadata_lock: DirectoryLock | None = None,
    ) -> None:
        self.directories = tuple(directories)
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.directory_ids = tuple(directory_ids)
        self.formatted = tuple(formatted)
        self._metadata_lock = metadata_lock
        self.images = ImageStore(self.directories)
        self._by_path = {directory.name: directory for directory in self.directories}

    @classmethod
    def open(
        cls,
        paths: Sequence[str | Path],
        *,
        node_id: int,
        cluster_id: str | None = None,
        threads: int = 2,
        patience: float | None = None,
        metadata: str = "",
    ) -> DirectoryManager:
        """Check log.dirs, take the locks, bring every meta.properties in step. Directories in error are there, offline.

        `cluster_id` is checked where it is given, else the files tell it; `threads` are the I/O threads per directory;
        `patience`: seconds that a directory has to answer, or it counts as one that hangs (None: as many as it likes);
        `metadata`: a metadata.log.dir that is none of log.dirs, which holds nothing but its meta.properties.
        Raises StartRefused (also as DirectoryInUse) with the sentence for the operator.
        """
        prepared = prepare(paths, node_id=node_id, cluster_id=cluster_id, patience=patience, metadata=metadata)
        ids = dict(prepared.plan.ids)
        beside = normalise(metadata) if metadata else ""
        failures = dict(prepared.plan.offline)
        directories = [
            LogDirectory(
                path,
                ids.get(path, ""),
                threads=threads,
                failure=failures.get(path),
                lock=prepared.locks.get(path),
            )
            for path in map(normalise, paths)
        ]
        return cls(
            directories,
            cluster_id=prepared.plan.cluster_id,
            node_id=node_id,
            directory_ids=[id for id in prepared.plan.directory_ids if id != ids.get(beside)],
            formatted=prepared.plan.formatted,
            metadata_lock=prepared.locks.get(beside),
        )

    @property
    def metadata_directory(self) -> LogDirectory:
        return self.directories[0]

    def online(self) -> tuple[LogDirectory, ...]:
        """The directories that are online now, in the order of log.dirs."""
        return tuple(directory for directory in self.directories if directory.online)

    def missing_ids(self) -> frozenset[str]:
        """Known directory ids that no directory online now has: disks that failed, are not mounted or were replaced."""
        return frozenset(self.directory_ids) - {directory.id for directory in self.online()}

    def by_path(self, path: str | Path) -> LogDirectory:
        """The directory with this path of log.dirs (a trailing slash does not matter, a symlink to it is another path).

        Raises LogDirNotFound.
        """
        text = str(path)
        found = self._by_path.get(normalise(text)) if Path(text).is_absolute() else None
        if found is None:
            raise LogDirNotFound(
                f"{text} is not a log directory of node {self.node_id}; its log.dirs are {', '.join(self._by_path)}"
            )
        return found

    def by_id(self, directory_id: str) -> LogDirectory | None:
        """The directory with this directory id, None when it is not one of this node's (or could not be read)."""
        return next((d for d in self.directories if d.id and d.id == directory_id), None)

    def on_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` once for each directory that fails, or already has."""
        for directory in self.directories:
            directory.on_failure(listener)

    def handle(self, error: StorageError) -> bool:
        """The one place for storage errors: takes the directory that the error names offline if the error says so."""
        directory = self._by_path.get(error.directory)
        return directory.fail_on(error) if directory is not None else False

    def take_clean_shutdowns(self) -> dict[str, CleanShutdown]:
        """Read and remove the clean-shutdown markers, by path; where that fails, the directory goes offline."""
        taken: dict[str, CleanShutdown] = {}
        for directory in self.directories:
            taken[directory.name] = clean_shutdown.NOT_CLEAN
            if directory.online:
                try:
                    taken[directory.name] = directory.take_clean_shutdown()
                except MetadataIOError as exc:
                    directory.fail_on(exc)
        return taken

    def flush_found_names(self) -> None:
        """Have on the disk what the directories show; where that fails, the directory goes offline.

        A process that was killed between a rename and its flush leaves a name that a power loss takes back. A start
        decides by what all directories show together, and writes in one what a name in another allows: a copy becomes
        the replica since its source has a new name. Would that one get its old name back, the next start without the
        copy's disk would take it for the replica, and never take the records that the copy has got since.
        """
        for directory in self.online():
            try:
                with io_errors(directory.name, "flushing its names"):
                    directory.flush_found_names()
            except MetadataIOError as exc:
                directory.fail_on(exc)

    def place(
        self, replicas: Iterable[tuple[LogDirectory, int]], count: int = 1, avoid: Collection[str] = ()
    ) -> list[LogDirectory]:
        """Where `count` new replicas go; `replicas` is the directory and size in bytes of every replica and copy now.

        `avoid`: paths of directories that get some only if there are no others.
        Raises LogDirectoryOffline when no directory is online.
        """
        held: dict[str, list[int]] = {directory.name: [] for directory in self.online()}
        for directory, size in replicas:
            if directory.name in held:
                held[directory.name].append(size)
        loads = [_load(self._by_path[path], sizes) for path, sizes in held.items()]
        loads = [load for load in loads if self._by_path[load.path].online]
        if not loads:
            raise LogDirectoryOffline(", ".join(self._by_path), "placing a replica")
        open_ = [load for load in loads if load.path not in avoid]
        return [self._by_path[path] for path in placement.assign(open_ or loads, count)]

    def close(self) -> None:
        """Stop the directories' threads and give the locks up; the caller leaves clean-shutdown markers before.

        A directory that hangs is left behind, with its lock.
        """
        self.images.flush(timeout=10.0)
        if self._metadata_lock is not None:
            self._metadata_lock.release()
        closing: list[tuple[LogDirectory, threading.Thread]] = []
        for directory in self.directories:
            thread = threading.Thread(target=directory.close, name=f"close-{directory.path.name}", daemon=True)
            thread.start()
            closing.append((directory, thread))
        until = time.monotonic() + (_CLOSING if len(self.online()) == len(self.directories) else _CLOSING_BESIDE)
        for directory, thread in closing:
            thread.join(max(0.0, until - time.monotonic()) if directory.online else _CLOSING_OFFLINE)
            if thread.is_alive():
                _log.error("log directory %s does not let go and is left behind", directory.path)


def _load(directory: LogDirectory, sizes: Sequence[int]) -> placement.DirectoryLoad:
    try:
        usable: int | None = directory.usage().usable
    except MetadataIOError as exc:
        directory.fail_on(exc)
        usable = None
    return placement.DirectoryLoad(
        directory.name, sum(sizes), len(sizes), sum(1 for size in sizes if size == 0), usable
    )
