"""The partition epoch under which this node last held each replica.

It distinguishes a replica that newer metadata has reassigned to other nodes from one that the metadata does not have
yet, or not any more after a restore. Each log directory has a file for its replicas. The file may be outdated: from the
epoch under which a replica was assigned to a node on, every row up to the one that reassigns it names that node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from storage_node.directories import json_file
from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage

FILE = "replica-epoch-checkpoint"

_Rows = dict[TopicPartition, tuple[str, int]]


class PartitionEpochCheckpoint:
    """The highest known (topic id, partition epoch) of each replica. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A directory's pool has several threads: two writers of one file would replace each other's temporary file.
        self._files: WeakKeyDictionary[LogDirectory, threading.Lock] = WeakKeyDictionary()
        self._known: _Rows = {}
        self._written: WeakKeyDictionary[LogDirectory, _Rows] = WeakKeyDictionary()

    def load(self, directories: Iterable[LogDirectory]) -> None:
        """Read the directories' files; the highest epoch counts. A file that cannot be read is logged."""
        for directory in directories:
            rows = json_file.read(directory, FILE, _parse, dict)
            if rows is None:
                continue
            self._written[directory] = rows
            with self._lock:
                for tp, (topic_id, epoch) in rows.items():
                    self._note(tp, topic_id, epoch)

    def note(self, tp: TopicPartition, topic_id: str, row: PartitionImage) -> None:
        """Record that the metadata assigns the replica to this node."""
        with self._lock:
            self._note(tp, topic_id, row.partition_epoch)

    def _note(self, tp: TopicPartition, topic_id: str, epoch: int) -> None:
        known = self._known.get(tp)
        if known is None or known[0] != topic_id or known[1] < epoch:
            self._known[tp] = (topic_id, epoch)

    def reassigned(self, tp: TopicPartition, topic_id: str, row: PartitionImage) -> bool:
        """Return whether a row without this node is newer than every row that had it."""
        known = self._known.get(tp)
        return known is not None and known[0] == topic_id and row.partition_epoch > known[1]

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Drop these replicas, which were removed."""
        with self._lock:
            for tp in tps:
                self._known.pop(tp, None)

    def write(self, directory: LogDirectory, elsewhere: Callable[[TopicPartition], bool]) -> None:
        """Write the epochs of all known replicas to a directory's file, except of those `elsewhere`: served from
        another directory. Raises StorageError.

        A replica that is served nowhere may be offline, or be about to be deleted: without its epoch, a start would
        keep it for ever.
        """
        with self._file(directory):
            with self._lock:
                rows = {tp: known for tp, known in self._known.items() if not elsewhere(tp)}
            if rows != self._written.get(directory, {}):
                self._write(directory, rows)

    def add(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Add the epochs of replicas that are about to be created in a directory to its file; raises StorageError."""
        with self._file(directory):
            with self._lock:
                new = {tp: self._known[tp] for tp in tps if tp in self._known}
            before = self._written.get(directory, {})
            if any(before.get(tp) != row for tp, row in new.items()):
                self._write(directory, {**before, **new})

    def _file(self, directory: LogDirectory) -> threading.Lock:
        with self._lock:
            return self._files.setdefault(directory, threading.Lock())

    def _write(self, directory: LogDirectory, rows: _Rows) -> None:
        listed = [[tp.topic, tp.partition, *row] for tp, row in rows.items()]
        json_file.write(directory, FILE, listed)
        self._written[directory] = rows


def _parse(rows: Any) -> _Rows:
    return {
        TopicPartition(str(topic), int(number)): (str(topic_id), int(epoch)) for topic, number, topic_id, epoch in rows
    }
