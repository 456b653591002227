"""The log of a copy: a lock around a `Log`, so that its writers need no common lock outside it.

The copier writes to it, and whatever truncates the replica or raises its log start offset also applies to the copy
(KIP-113). If both shared the partition's lock, a slow target disk would delay producers; so each change takes the
copy's own lock, and the replica's threads only record what the copier has to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from storage_node.directories import checkpoints
from storage_node.directories.atomic import io_errors, read_bytes, write_atomic
from storage_node.directories.errors import MalformedCheckpoint
from storage_node.log.blocks import Walked
from storage_node.log.config import LogConfig
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.log.log import FetchedData, Log
from storage_node.log.segment import LOG, Segment, file_name
from storage_node.model.ids import TopicPartition

FLUSHED = checkpoints.RECOVERY_POINTS
"""A file named and formatted as a log directory's, but in the copy's own folder: only the mover writes it."""
_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Deferred:
    """What was done to the replica and not yet to its copy, in this order: a restart, a cut, a log start."""

    restart: int | None = None
    cut: int | None = None
    start: int = 0

    def truncated(self, offset: int) -> Deferred:
        """Return this with a truncation at `offset` added."""
        restart = self.restart if self.restart is None else min(self.restart, offset)
        return Deferred(restart, offset if self.cut is None else min(self.cut, offset), min(self.start, offset))

    def restarted(self, offset: int) -> Deferred:
        """Return what remains after the whole log was dropped."""
        return Deferred(restart=offset)

    def started(self, start: int) -> Deferred:
        """Return this with a higher log start offset."""
        return replace(self, start=max(self.start, start))

    def ends(self, start: int, end: int) -> tuple[int, int]:
        """Return the log start and log end offsets of a copy once this is applied."""
        if self.restart is not None:
            start = end = self.restart
        if self.cut is not None:
            start, end = min(start, self.cut), min(end, self.cut)
        start = max(start, self.start)
        return start, max(start, end)


_NOTHING = Deferred()


class FutureLog:
    """The log of a copy: a `Log` of which every change holds `writing`; take it to combine several changes.

    The bytes of a partial batch may be behind the log's end (`BlockAppender`). `version` grows with every truncation.

    The replica's own threads never touch the copy's disk: `defer_*` records a truncation of the replica, which applies
    at once to both ends of the copy, and reaches the disk before the copier writes again. A start that finds a copy
    without it compares the copy with its source (`reconcile`).
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        """The log inside, which becomes the replica's at the swap. Its reads and flushes need no `writing`."""
        self.writing = threading.RLock()
        self.version = 0
        self._blocks = log.blocks()
        self._deferring = threading.Lock()
        self._deferred = Deferred()
        self._noted = 0

    @classmethod
    def open(
        cls, path: Path, tp: TopicPartition, config: LogConfig, *, directory: str, recovery_point: int = 0
    ) -> FutureLog:
        """Open or create the copy in `path`. Raises like `Log.open`."""
        return cls(Log.open(path, tp, config, directory=directory, recovery_point=recovery_point, copy=True))

    # Properties

    @property
    def path(self) -> Path:
        return self.log.path

    @property
    def directory(self) -> str:
        return self.log.directory

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.log.config = config

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.log.segments

    @property
    def size(self) -> int:
        return self.log.size

    @property
    def recovery_point(self) -> int:
        return self.log.recovery_point

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self.log.leader_epochs

    @property
    def log_start_offset(self) -> int:
        """The log start offset, once everything deferred is applied."""
        return self._deferred.ends(self.log.log_start_offset, self.log.log_end_offset)[0]

    @property
    def log_end_offset(self) -> int:
        """The log end offset, once everything deferred is applied."""
        return self._deferred.ends(self.log.log_start_offset, self.log.log_end_offset)[1]

    # The recovery point, for the next start

    def note_flushed(self) -> None:
        """Flush the full segments and write the recovery point to the disk, so that a start validates only what
        follows.

        Raises StorageError.
        """
        self.log.flush_closed_segments()
        with self.writing:
            self._note()

    def _note(self) -> None:
        point = self.log.recovery_point
        if point == self._noted or self.log.closed:
            return
        with io_errors(self.directory, f"writing {FLUSHED} of {self.path.name}"):
            try:
                write_atomic(self.path / FLUSHED, checkpoints.encode({self.log.tp: point}))
            except FileNotFoundError:
                # A deletion of the topic or a cancel took the folder away; no start reads its recovery point.
                if os.path.lexists(self.path):
                    raise
        self._noted = point

    def noted(self, point: int) -> None:
        """Accept what `note_flushed` wrote; if the log ends before it, write the lower point before anything is
        appended.
        """
        self._noted = point
        self._note()

    # Deferred by the replica's threads

    def defer_truncation(self, offset: int) -> None:
        """Truncate the copy at `offset` before anything else is written to it, without waiting for a disk."""
        self._defer(lambda known: known.truncated(offset))

    def defer_restart(self, offset: int) -> None:
        """Drop all of the copy and restart it at `offset` before anything else is written to it."""
        self._defer(lambda known: known.restarted(offset))

    def defer_start(self, start: int) -> None:
        """Raise the copy's log start offset before anything else is written to it."""
        self._defer(lambda known: known.started(start), cut=False)

    def _defer(self, note: Callable[[Deferred], Deferred], *, cut: bool = True) -> None:
        with self._deferring:
            self._deferred = note(self._deferred)
            self.version += cut

    @property
    def deferred(self) -> bool:
        """Whether `apply_deferred` has anything to apply."""
        return self._deferred != _NOTHING

    def apply_deferred(self) -> None:
        """Apply to the disk what was deferred. Raises like `truncate_to`, `truncate_fully` and `advance_log_start`."""
        while self.deferred:
            with self.writing:
                known = self._deferred
                if known.restart is not None:
                    self.truncate_fully(known.restart)
                if known.cut is not None:
                    self.truncate_to(known.cut)
                self.follow_start(known.start)
                with self._deferring:
                    if self._deferred == known:
                        self._deferred = _NOTHING

    def follow_start(self, start: int) -> None:
        """Raise the log start offset to that of the replica, and drop the whole log if it ends before that.

        Raises like `advance_log_start` and `truncate_fully`.
        """
        with self.writing:
            if start > self.log.log_end_offset:
                self.truncate_fully(start)
            elif start > self.log.log_start_offset:
                self.advance_log_start(start)

    # Called by the copier

    def read(self, offset: int, max_bytes: int) -> FetchedData:
        """See `Log.read`."""
        return self.log.read(offset, max_bytes)

    def begin(self, base_offset: int | None, first: int) -> Segment:
        """See `BlockAppender.begin`."""
        with self.writing:
            return self._blocks.begin(base_offset, first)

    def write(self, data: memoryview, walked: Walked) -> None:
        """See `BlockAppender.write`."""
        with self.writing:
            self._blocks.write(data, walked)

    def cut(self) -> None:
        """Cut off the bytes of a partial batch. Raises LogAppendError."""
        with self.writing:
            self._blocks.cut()

    def flush(self) -> None:
        """See `Log.flush`; may run beside `write`."""
        self.log.flush()

    def flush_records(self) -> None:
        """See `Log.flush_records`; may run beside `write`."""
        self.log.flush_records()

    # Truncation

    def truncate_to(self, offset: int) -> None:
        """See `Log.truncate_to`."""
        with self.writing:
            if offset < self.log.segments[0].base_offset:
                self.truncate_fully(offset)
                return
            # Also if the copy does not have these records yet: they may have been read already.
            self._next_version()
            self.cut()
            self.log.truncate_to(offset)
            if self.log.recovery_point < self._noted:
                self._note()

    def truncate_fully(self, offset: int) -> None:
        """See `Log.truncate_fully`."""
        with self.writing:
            self._next_version()
            self.cut()
            self.log.truncate_fully(offset)
            self._note()

    def _next_version(self) -> None:
        with self._deferring:
            self.version += 1

    def advance_log_start(self, offset: int) -> bool:
        """See `Log.advance_log_start`."""
        with self.writing:
            return self.log.advance_log_start(offset)

    # The end of the move

    def carry_history(self, source: Log) -> None:
        """Adopt what batches alone do not carry: leader epochs without records, producers whose records were deleted.

        Called while the swap holds the replica's log, when both have the same records.
        """
        with self.writing:
            self.cut()
            entries = source.leader_epochs.truncated_from_start(self.log_start_offset).entries
            if entries != self.log.leader_epochs.entries:
                self.log.set_leader_epochs(entries)
            self.log.adopt_producers(source.producers)

    def close(self, clean: bool = True) -> None:
        """See `Log.close`."""
        with self.writing:
            if clean:
                self.cut()
            self.log.close(clean)


