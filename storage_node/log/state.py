"""What a log consists of: its state, how it is opened, its segments and leader epochs. `Log` adds the operations."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom, full_is_no_room
from storage_node.errors import LogAppendError, LogReadError, MetadataIOError, NotEnoughSpace
from storage_node.failpoints import failpoint
from storage_node.log import recovery
from storage_node.log.config import LogConfig
from storage_node.log.files import Home
from storage_node.log.leader_epochs import FILE_NAME, LeaderEpochs
from storage_node.log.producer_state import ProducerState, snapshot_name
from storage_node.log.segment import LogClosed, Segment
from storage_node.types import TopicPartition

ROLL_AFTER_PRODUCERS = failpoints.register("log.roll_after_producers")
ROLL_AFTER_SEGMENT = failpoints.register("log.roll_after_segment")
REPLACE_AFTER_SEGMENT = failpoints.register("log.replace_after_segment")


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class LogState:
    """The state of a log; its one writer changes it, readers see `_end`."""

    sparse: ClassVar[bool] = True
    """Whether offsets may be missing between segments that a start scans; see `recovery.load`."""
    epochs_first: ClassVar[bool] = True
    """Whether a new log has the file of its epochs before its first record."""

    def __init__(self, path: Path, tp: TopicPartition, config: LogConfig, directory: str, home: Home) -> None:
        self.path = path
        self.tp = tp
        self.config = config
        self.directory = directory
        self.recovered_bytes = 0
        """Bytes that opening had to scan; 0 after a clean stop."""
        self._home = home
        self._segments: tuple[Segment, ...] = ()
        self._end: tuple[int, tuple[Segment, ...], int] = (0, (), 0)
        """What readers see: log end offset, segments, size of the last one; replaced in one assignment."""
        self._sealed: tuple[tuple[Segment, ...], int] = ((), 0)
        """The segments for which the bytes of all but the last were added up, and these bytes."""
        self._broken = False
        """Whether a part of an append that failed may be in the files."""
        self._epochs_stale = False
        """Whether the file of the epochs has some that were cut off since."""
        self._log_start_offset = 0
        self._recovery_point = 0
        self._epochs = LeaderEpochs()
        self._producers = ProducerState()
        self._names_dirty = False
        self._removed: deque[tuple[int, Segment]] = deque()
        """When which removed segment's files go."""
        self._flush_lock = threading.Lock()
        self._flush_failed = False
        self._flushed_ms = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        tp: TopicPartition,
        config: LogConfig,
        *,
        directory: str,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = False,
        now_ms: int | None = None,
    ) -> Self:
        """Open the log in `path`, which is made if it is not there, and recover it unless it was stopped `clean`.

        `directory` is the absolute log directory, named in errors; `recovery_point` and `log_start_offset` come from
        its checkpoints. Raises `LogReadError`, and `NotEnoughSpace` on a full disk.
        """
        now = wall_ms() if now_ms is None else now_ms
        try:
            with full_is_no_room():
                path.mkdir(exist_ok=True)
            log = cls(path, tp, config, directory, Home(str(path)))
            log._load(recovery_point, log_start_offset, clean, now)
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space on {directory} to open the log of {tp}") from exc
            raise LogReadError(directory, f"opening the log of {tp}") from exc
        return log

    def _load(self, recovery_point: int, log_start_offset: int, clean: bool, now_ms: int) -> None:
        interval = self.config.index_interval_bytes
        loaded = recovery.load(
            self._home,
            interval=interval,
            recovery_point=recovery_point,
            clean=clean,
            now_ms=now_ms,
            gaps=self.sparse,
        )
        segments, end = loaded.segments, loaded.end_offset
        removed = loaded.removed
        if segments and end < log_start_offset:
            # Everything that was left is before the start that was promised.
            for segment in reversed(segments):
                segment.remove()
            removed, segments = [*removed, *segments], []
        if not segments:
            end = log_start_offset
        if recovery.remove_snapshots(self._home, end) or removed:
            # Or they would come back after the next loss of power, behind what is appended from now on.
            self._home.sync()
        self._epochs, stored = recovery.load_epochs(self._home, segments)
        if not segments:
            segments = [self._new_segment(end, now_ms)]
        self.recovered_bytes = loaded.recovered_bytes
        self._removed.extend((now_ms + self.config.file_delete_delay_ms, segment) for segment in removed)
        self._segments = tuple(segments)
        self._log_start_offset = max(log_start_offset, segments[0].base_offset)
        exact = clean and not loaded.scanned
        # What a dead process created is there by name, and nobody knows whether its name is on the disk.
        self._names_dirty |= not exact
        self._recovery_point = end if exact else min(recovery_point, end)
        self._producers = recovery.load_producers(self._home, segments, end, now_ms=now_ms)
        recovery.tidy_snapshots(self._home, segments)
        epochs = self._epochs
        for epoch, start in loaded.epoch_starts:
            if epoch > epochs.latest:
                epochs = epochs.assign(epoch, start)
        # An epoch that begins at the very end has no records yet, and is kept: its leader was elected.
        epochs = epochs.truncated_from_end(end + 1).truncated_from_start(self._log_start_offset)
        if epochs != self._epochs or not stored:
            # Also if it has no entries: a missing file would have all headers read for it at each start.
            self._store_epochs(epochs, always=not stored and (self.epochs_first or bool(loaded.segments)))
        self._publish(end)
        self._flushed_ms = now_ms

    # What it is

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read; it may lie inside a batch."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._end[0]

    @property
    def published(self) -> tuple[int, tuple[Segment, ...], int]:
        """Log end offset, segments, and the bytes of the last one that readers see: all three of one moment."""
        return self._end

    @property
    def recovery_point(self) -> int:
        """Everything before this offset is on the disk."""
        return self._recovery_point

    @property
    def untidy(self) -> bool:
        """Whether closed segments are to be flushed, or files of removed ones to go; asked of every log each second."""
        return self._recovery_point < self._segments[-1].base_offset or bool(self._removed)

    @property
    def size(self) -> int:
        """Bytes of all .log files; only the active one grows, so the others are added up once for each roll."""
        segments = self._segments
        known, before = self._sealed
        if known is not segments:
            before = sum(segment.size for segment in segments[:-1])
            self._sealed = segments, before
        return before + segments[-1].size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order; the last is the one appended to. Stays readable when they are removed later."""
        return self._segments

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The history of leader epochs."""
        return self._epochs

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch; -1 without one."""
        return self._epochs.latest

    @property
    def producers(self) -> ProducerState:
        """What is known of idempotent producers; for the writer only, but for `ProducerState.known`."""
        return self._producers

    @property
    def closed(self) -> bool:
        """Whether `close` or `delete` was called."""
        return self._closed

    # Segments

    def _publish(self, end: int) -> None:
        self._end = (end, self._segments, self._segments[-1].size)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LogClosed(f"the log of {self.tp} in {self.directory} is closed")
        if self._broken:
            raise LogAppendError(self.directory, f"writing to the log of {self.tp}: an append could not be cut off")

    def roll(self, now_ms: int | None = None) -> None:
        """Begin a new segment at the log end offset, unless the active one is empty. Raises like an append."""
        self._refuse_closed()
        try:
            if self._segments[-1].size:
                self._roll(self._end[0], wall_ms() if now_ms is None else now_ms)
                self._publish(self._end[0])
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} for a segment of {self.tp}") from exc
            raise LogAppendError(self.directory, f"rolling the log of {self.tp}") from exc

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        active = self._segments[-1]
        if not active.size:
            return self._replace_active(base_offset, now_ms)
        active.seal()
        # Not flushed: a damaged snapshot is known by its CRC, and the one before it is taken instead.
        self._home.write(snapshot_name(base_offset), self._producers.encode(), sync=False)
        failpoint(ROLL_AFTER_PRODUCERS)
        segment = self._new_segment(base_offset, now_ms)
        self._segments = (*self._segments, segment)
        failpoint(ROLL_AFTER_SEGMENT)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        interval = self.config.index_interval_bytes
        segment = Segment(self._home, base_offset, interval, created_ms=now_ms, create=True)
        segment.dirty = True
        self._names_dirty = True
        return segment

    def _replace_active(self, base_offset: int, now_ms: int) -> Segment:
        """Put an empty segment at another offset in place of the empty active one."""
        *before, old = self._segments
        # A process that was killed right here has left the new segment beside the old one, and it may be the same now.
        while before and not before[-1].size and before[-1].base_offset >= base_offset:
            left = before.pop()
            self._segments = (*before, old)
            left.remove()
            left.purge()
        segment = self._new_segment(base_offset, now_ms)
        self._segments = (*before, segment)
        failpoint(REPLACE_AFTER_SEGMENT)
        if old.base_offset != base_offset:
            old.remove()
            old.purge()
        return segment

    # Leader epochs

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that `epoch` begins at the log end offset, before it has any record. Raises `MetadataIOError`."""
        if epoch > self._epochs.latest:
            self._change_epochs(self._epochs.assign(epoch, self._end[0]))

    def set_leader_epochs(self, entries: Iterable[tuple[int, int]]) -> None:
        """Take over another copy's whole history of (epoch, start offset). Raises `MetadataIOError`."""
        self._change_epochs(LeaderEpochs(tuple(entries)))

    def _forget_epochs_before(self, offset: int) -> None:
        """Forget what is before the log start offset; a full disk must not keep anybody from deleting."""
        epochs = self._epochs.truncated_from_start(offset)
        try:
            self._store_epochs(epochs)
        except NoRoom:
            # The file then tells more than is needed, and a start cuts that off again.
            self._epochs = epochs

    def _change_epochs(self, epochs: LeaderEpochs) -> None:
        self._refuse_closed()
        try:
            self._store_epochs(epochs)
        except OSError as exc:
            raise MetadataIOError(self.directory, f"writing {FILE_NAME} of {self.tp}") from exc

    def _store_epochs(self, epochs: LeaderEpochs, *, always: bool = False) -> None:
        if always or epochs != self._epochs:
            self._home.write(FILE_NAME, epochs.encode(), sync=bool(epochs.entries))
            self._names_dirty = True
        self._epochs = epochs
