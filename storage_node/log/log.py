"""A partition's log in one directory: appends, reads, flushes, truncation, retention.

The caller serialises the writers (`append_*`, `roll`, `truncate_*`, `advance_log_start`, `delete_old_segments`,
`close`). Reads run at any time on any thread without a lock: the tuple of segments is replaced, never changed, and the
log end offset is published last. `flush` and `purge_deleted` may run beside appends.

The log turns an OSError into a `StorageError` with the log directory. A full disk raises `NotEnoughSpace` and leaves
the log unchanged.

`Log` puts its parts together, each in a module of its own: segments, leader epochs, producers, appender, flusher,
reader, truncation, retention.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories.atomic import NoRoom, full_is_no_room
from storage_node.errors import LogReadError, LogStartBeyondEnd, MetadataIOError, NotEnoughSpace, RequestRefused
from storage_node.log import recovery
from storage_node.log.admission import (
    LAST_EPOCH,
    Produced,
    UnexpectedAppendOffset,
    admit_copied,
    admit_produced,
    inspect,
)
from storage_node.log.appender import Appender
from storage_node.log.batches.batch import Buffer
from storage_node.log.blocks import BlockAppender
from storage_node.log.config import LOG_APPEND_TIME, LogConfig
from storage_node.log.context import LogContext, wall_ms
from storage_node.log.files import Home
from storage_node.log.flusher import Flusher
from storage_node.log.leader_epochs import LeaderEpochFileCache, LeaderEpochs
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.producers.state import ProducerState
from storage_node.log.reading import PLENTY, FetchedData, Reader
from storage_node.log.retention import Retention
from storage_node.log.segment import LogClosed, Segment
from storage_node.log.segments import LogSegments, Published
from storage_node.log.truncation import Truncation
from storage_node.model.ids import TopicPartition

__all__ = ["PLENTY", "Appended", "FetchedData", "Log", "LogClosed", "UnexpectedAppendOffset"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets of an append. `log_append_time` in ms or -1; `duplicate`: an earlier append has these offsets."""

    base_offset: int
    last_offset: int
    log_append_time: int = -1
    duplicate: bool = False


