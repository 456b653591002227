"""The copy's log: a `Log` whose writers need not agree on a lock of their own.

Two write to it: the copier, and whoever truncates or shortens the replica (both copies are shortened alike, KIP-113).
If they shared the partition's lock, a slow target disk would hold up producers; so each change takes the copy's own
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from storage_node.directories import checkpoints
from storage_node.directories.atomic import io_errors, read_bytes, write_atomic
from storage_node.directories.errors import MalformedCheckpoint
from storage_node.log.batch import Buffer
from storage_node.log.config import LogConfig
from storage_node.log.files import Home
from storage_node.log.log import Appended, Log
from storage_node.log.segment import LOG, file_name
from storage_node.types import TopicPartition

FLUSHED = checkpoints.RECOVERY_POINTS
"""Of the name and form of a log directory's file, but in the copy's own folder: the mover alone writes it."""
_LIMIT = 4096


class FutureLog(Log):
    """See the module. `writing` is held around every change; take it to make several changes one."""

    def __init__(self, path: Path, tp: TopicPartition, config: LogConfig, directory: str, home: Home) -> None:
        super().__init__(path, tp, config, directory, home)
        self.writing = threading.RLock()
        self._noted = 0

    def note_flushed(self) -> None:
        """Flush the full segments and keep on the disk how far that is: a start then checks only what follows.

        Raises StorageError.
        """
        self.flush_closed_segments()
        with self.writing:
            self._note()

    def _note(self) -> None:
        point = self.recovery_point
        if point != self._noted:
            with io_errors(self.directory, f"writing {FLUSHED} of {self.path.name}"):
                write_atomic(self.path / FLUSHED, checkpoints.encode({self.tp: point}))
            self._noted = point

    def noted(self, point: int) -> None:
        """This is what `note_flushed` left; a log that ends before it is noted as such before anything is appended."""
        self._noted = point
        self._note()

    def append_copied(self, records: Buffer, now_ms: int | None = None) -> Appended:
        with self.writing:
            return super().append_copied(records, now_ms)

    def roll(self, now_ms: int | None = None) -> None:
        with self.writing:
            super().roll(now_ms)

    def truncate_to(self, offset: int) -> None:
        with self.writing:
            super().truncate_to(offset)
            if self.recovery_point < self._noted:
                self._note()

    def truncate_fully(self, offset: int) -> None:
        with self.writing:
            super().truncate_fully(offset)
            if self.recovery_point != self._noted:
                self._note()

    def advance_log_start(self, offset: int) -> bool:
        with self.writing:
            return super().advance_log_start(offset)

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        with self.writing:
            return super().delete_old_segments(now_ms, high_watermark)

    def set_leader_epochs(self, entries: Iterable[tuple[int, int]]) -> None:
        with self.writing:
            super().set_leader_epochs(entries)

    def settle(self) -> None:
        with self.writing:
            super().settle()

    def close(self, clean: bool = True) -> None:
        with self.writing:
            super().close(clean)


def open_copy(path: Path, source: Log, directory: str) -> FutureLog:
    """Open a `.move`, new or found: every batch is checked of which nothing says that it was flushed.

    Raises like `Log.open`, and `MetadataIOError`.
    """
    point = _flushed(path, source.tp, directory)
    copy = FutureLog.open(path, source.tp, source.config, directory=directory, recovery_point=point)
    copy.noted(point)
    return copy


def _flushed(path: Path, tp: TopicPartition, directory: str) -> int:
    """What `note_flushed` left in a copy's folder; 0 without it."""
    with io_errors(directory, f"reading {FLUSHED} of {path.name}"):
        try:
            return checkpoints.decode(read_bytes(path / FLUSHED, _LIMIT), path / FLUSHED).get(tp, 0)
        except (FileNotFoundError, MalformedCheckpoint):
            return 0


def segment_files(log: Log, since: int) -> list[str]:
    """The names of the .log files that hold offsets from `since` on, the active one last."""
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    return [
        file_name(segment.base_offset, LOG)
        for segment, end in zip(segments, [*ends, None], strict=True)
        if end is None or end > since
    ]


def carry_history(source: Log, copy: FutureLog) -> None:
    """Take over what batches alone do not carry: leader epochs without records, and producers whose records are gone.

    Called under the partition's lock when both have the same records.
    """
    with copy.writing:
        start = copy.log_start_offset
        entries = source.leader_epochs.truncated_from_start(start).entries
        if entries != copy.leader_epochs.entries:
            copy.set_leader_epochs(entries)
        copy.adopt_producers(source.producers)
