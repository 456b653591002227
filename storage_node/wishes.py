"""Directories asked for before the replica exists (KIP-113): remembered, over a restart too, until it is created."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from storage_node.directories import json_file
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import LogDirNotFound
from storage_node.types import TopicPartition

FILE = "directory-wishes"
#: More than a cluster can hold; the oldest go first, since anybody may wish for topics that never come.
MOST_WISHES = 20_000


class Wishes:
    """Partition -> directory. Thread-safe. Kept in the first directory that is online."""

    def __init__(self, dirs: DirectoryManager) -> None:
        self._dirs = dirs
        self._lock = threading.Lock()
        self._paths: dict[TopicPartition, str] = {}
        self._making: set[TopicPartition] = set()

    def load(self) -> None:
        """Read what was remembered; a file that cannot be read is a warning, the wishes are lost."""
        for directory in self._dirs.online():
            paths = json_file.read(directory, FILE, _parse, dict)
            if paths is not None:
                self._paths = paths
                return

    def get(self, tp: TopicPartition) -> LogDirectory | None:
        """The directory wished for, None without a wish or when it is none of log.dirs any more."""
        path = self._paths.get(tp)
        try:
            return self._dirs.by_path(path) if path is not None else None
        except LogDirNotFound:
            return None

    @contextmanager
    def making(self, tps: Collection[TopicPartition]) -> Iterator[None]:
        """While it is decided where these replicas go and they are made there: what is wished for them then comes too
        late.
        """
        with self._lock:
            self._making.update(tps)
        try:
            yield
        finally:
            with self._lock:
                self._making.difference_update(tps)

    def remember(self, wanted: Iterable[tuple[TopicPartition, LogDirectory]]) -> list[TopicPartition]:
        """Note wishes, durable when this returns; answers those that came too late: their replicas are being made."""
        late: list[TopicPartition] = []
        with self._lock:
            for tp, directory in wanted:
                if tp in self._making:
                    late.append(tp)
                    continue
                self._paths.pop(tp, None)
                self._paths[tp] = directory.name
            while len(self._paths) > MOST_WISHES:
                del self._paths[next(iter(self._paths))]
            self._save()
        return late

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """The replicas exist now, or nobody wants them any more."""
        with self._lock:
            found = [tp for tp in tps if tp in self._paths]
            for tp in found:
                del self._paths[tp]
            if found:
                self._save()

    def _save(self) -> None:
        rows = [[tp.topic, tp.partition, path] for tp, path in self._paths.items()]
        for directory in self._dirs.online():
            json_file.write(directory, FILE, rows)
            return


def _parse(rows: Any) -> dict[TopicPartition, str]:
    return {TopicPartition(str(topic), int(number)): str(path) for topic, number, path in rows}
