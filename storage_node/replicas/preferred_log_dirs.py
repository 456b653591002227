"""Keep the directories requested for replicas that do not exist yet (KIP-113), until they are created.

File `preferred-log-dirs` in every log directory: {"version": 1, "number": N, "paths": [[topic, partition, path], ...]}.
The file with the highest number counts.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from storage_node.directories import json_file
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.newest_file import NewestFile
from storage_node.errors import LogDirectoryOffline, LogDirNotFound
from storage_node.model.ids import TopicPartition

FILE = "preferred-log-dirs"
VERSION = 1
#: Directories that have a preference before it counts as recorded, where there are so many.
COPIES = 2
#: More than a cluster can hold; the oldest are dropped first, since clients may name topics that never exist.
MOST = 20_000


class PreferredLogDirs:
    """The preferred directory of each partition. Thread-safe."""

    def __init__(self, dirs: DirectoryManager) -> None:
        self._dirs = dirs
        self._lock = threading.Lock()
        self._paths: dict[TopicPartition, str] = {}
        self._number = 0
        self._file: NewestFile[_Kept] = NewestFile(FILE, dirs.directories, _write, lambda kept: kept.number)
        self._making: set[TopicPartition] = set()

    def load(self) -> None:
        """Read the files; one that cannot be read is logged as a warning. The newest one counts, and is copied."""
        found = {directory: json_file.read(directory, FILE, _parse, _Kept) for directory in self._dirs.online()}
        newest = max(filter(None, found.values()), key=lambda kept: kept.number, default=None)
        if newest is None:
            return
        self._number, self._paths = newest.number, dict(newest.paths)
        for directory, kept in found.items():
            if kept is None or kept.number < newest.number:
                with suppress(LogDirectoryOffline):
                    self._file.start(directory, newest)

    def directories_changed(self) -> None:
        """Keep the file in the directories that this node has now."""
        with self._lock:
            self._file.directories = self._dirs.directories
            kept = self._kept()
        for directory in self._dirs.online():
            if kept.number:
                with suppress(LogDirectoryOffline):
                    self._file.start(directory, kept)

    def get(self, tp: TopicPartition) -> LogDirectory | None:
        """Return the preferred directory; None without one or when it is no longer among log.dirs."""
        path = self._paths.get(tp)
        try:
            return self._dirs.by_path(path) if path is not None else None
        except LogDirNotFound:
            return None

    @contextmanager
    def making(self, tps: Collection[TopicPartition]) -> Iterator[None]:
        """Mark replicas as being placed and created during the block: preferences for them then come too late."""
        with self._lock:
            self._making.update(tps)
        try:
            yield
        finally:
            with self._lock:
                self._making.difference_update(tps)

    def remember(self, wanted: Iterable[tuple[TopicPartition, LogDirectory]]) -> list[TopicPartition]:
        """Record preferences, durably; return those that came too late: their replicas are being created."""
        late: list[TopicPartition] = []
        with self._lock:
            for tp, directory in wanted:
                if tp in self._making:
                    late.append(tp)
                    continue
                self._paths.pop(tp, None)
                self._paths[tp] = directory.name
            while len(self._paths) > MOST:
                del self._paths[next(iter(self._paths))]
            self._save()
        return late

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Drop preferences of replicas that exist now or are not needed any more."""
        with self._lock:
            found = [tp for tp in tps if tp in self._paths]
            for tp in found:
                del self._paths[tp]
            if found:
                self._save()

    def _save(self) -> None:
        self._number += 1
        self._file.save(self._kept(), COPIES)

    def _kept(self) -> _Kept:
        return _Kept(self._number, tuple(self._paths.items()))


@dataclass(frozen=True, slots=True)
class _Kept:
    """The content of a file."""

    number: int = -1
    paths: tuple[tuple[TopicPartition, str], ...] = ()


def _write(directory: LogDirectory, kept: _Kept) -> None:
    rows = [[tp.topic, tp.partition, path] for tp, path in kept.paths]
    json_file.write(directory, FILE, {"version": VERSION, "number": kept.number, "paths": rows})


def _parse(value: Any) -> _Kept:
    number, rows = (0, value) if isinstance(value, list) else (int(value["number"]), value["paths"])
    return _Kept(number, tuple((TopicPartition(str(topic), int(index)), str(path)) for topic, index, path in rows))
