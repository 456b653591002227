"""Directories asked for before the replica exists (KIP-113): remembered, over a restart too, until it is created."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import LogDirNotFound, StorageError
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

FILE = "directory-wishes"
#: More than a cluster can hold; the oldest go first, since anybody may wish for topics that never come.
MOST_WISHES = 20_000
LARGEST = 64 << 20  # bytes of the file


class Wishes:
    """Partition -> directory. Thread-safe. Kept in the first directory that is online."""

    def __init__(self, dirs: DirectoryManager) -> None:
        self._dirs = dirs
        self._lock = threading.Lock()
        self._paths: dict[TopicPartition, str] = {}

    def load(self) -> None:
        """Read what was remembered; a file that cannot be read is a warning, the wishes are lost."""
        for directory in self._dirs.online():
            path = directory.path / FILE
            try:
                with atomic.io_errors(directory.name, f"reading {FILE}"):
                    data = atomic.read_bytes(path, LARGEST)
                self._paths = {TopicPartition(str(t), int(p)): str(d) for t, p, d in json.loads(data)}
            except StorageError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    directory.fail_on(error)
                    log.warning("%s is ignored: %s", path, error)
                continue
            except (ValueError, TypeError, RecursionError) as error:
                log.warning("%s is ignored: %s", path, error)
            return

    def get(self, tp: TopicPartition) -> LogDirectory | None:
        """The directory wished for, None without a wish or when it is none of log.dirs any more."""
        path = self._paths.get(tp)
        try:
            return self._dirs.by_path(path) if path is not None else None
        except LogDirNotFound:
            return None

    def remember(self, wanted: Iterable[tuple[TopicPartition, LogDirectory]]) -> None:
        """Note wishes, durable when this returns."""
        with self._lock:
            for tp, directory in wanted:
                self._paths.pop(tp, None)
                self._paths[tp] = directory.name
            while len(self._paths) > MOST_WISHES:
                del self._paths[next(iter(self._paths))]
            self._save()

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
            path: Path = directory.path / FILE
            with atomic.io_errors(directory.name, f"writing {FILE}"):
                atomic.write_atomic(path, json.dumps(rows, separators=(",", ":")).encode())
            return