class Log:
    """A partition's log (see the module's docstring); opened by `Log.open`."""

    def __init__(self, path: Path, tp: TopicPartition, config: LogConfig, directory: str, home: Home) -> None:
        self.path = path
        self.tp = tp
        self.directory = directory
        self.recovered_bytes = 0
        """Bytes that recovery found valid when it scanned; 0 after a clean shutdown."""
        self._home = home
        context = self._context = LogContext(tp, directory, home, config)
        segments = self._segments = LogSegments(context)
        epochs = self._epochs = LeaderEpochFileCache(context)
        producers = self._producers = ProducerStateManager(context, segments)
        flusher = self._flusher = Flusher(context, segments, producers)
        appender = self._appender = Appender(context, segments, epochs, producers, flusher)
        self._truncation = Truncation(context, segments, epochs, producers, flusher)
        self._retention = Retention(context, segments, epochs, producers, flusher, appender)
        self._reader = Reader(context, segments)

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
        sealed_start: tuple[int, int] = (0, -1),
        clean: bool = False,
        copy: bool = False,
        refetch: bool = False,
        now_ms: int | None = None,
    ) -> Log:
        """Open the log in `path`, created if it does not exist; recover it unless the shutdown was `clean`.

        `directory` is the absolute log directory, named in errors; `recovery_point` and `log_start_offset` come from
        its checkpoints, `sealed_start` (a log start offset and a leader epoch) from the seal of a swap, which has what
        was deleted between the checkpoint and the seal. `copy`: a mover fills it from a replica. After a crash it must
        then be complete up to its end, because only the source can have what is missing, and it has no `leader-epoch-
        checkpoint` before its first record.

        A log whose records all lie below its log start offset is not opened: `LogStartBeyondEnd`. With `refetch`, which
        is for a replica whose records another node has, it is opened without them at offset 0, from which a follower
        finds the leader's log start. Raises `LogReadError`, and `NotEnoughSpace` on a full disk.
        """
        now = wall_ms() if now_ms is None else now_ms
        try:
            with full_is_no_room():
                path.mkdir(exist_ok=True)
            log = cls(path, tp, config, directory, Home(str(path)))
            log._load(recovery_point, log_start_offset, sealed_start, clean, copy, refetch, now)
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space on {directory} to open the log of {tp}") from exc
            raise LogReadError(directory, f"opening the log of {tp}") from exc
        return log

    def _load(
        self,
        recovery_point: int,
        log_start_offset: int,
        sealed_start: tuple[int, int],
        clean: bool,
        copy: bool,
        refetch: bool,
        now_ms: int,
    ) -> None:
        context, log = self._context, self._segments
        loaded = recovery.load(
            self._home,
            interval=context.config.index_interval_bytes,
            recovery_point=recovery_point,
            clean=clean,
            now_ms=now_ms,
            gaps=not copy,
        )
        segments, end = loaded.segments, loaded.end_offset
        removed = loaded.removed
        known, stored = recovery.load_epochs(self._home, segments)
        log_start_offset = max(log_start_offset, _sealed(sealed_start, (*known.entries, *loaded.epoch_starts)))
        if segments and end < log_start_offset:
            # All that recovery left lies before the log start offset of the checkpoint, or of the seal. Our own are
            # written only after a flush of the log up to them (`OffsetFiles`), so that no crash leaves this: the file
            # was edited, or is newer than this folder. Neither shows here which is right.
            if size := sum(segment.size for segment in segments):
                found = (
                    f"its log ends at offset {end}, before its log start offset {log_start_offset}, below which "
                    f"records are deleted: {len(segments)} segments from offset {segments[0].base_offset} on, "
                    f"{size} bytes"
                )
                if not refetch:
                    for segment in segments:
                        segment.close()
                    raise LogStartBeyondEnd(f"{found}, are left as they are in {self.path}", log_start_offset)
                _log.warning("%s: %s, are removed from %s and fetched from its leader", context.tp, found, self.path)
                # Not at the log start offset, which may lie anywhere: a follower that starts too late lacks records.
                log_start_offset = 0
                known, stored, loaded.epoch_starts = LeaderEpochs(), False, []
            for segment in reversed(segments):
                segment.remove()
            removed, segments = [*removed, *segments], []
        if not segments:
            end = log_start_offset
        if self._producers.remove_beyond(end) or removed:
            # Unflushed, they would come back after a power loss, behind what is appended from now on.
            self._home.sync()
        if not segments:
            segments = [log.create(end, now_ms)]
        self.recovered_bytes = loaded.recovered_bytes
        log.found_removed(removed, now_ms)
        log.all = tuple(segments)
        log.log_start_offset = max(log_start_offset, segments[0].base_offset)
        exact = clean and not loaded.scanned
        # The names of files that a dead process created may not be on disk.
        context.names_dirty |= not exact
        self._flusher.begin(end if exact else min(recovery_point, end), now_ms)
        self._producers.load(segments, end, now_ms)
        epochs = self._epochs.epochs = known
        for epoch, start in loaded.epoch_starts:
            if epoch > epochs.latest:
                epochs = epochs.assign(epoch, start)
        # An epoch that begins at the log end has no records yet and is kept: its leader was elected.
        epochs = epochs.truncated_from_end(end + 1).truncated_from_start(log.log_start_offset)
        if epochs != known or not stored:
            # Stored even if it is empty: without the file, every start would read all batch headers for it.
            self._epochs.store(epochs, always=not stored and (not copy or bool(loaded.segments)))
        log.publish(end)

    # Properties

    @property
    def config(self) -> LogConfig:
        """The topic's configs; another thread may replace them."""
        return self._context.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._context.config = config

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read; it may lie inside a batch."""
        return self._segments.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments.published[0]

    @property
    def published(self) -> Published:
        """The log end offset, the segments, and the published size of the last one, all of one moment."""
        return self._segments.published

    @property
    def recovery_point(self) -> int:
        """The offset before which everything is on disk."""
        return self._flusher.recovery_point

    @property
    def untidy(self) -> bool:
        """Whether closed segments need a flush, or removed ones await deletion; housekeeping checks it each second."""
        segments = self._segments
        return self._flusher.recovery_point < segments.all[-1].base_offset or segments.await_deletion

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        return self._segments.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order; the last one is active. Readable even after their removal."""
        return self._segments.all

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The history of leader epochs."""
        return self._epochs.epochs

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch; -1 if there is none."""
        return self._epochs.epochs.latest

    @property
    def producers(self) -> ProducerState:
        """The state of idempotent producers; for the writer only, except `ProducerState.known`."""
        return self._producers.state

    @property
    def closed(self) -> bool:
        """Whether `close` or `delete` was called."""
        return self._context.closed

    # Appending

    def append_as_leader(self, records: Buffer | Produced, leader_epoch: int, now_ms: int | None = None) -> Appended:
        """Append a produced batch: assign it the next offsets and this leader epoch. `inspect` may have run before.

        A batch that is among the last five of its producer is a duplicate, and the offsets of the first append are
        returned. Raises `CorruptRecord`, `OutOfOrderSequence`, `InvalidProducerEpoch`, `RequestRefused`
        (MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP, UNKNOWN_SERVER_ERROR), `NotEnoughSpace`,
        `LogAppendError`.
        """
        now = wall_ms() if now_ms is None else now_ms
        context = self._context
        context.refuse_closed()
        config = context.config
        admitted = admit_produced(
            records if isinstance(records, Produced) else inspect(records, config),
            offset=self._segments.published[0],
            leader_epoch=leader_epoch,
            config=config,
            producers=self._producers.state,
            now_ms=now,
        )
        if (known := admitted.duplicate) is not None:
            return Appended(known.first_offset, known.last_offset, duplicate=True)
        self._appender.append(admitted.data, admitted.batches, now)
        stamp = now if config.message_timestamp_type == LOG_APPEND_TIME else -1
        return Appended(admitted.batches[0][1].base_offset, admitted.batches[-1][1].last_offset, stamp)

    def append_copied(self, records: Buffer, now_ms: int | None = None, *, epoch: int = LAST_EPOCH) -> Appended:
        """Append batches of another copy of this log, with their offsets and epochs; no batches are not an error.

        They must begin at or beyond the log end offset; an empty log also accepts a first batch that holds its start
        offset. `epoch`: none of them may be of a later leader epoch. Raises `CorruptRecord`, `UnexpectedAppendOffset`,
        `RequestRefused` with FENCED_LEADER_EPOCH, `NotEnoughSpace`, `LogAppendError`.
        """
        now = wall_ms() if now_ms is None else now_ms
        self._context.refuse_closed()
        segments = self._segments
        end = segments.published[0]
        batches = admit_copied(records, offset=end, empty=segments.size == 0, epoch=epoch)
        if not batches:
            return Appended(end, end - 1)
        if batches[0][1].base_offset < end:
            segments.replace_active(batches[0][1].base_offset, now)
        self._appender.append(records, batches, now)
        return Appended(batches[0][1].base_offset, batches[-1][1].last_offset)

    def blocks(self) -> BlockAppender:
        """Return a writer of blocks of another copy's bytes; a log has at most one, and nothing else appends."""
        return BlockAppender(self._context, self._segments, self._epochs, self._producers, self._appender)

    def roll(self, now_ms: int | None = None) -> None:
        """Start a new segment at the log end offset, unless the active one is empty. Raises like an append."""
        self._appender.roll_filled(wall_ms() if now_ms is None else now_ms)

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upto: int | None = None, min_one: bool = True, at_once: int | None = None
    ) -> FetchedData:
        """Return whole batches of one segment, from the batch that holds `offset` on, at most `max_bytes`.

        Only batches that end at or before `upto` (the high watermark, for example) are returned. `min_one`: the first
        batch is returned even if it exceeds `max_bytes`. `at_once`: at most so many bytes are read now; the region
        locates the rest. Empty at the log end offset. Raises `OffsetOutOfRange` outside the log start and log end
        offsets, `CorruptRecord` for damaged bytes, `LogReadError`, `LogClosed`.
        """
        return self._reader.read(offset, max_bytes, upto, min_one, at_once)

    def available(self, offset: int, *, upto: int | None = None) -> int:
        """Return how many bytes a fetch from `offset` up to `upto` would return, without reading records.

        `PLENTY` if `upto` lies in a later segment than `offset`. Raises like `read`.
        """
        return self._reader.available(offset, upto)

    def offset_for_timestamp(self, ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with a timestamp at or after `ms`; None if there is none.

        For a batch that is not decompressed it is the batch's base offset. Raises like `read`.
        """
        return self._reader.offset_for_timestamp(ms)

    def max_timestamp(self) -> tuple[int, int]:
        """Return (offset, timestamp) of the first record with the largest timestamp, or (-1, -1). Raises as `read`."""
        return self._reader.max_timestamp()

    # Flushing

    def flush(self) -> None:
        """Flush everything appended so far and advance the recovery point; may run beside appends.

        Raises `LogFlushError`, also on every later call: after a failed fsync the kernel may have dropped the dirty
        pages, and a second fsync would report success although the data is lost.
        """
        self._flusher.flush()

    def flush_records(self) -> None:
        """Flush all records but not the indexes, which recovery rebuilds: half of the fsyncs of `flush`.

        The recovery point does not advance before a `flush`. Raises like `flush`.
        """
        self._flusher.flush_records()

    def flush_closed_segments(self) -> None:
        """Flush all segments but the active one, so that a start need not recover them. Raises like `flush`."""
        self._flusher.flush_closed_segments()

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush all segments if `flush_ms` has passed since the last time, else the closed ones; for housekeeping.

        Returns whether the recovery point advanced. Raises like `flush`.
        """
        return self._flusher.flush_if_due(now_ms)

    # Leader epochs and producers

    def assign_leader_epoch(self, epoch: int) -> None:
        """Record that `epoch` begins at the log end offset, before its first record. Raises `MetadataIOError`."""
        known = self._epochs.epochs
        if epoch > known.latest:
            self._epochs.change(known.assign(epoch, self._segments.end))

    def set_leader_epochs(self, entries: Iterable[tuple[int, int]]) -> None:
        """Replace the history by another copy's (epoch, start offset) entries. Raises `MetadataIOError`."""
        self._epochs.change(LeaderEpochs(tuple(entries)))

    def forget_producers(self, most: int) -> int:
        """Forget the producers that were idle for longest until `most` are left; return how many were forgotten."""
        return self._producers.state.forget(most)

    def adopt_producers(self, other: ProducerState) -> None:
        """Add the producer state of another copy, also to the snapshots on disk if no record of this log implies it.

        Raises `NotEnoughSpace`, `MetadataIOError`.
        """
        self._producers.adopt(other)

    # Truncation and retention

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or beyond; no operation at or beyond the log end offset.

        If `offset` lies inside a batch, the log ends at that batch's base offset. Raises `LogAppendError`,
        `LogFlushError`.
        """
        self._truncation.truncate_to(offset)

    def truncate_fully(self, offset: int) -> None:
        """Drop everything; the log then starts and ends at `offset`. Raises `LogAppendError`, `NotEnoughSpace`."""
        self._truncation.truncate_fully(offset)

    def advance_log_start(self, offset: int) -> bool:
        """Advance the log start offset (DeleteRecords), possibly into a batch; return whether it advanced.

        Raises `OffsetOutOfRange` beyond the log end offset, `MetadataIOError`. The next `delete_old_segments` deletes
        the segments that lie entirely below it.
        """
        return self._truncation.advance_log_start(offset)

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Delete the oldest segments by time, size and log start offset; return how many.

        Only segments entirely below the high watermark are deleted (default: the log end offset). Their files are
        renamed to `.deleted`, which `purge_deleted` removes later. Expired producers are forgotten. Raises
        `LogAppendError`, `NotEnoughSpace`.
        """
        return self._retention.delete_old_segments(now_ms, high_watermark)

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of segments deleted file.delete.delay.ms ago; return how many. Raises `MetadataIOError`."""
        return self._retention.purge_deleted(now_ms)

    # Directory and lifecycle

    def relocated(self, new_path: Path) -> None:
        """Record the directory's new path after a rename."""
        self.path = new_path
        self._home.path = str(new_path)

    def close(self, clean: bool = True) -> None:
        """Close the log; reads in progress finish, later calls raise `LogClosed`. Closing twice is allowed.

        `clean`: flush everything and write a producer snapshot, so that the next open needs no recovery. Raises
        `LogFlushError` if that fails; the log is closed nevertheless.
        """
        with self._flusher.lock:
            if self._context.closed:
                return
            try:
                if clean:
                    self._flusher.settle()
            finally:
                self._context.closed = True
                self._segments.close()

    def settle(self) -> None:
        """Flush everything and write a producer snapshot as `close` does, but stay open. Only the writer may call it.

        Raises `LogFlushError`.
        """
        with self._flusher.lock:
            self._context.refuse_closed()
            self._flusher.settle()

    def delete(self) -> None:
        """Close the log and remove its directory; a symlink in its place is rejected.

        Raises `RequestRefused`, `MetadataIOError`.
        """
        self.close(clean=False)
        if self.path.is_symlink():
            raise RequestRefused(f"{self.path} is a symbolic link and is not deleted")
        try:
            while os.path.lexists(self.path):
                # `purge_deleted` may remove a file while rmtree walks the directory.
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.path)
        except OSError as exc:
            raise MetadataIOError(self.directory, f"removing {self.path}") from exc


def _sealed(sealed: tuple[int, int], epochs: Iterable[tuple[int, int]]) -> int:
    """Return the log start offset of a seal, 0 once it does not hold: the log was truncated below it since, and has
    records of a newer leader there, which an unclean election allows.
    """
    start, epoch = sealed
    return 0 if any(each > epoch and begins < start for each, begins in epochs) else start