def open_copy(path: Path, source: Log, directory: str) -> FutureLog:
    """Open a `.move`, new or existing, and validate every batch behind its recovery point.

    Raises like `Log.open`, and `MetadataIOError`.
    """
    point = _flushed(path, source.tp, directory)
    copy = FutureLog.open(path, source.tp, source.config, directory=directory, recovery_point=point)
    copy.noted(point)
    return copy


def _flushed(path: Path, tp: TopicPartition, directory: str) -> int:
    """Return the recovery point that `note_flushed` wrote into a copy's folder; 0 without it."""
    with io_errors(directory, f"reading {FLUSHED} of {path.name}"):
        try:
            return checkpoints.decode(read_bytes(path / FLUSHED, _LIMIT), path / FLUSHED).get(tp, 0)
        except (FileNotFoundError, MalformedCheckpoint):
            return 0


def segment_files(log: FutureLog, since: int) -> list[str]:
    """Return the names of the .log files that hold offsets from `since` on, the active one last."""
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    return [
        file_name(segment.base_offset, LOG)
        for segment, end in zip(segments, [*ends, None], strict=True)
        if end is None or end > since
    ]


def bytes_found(folder: Path) -> int:
    """Return the bytes of records of a copy that is not open yet, validated or not; 0 if the folder is not readable."""
    try:
        return sum(entry.stat().st_size for entry in folder.iterdir() if entry.suffix == LOG)
    except OSError:
        return 0
