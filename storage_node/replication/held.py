"""Under which partition epoch this node last held each replica: what tells a replica that the metadata took away from
one that it does not know yet, or not any more because it was restored.

A file in each log directory, for the replicas in it. It need not be up to date: from the epoch under which a replica
came to a node on, every row of the metadata up to the one that takes it away again names that node.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from storage_node.directories import json_file
from storage_node.directories.directory import LogDirectory
from storage_node.metadata import PartitionImage
from storage_node.types import TopicPartition

FILE = "replica-epoch-checkpoint"

_Rows = dict[TopicPartition, tuple[str, int]]


class HeldEpochs:
    """Partition -> (topic id, partition epoch). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A directory's pool has several threads: two that write one file would take its temporary from each other.
        self._files: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._known: _Rows = {}
        self._written: dict[str, _Rows] = {}

    def load(self, directories: Iterable[LogDirectory]) -> None:
        """Read what the directories remember; the highest counts. A file that cannot be read is a warning."""
        for directory in directories:
            rows = json_file.read(directory, FILE, _parse, dict)
            if rows is None:
                continue
            self._written[directory.name] = rows
            with self._lock:
                for tp, (topic_id, epoch) in rows.items():
                    self._note(tp, topic_id, epoch)

    def note(self, tp: TopicPartition, topic_id: str, row: PartitionImage) -> None:
        """The metadata says that this node holds the replica."""
        with self._lock:
            self._note(tp, topic_id, row.partition_epoch)

    def _note(self, tp: TopicPartition, topic_id: str, epoch: int) -> None:
        known = self._known.get(tp)
        if known is None or known[0] != topic_id or known[1] < epoch:
            self._known[tp] = (topic_id, epoch)

    def taken_away(self, tp: TopicPartition, topic_id: str, row: PartitionImage) -> bool:
        """Whether a row that does not name this node is newer than those that did."""
        known = self._known.get(tp)
        return known is not None and known[0] == topic_id and row.partition_epoch > known[1]

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """These replicas are gone."""
        with self._lock:
            for tp in tps:
                self._known.pop(tp, None)

    def write(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Bring what is known of these replicas, those of a directory, to its file; raises StorageError."""
        with self._file(directory):
            with self._lock:
                rows = {tp: self._known[tp] for tp in tps if tp in self._known}
            if rows != self._written.get(directory.name, {}):
                self._write(directory, rows)

    def add(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """The same for replicas that are about to be made in a directory, beside those that it has."""
        with self._file(directory):
            with self._lock:
                new = {tp: self._known[tp] for tp in tps if tp in self._known}
            before = self._written.get(directory.name, {})
            if any(before.get(tp) != row for tp, row in new.items()):
                self._write(directory, {**before, **new})

    def _file(self, directory: LogDirectory) -> threading.Lock:
        with self._lock:
            return self._files[directory.name]

    def _write(self, directory: LogDirectory, rows: _Rows) -> None:
        listed = [[tp.topic, tp.partition, *row] for tp, row in rows.items()]
        json_file.write(directory, FILE, listed)
        self._written[directory.name] = rows


def _parse(rows: Any) -> _Rows:
    return {
        TopicPartition(str(topic), int(number)): (str(topic_id), int(epoch)) for topic, number, topic_id, epoch in rows
    }
