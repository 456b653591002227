"""The copy's log: a `Log` whose writers need not agree on a lock of their own.

The copier writes to it, and what truncates or shortens the replica is done to the copy as well (both are shortened
alike, KIP-113). If the two shared the partition's lock, a slow target disk would hold up producers; so each change
takes the copy's own lock, and the replica's threads only note what the copier is to do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from storage_node.directories import checkpoints
from storage_node.directories.atomic import NoRoom, io_errors, read_bytes, write_atomic
from storage_node.directories.errors import MalformedCheckpoint
from storage_node.errors import LogAppendError, NotEnoughSpace
from storage_node.log.admission import LAST_EPOCH
from storage_node.log.batch import Buffer
from storage_node.log.config import LogConfig
from storage_node.log.files import Home, write_all
from storage_node.log.log import Appended, Log
from storage_node.log.segment import LOG, Segment, file_name
from storage_node.log.state import wall_ms
from storage_node.move.walk import Recent, Walked
from storage_node.types import TopicPartition

FLUSHED = checkpoints.RECOVERY_POINTS
"""Of the name and form of a log directory's file, but in the copy's own folder: the mover alone writes it."""
_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a copy has not done yet of what was done to its replica, in this order: a restart, a cut, a log start."""

    restart: int | None = None
    cut: int | None = None
    start: int = 0

    def truncated(self, offset: int) -> Deferred:
        """After a truncation at `offset`."""
        restart = self.restart if self.restart is None else min(self.restart, offset)
        return Deferred(restart, offset if self.cut is None else min(self.cut, offset), min(self.start, offset))

    def restarted(self, offset: int) -> Deferred:
        """After all was dropped."""
        return Deferred(restart=offset)

    def started(self, start: int) -> Deferred:
        """After the log start offset was raised."""
        return replace(self, start=max(self.start, start))

    def ends(self, start: int, end: int) -> tuple[int, int]:
        """Log start and log end offset of a copy once this is done."""
        if self.restart is not None:
            start = end = self.restart
        if self.cut is not None:
            start, end = min(start, self.cut), min(end, self.cut)
        start = max(start, self.start)
        return start, max(start, end)


_NOTHING = Deferred()


