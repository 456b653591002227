"""All log directories of the node: opens and locks them at the start, and places new replicas."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from storage_node.directories import clean_shutdown, placement, reopening
from storage_node.directories.atomic import io_errors
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.directory import LogDirectory
from storage_node.directories.formatting import prepare
from storage_node.directories.image_store import ImageStore
from storage_node.directories.layout import normalise
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta.properties import in_order
from storage_node.directories.reopening import Expected
from storage_node.errors import LogDirectoryOffline, LogDirNotFound, MetadataIOError, StorageError

__all__ = ["DirectoryManager"]

_log = logging.getLogger(__name__)

#: Seconds that all directories together have to stop their threads and release their locks; and an offline one.
_CLOSING: Final = 30.0
_CLOSING_OFFLINE: Final = 1.0
_CLOSING_BESIDE: Final = 5.0  # while another is offline: this one's threads may hang in that one


class DirectoryManager:
    """The node's log directories, in the order of log.dirs."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        cluster_id: str,
        node_id: int,
        directory_ids: Sequence[str],
        formatted: Sequence[str] = (),
        metadata_lock: DirectoryLock | None = None,
        beside: str = "",
    ) -> None:
        self.directories = tuple(directories)
        self._beside = beside
        """The directory id of a metadata.log.dir that is not among log.dirs."""
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
        """Check and lock log.dirs, and update every meta.properties; directories with errors are included, offline.

        `cluster_id` is checked if it is given, else taken from the files; `threads` are the I/O threads per directory;
        `patience`: seconds after which a directory that does not respond counts as hanging (None: no limit);
        `metadata`: a metadata.log.dir that is not in log.dirs, and holds only its meta.properties.
        Raises StartRefused (also as DirectoryInUse) with the message for the operator.
        """
        prepared = prepare(paths, node_id=node_id, cluster_id=cluster_id, patience=patience, metadata=metadata)
        ids = dict(prepared.decision.ids)
        beside = normalise(metadata) if metadata else ""
        failures = dict(prepared.decision.offline)
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
            cluster_id=prepared.decision.cluster_id,
            node_id=node_id,
            directory_ids=[id for id in prepared.decision.directory_ids if id != ids.get(beside)],
            formatted=prepared.decision.formatted,
            metadata_lock=prepared.locks.get(beside),
            beside=ids.get(beside, ""),
        )

    def online(self) -> tuple[LogDirectory, ...]:
        """Return the directories that are online now, in the order of log.dirs."""
        return tuple(directory for directory in self.directories if directory.online)

    def missing_ids(self) -> frozenset[str]:
        """Return known ids that no online directory has: disks that failed, are not mounted or were replaced."""
        return frozenset(self.directory_ids) - {directory.id for directory in self.online()}

    def unused_ids(self) -> frozenset[str]:
        """Return known ids that no directory has, not even one that is offline."""
        return frozenset(self.directory_ids) - {directory.id for directory in self.directories}

    def by_path(self, path: str | Path) -> LogDirectory:
        """Return the directory with this path of log.dirs, or the one whose symlink leads to this path.

        A trailing slash is ignored; the given path itself is not resolved. Raises LogDirNotFound.
        """
        text = str(path)
        found = self._find(normalise(text)) if Path(text).is_absolute() else None
        if found is None:
            raise LogDirNotFound(
                f"{text!r} is not a log directory of node {self.node_id}; its log.dirs are {', '.join(self._by_path)}"
            )
        return found

    def _find(self, name: str) -> LogDirectory | None:
        return self._by_path.get(name) or next((each for each in self.directories if each.real == name), None)

    def by_id(self, directory_id: str) -> LogDirectory | None:
        """Return the directory with this directory id; None if this node has none, or could not read its id."""
        return next((d for d in self.directories if d.id and d.id == directory_id), None)

    # Decision at run time

    def open_again(self, old: LogDirectory, *, threads: int, patience: float, format: bool = False) -> LogDirectory:
        """Return a new, locked object for an offline directory whose disk is good again; `put` uses it.

        `format`: the disk is another one, or was wiped, so that the id of the old one is forgotten. Raises
        RequestRefused.
        """
        known = tuple(each for each in self.directory_ids if not format or each != old.id)
        return reopening.open_again(
            Expected(
                old.name,
                self.cluster_id,
                self.node_id,
                (*known, *filter(None, [self._beside])),
                tuple(each.name for each in self.directories if each is not old),
                threads,
                old,
                format,
            ),
            patience,
        )

    def open_new(self, path: str, *, threads: int, patience: float) -> LogDirectory:
        """Return a new, locked object for a path that is not in use, formatted if it needs to be; `put` uses it.

        Raises RequestRefused.
        """
        ids = (*self.directory_ids, *filter(None, [self._beside]))
        paths = tuple(each.name for each in self.directories)
        expected = Expected(path, self.cluster_id, self.node_id, ids, paths, threads, format=True)
        return reopening.open_again(expected, patience)

    def drop(self, directory: LogDirectory) -> None:
        """Use a directory no longer, whose id stays known until `forget`; `restore` undoes it."""
        self.directories = tuple(each for each in self.directories if each is not directory)
        self._by_path = {each.name: each for each in self.directories}
        self.images.directories_are(self.directories)

    def restore(self, directories: Sequence[LogDirectory]) -> None:
        """Use the directories again that were in use before `drop`, in their order."""
        self._use(directories)

    def forget(self, directory_id: str) -> None:
        """Forget the id of a directory that is not in use any more, on all disks."""
        self.directory_ids = tuple(each for each in self.directory_ids if each != directory_id)
        self._use(self.directories)

    def put(self, directory: LogDirectory, forget: Collection[str] = ()) -> None:
        """Use a directory from now on, in the place of the one with its path; `forget` has ids of lost disks."""
        self.directory_ids = tuple(each for each in self.directory_ids if each not in forget)
        if directory.name in self._by_path:
            every = [directory if each.name == directory.name else each for each in self.directories]
        else:
            every = [*self.directories, directory]
        self._use(every)

    def _use(self, every: Sequence[LogDirectory]) -> None:
        self.directories = tuple(every)
        self._by_path = {each.name: each for each in every}
        self.images.directories_are(every)
        self.directory_ids = in_order(self.directory_ids, [each.id for each in every if each.id])
        reopening.list_ids(every, (*self.directory_ids, *filter(None, [self._beside])))

    def on_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` once for each directory that fails or has failed already."""
        for directory in self.directories:
            directory.on_failure(listener)

    def handle(self, error: StorageError) -> bool:
        """Take the directory that the error names offline if the error indicates that; return whether it was taken."""
        directory = self._by_path.get(error.directory)
        return directory.fail_on(error) if directory is not None else False

    def take_clean_shutdowns(self) -> dict[str, CleanShutdown]:
        """Read and remove the clean shutdown markers, by path; a directory where that fails is taken offline."""
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
        """Flush the names that each directory shows; a directory where that fails is taken offline.

        A process killed between a rename and its flush leaves a name that a power loss reverts. A start decides by the
        names in all directories, and acts in one on a name in another: a copy becomes the replica because its source
        was renamed. If that rename were reverted, a later start without the copy's disk would serve the source as the
        replica, without the records that the copy has received since.
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
        """Return the directories for `count` new replicas.

        `replicas` has the directory and size in bytes of every existing replica and copy; `avoid` has paths of
        directories that get a replica only if there are no others. Raises LogDirectoryOffline if none is online.
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
        """Stop the directories' threads and release the locks; the caller writes clean shutdown markers before.

        A directory that hangs is abandoned with its lock.
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
                _log.error("log directory %s did not close in time; its threads and lock are abandoned", directory.path)


def _load(directory: LogDirectory, sizes: Sequence[int]) -> placement.DirectoryLoad:
    try:
        usable: int | None = directory.usage().usable
    except MetadataIOError as exc:
        directory.fail_on(exc)
        usable = None
    return placement.DirectoryLoad(
        directory.name, sum(sizes), len(sizes), sum(1 for size in sizes if size == 0), usable
    )