class FutureLog(Log):
    """See the module. `writing` is held around every change; take it to make several changes one.

    Bytes of a batch that is not whole yet stand behind the active segment's end: no reader, no size and no offset
    knows of them, and a start cuts them off. `version` grows with every truncation.

    The replica's own threads never touch the copy's disk: a truncation of the replica is noted here (`defer_*`), counts
    at once for both ends of the copy, and reaches the disk before the copier writes again. A start that finds a copy
    without it compares the copy with its source (`reconcile`).
    """

    sparse: ClassVar[bool] = False
    """What a crash left is copied again from the first offset that is missing: the source has it, if anybody has."""
    epochs_first: ClassVar[bool] = False

    def __init__(self, path: Path, tp: TopicPartition, config: LogConfig, directory: str, home: Home) -> None:
        super().__init__(path, tp, config, directory, home)
        self.writing = threading.RLock()
        self.version = 0
        self._deferring = threading.Lock()
        self._deferred = Deferred()
        self._noted = 0
        self._torn = 0

    def note_flushed(self) -> None:
        """Flush the full segments and keep on the disk how far that is: a start then checks only what follows.

        Raises StorageError.
        """
        self.flush_closed_segments()
        with self.writing:
            self._note()

    def _note(self) -> None:
        point = self.recovery_point
        if point == self._noted or self._closed:
            return
        with io_errors(self.directory, f"writing {FLUSHED} of {self.path.name}"):
            try:
                write_atomic(self.path / FLUSHED, checkpoints.encode({self.tp: point}))
            except FileNotFoundError:
                # The folder was taken away meanwhile, with its topic or by a cancel: no start looks for its note.
                if os.path.lexists(self.path):
                    raise
        self._noted = point

    def noted(self, point: int) -> None:
        """This is what `note_flushed` left; a log that ends before it is noted as such before anything is appended."""
        self._noted = point
        self._note()

    # What the replica's threads note

    def defer_truncation(self, offset: int) -> None:
        """Truncate the copy at `offset` before anything else is written to it; nothing waits for a disk here."""
        self._defer(lambda known: known.truncated(offset))

    def defer_restart(self, offset: int) -> None:
        """Drop all of the copy, and let it go on at `offset`, before anything else is written to it."""
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
        """Whether `apply_deferred` has anything to do."""
        return self._deferred != _NOTHING

    def apply_deferred(self) -> None:
        """Bring to the disk what was deferred. Raises like `truncate_to`, `truncate_fully` and `advance_log_start`."""
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

    @property
    def log_start_offset(self) -> int:
        return self._deferred.ends(self._log_start_offset, self._end[0])[0]

    @property
    def log_end_offset(self) -> int:
        return self._deferred.ends(self._log_start_offset, self._end[0])[1]

    # What the copier does

    def begin(self, base_offset: int | None, first: int) -> Segment:
        """The segment for what comes next: a new one if the source has one there, with that `base_offset`.

        `first` is the base offset of the next batch. Raises like `roll`.
        """
        with self.writing, self._appending():
            active, end = self._segments[-1], self._end[0]
            if active.size and base_offset is not None and base_offset != active.base_offset:
                active = self._roll(max(base_offset, end), wall_ms())
            elif not active.size:
                wanted = min(first, active.base_offset) if base_offset is None else base_offset
                if wanted != active.base_offset:
                    active = self._replace_active(wanted, wall_ms())
            self._publish(end)
            return active

    def write(self, data: memoryview, walked: Walked) -> None:
        """Write the next bytes, and take in the batches that are whole with them.

        Raises `NotEnoughSpace`, `LogAppendError`; the copy then ends where it did.
        """
        with self.writing, self._appending():
            self._refuse_closed()
            active = self._segments[-1]
            position = active.size + self._torn
            epochs = self._epochs
            for epoch, start in walked.epochs:
                epochs = epochs.assign(epoch, start)
            try:
                if epochs is not self._epochs:
                    self._store_epochs(epochs)
                self._torn += len(data)
                file = active.file
                write_all(file.fd, data, position)
            except OSError:
                self.cut()
                raise
            if walked.count:
                active.extended(walked.end, walked.entries, walked.largest)
                self._torn = position + len(data) - walked.end
                now = wall_ms()
                for producer, recent in walked.producers.items():
                    self._take_in(producer, recent, now)
                self._publish(walked.next_offset)

    def _take_in(self, producer_id: int, recent: Recent, now_ms: int) -> None:
        for header in recent.headers:
            self._producers.update(header, now_ms)
        known = self._producers.get(producer_id)
        if known is None:
            return  # it was silent for longer than as many others as a log knows
        if recent.timestamp > known.timestamp:
            self._producers.producers[producer_id] = replace(known, timestamp=recent.timestamp)

    def cut(self) -> None:
        """Cut off what was written of a batch that is not whole. Raises LogAppendError."""
        with self.writing:
            if self._torn and not self._closed:
                active = self._segments[-1]
                try:
                    file = active.file
                    os.ftruncate(file.fd, active.size)
                except OSError as exc:
                    raise LogAppendError(self.directory, f"cutting the copy of {self.tp}") from exc
            self._torn = 0

    @contextlib.contextmanager
    def _appending(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} to append to {self.tp}") from exc
            raise LogAppendError(self.directory, f"appending to the log of {self.tp}") from exc

    # Changes, one at a time

    def append_copied(self, records: Buffer, now_ms: int | None = None, *, epoch: int = LAST_EPOCH) -> Appended:
        with self.writing:
            self.apply_deferred()
            self.cut()
            return super().append_copied(records, now_ms, epoch=epoch)

    def roll(self, now_ms: int | None = None) -> None:
        with self.writing:
            self.apply_deferred()
            self.cut()
            super().roll(now_ms)

    def truncate_to(self, offset: int) -> None:
        with self.writing:
            # Also if nothing of it is here yet: it may have been read.
            self._next_version()
            self.cut()
            super().truncate_to(offset)
            if self.recovery_point < self._noted:
                self._note()

    def truncate_fully(self, offset: int) -> None:
        with self.writing:
            self._next_version()
            self.cut()
            super().truncate_fully(offset)
            if self.recovery_point != self._noted:
                self._note()

    def _next_version(self) -> None:
        with self._deferring:
            self.version += 1

    def advance_log_start(self, offset: int) -> bool:
        with self.writing:
            return super().advance_log_start(offset)

    def follow_start(self, start: int) -> None:
        with self.writing:
            super().follow_start(start)

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        with self.writing:
            self.apply_deferred()
            self.cut()
            return super().delete_old_segments(now_ms, high_watermark)

    def set_leader_epochs(self, entries: Iterable[tuple[int, int]]) -> None:
        with self.writing:
            super().set_leader_epochs(entries)

    def settle(self) -> None:
        with self.writing:
            self.apply_deferred()
            self.cut()
            super().settle()

    def close(self, clean: bool = True) -> None:
        with self.writing:
            if clean:
                self.cut()
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


def bytes_found(folder: Path) -> int:
    """Bytes of records that a copy which is not open yet has on the disk, checked or not; 0 where nobody can tell."""
    try:
        return sum(entry.stat().st_size for entry in folder.iterdir() if entry.suffix == LOG)
    except OSError:
        return 0


def carry_history(source: Log, copy: FutureLog) -> None:
    """Take over what batches alone do not carry: leader epochs without records, and producers whose records are gone.

    Called while the swap holds the log, when both have the same records.
    """
    with copy.writing:
        copy.cut()
        start = copy.log_start_offset
        entries = source.leader_epochs.truncated_from_start(start).entries
        if entries != copy.leader_epochs.entries:
            copy.set_leader_epochs(entries)
        copy.adopt_producers(source.producers)
