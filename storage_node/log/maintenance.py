"""What is done to a log beside appending and reading: flushing, cutting at both ends, retention, renaming, closing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import (
    LogAppendError,
    LogFlushError,
    MetadataIOError,
    NotEnoughSpace,
    OffsetOutOfRange,
    RequestRefused,
)
from storage_node.failpoints import failpoint
from storage_node.log import recovery
from storage_node.log.files import no_descriptor
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.log.producer_state import ProducerState, snapshot_name
from storage_node.log.retention import SegmentAge, deletable
from storage_node.log.segment import Segment
from storage_node.log.state import LogState, wall_ms

_T = TypeVar("_T")

FLUSH_AFTER_FILES = failpoints.register("log.flush_after_files")
FLUSH_AFTER_NAMES = failpoints.register("log.flush_after_names")


class MaintainedLog(LogState):
    """The maintenance of a log; `Log` adds appends and reads."""

    # Flushing

    def flush(self) -> None:
        """Bring everything appended so far to the disk and advance the recovery point; may run beside appends.

        Raises `LogFlushError`, and from then on always: after a failed flush nobody knows what the disk has, and a
        second try would report a success that is none.
        """
        with self._flush_lock:
            self._refuse_closed()
            # The end is taken before the segments: what is before it is in them, and written.
            end = self._end[0]
            self._flush(self._segments, end)

    def flush_records(self) -> None:
        """Bring all records to the disk and leave the indexes, which a start rebuilds: half of what `flush` waits for.

        The recovery point stays where it is, until a `flush`. Raises like `flush`.
        """
        with self._flush_lock:
            self._refuse_closed()
            self._guarded(lambda: [segment.flush(indexes=False) for segment in self._segments if segment.dirty])

    def flush_closed_segments(self) -> None:
        """Flush all but the active segment, without which a start would have to scan them. Raises like `flush`."""
        with self._flush_lock:
            if self._closed:
                return
            segments = self._segments
            if self._recovery_point < segments[-1].base_offset:
                self._flush(segments[:-1], min(segments[-1].base_offset, self._end[0]))

    def flush_if_due(self, now_ms: int) -> bool:
        """For regular housekeeping: flush all if `flush_ms` has passed since the last time, else closed segments only.

        Answers whether anything had to be flushed. Raises like `flush`.
        """
        before, end = self._recovery_point, self._end[0]
        if before < end and now_ms - self._flushed_ms >= self.config.flush_ms:
            with self._flush_lock:
                if not self._closed:
                    self._flush(self._segments, end)
            self._flushed_ms = now_ms
        else:
            self.flush_closed_segments()
        return self._recovery_point > before

    def _flush(self, segments: Sequence[Segment], end: int) -> None:
        # All of them, also after one that had no room for its indexes.
        complete = self._guarded(lambda: [segment.flush() for segment in segments if segment.dirty])
        if all(complete):
            self._recovery_point = max(self._recovery_point, end)

    def _guarded(self, flush: Callable[[], _T]) -> _T:
        """Flush files, then the names of those that are new; a failure is remembered, since none may be tried again."""
        if self._flush_failed:
            raise LogFlushError(self.directory, f"flushing the log of {self.tp} (a flush failed before)")
        try:
            done = flush()
            if self._names_dirty:
                self._names_dirty = False
                failpoint(FLUSH_AFTER_FILES)
                self._home.sync()
                failpoint(FLUSH_AFTER_NAMES)
        except OSError as exc:
            # Without a descriptor no file was asked to flush: what is dirty stays so, and is flushed the next time.
            self._names_dirty = True
            self._flush_failed = not no_descriptor(exc)
            raise LogFlushError(self.directory, f"flushing the log of {self.tp}") from exc
        return done

    # Producers

    def forget_producers(self, most: int) -> int:
        """Forget the producers that have been silent for longest, until there are `most`; returns how many."""
        return self._producers.forget(most)

    def adopt_producers(self, other: ProducerState) -> None:
        """Know what the producers of another copy did, over a crash too where no record here tells of them.

        Raises `NotEnoughSpace`, `MetadataIOError`.
        """
        self._refuse_closed()
        silent = {pid: known for pid, known in other.producers.items() if pid not in self._producers.producers}
        try:
            # Into the snapshot that a start takes (`recovery.load_producers`) and the one before it, which it takes
            # after a truncation; each is a flush for which produces wait.
            for offset in (recovery.snapshots(self._home) or [self._segments[0].base_offset])[-2:] if silent else ():
                stored = self._stored_producers(offset)
                if stored is not None:
                    before = {pid: known for pid, known in silent.items() if known.last_offset < offset}
                    content = ProducerState({**before, **stored.producers}).encode()
                    self._home.write(snapshot_name(offset), content, sync=True)
                    self._names_dirty = True
            self._producers.take_over(other)
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} for the producers of {self.tp}") from exc
            raise MetadataIOError(self.directory, f"writing the producers of {self.tp}") from exc

    def _stored_producers(self, offset: int) -> ProducerState | None:
        """Return the producers in the snapshot of an offset: none if it does not exist, None if it is damaged."""
        try:
            return ProducerState.decode(self._home.read(snapshot_name(offset)) or ProducerState().encode())
        except ValueError:
            return None

    # Cutting

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` or beyond; nothing is done at or beyond the log end offset.

        If `offset` is inside a batch, the log then ends where that batch began. Raises `LogAppendError`,
        `LogFlushError`.
        """
        self._refuse_closed()
        if offset >= self._end[0]:
            return
        if offset < self._segments[0].base_offset:
            self.truncate_fully(offset)
            return
        with self._flush_lock:
            try:
                self._truncate(offset)
            except OSError as exc:
                raise LogAppendError(self.directory, f"truncating the log of {self.tp}") from exc

    def _truncate(self, offset: int) -> None:
        kept = tuple(segment for segment in self._segments if segment.base_offset <= offset)
        gone = self._segments[len(kept) :]
        position, header = kept[-1].find(offset, kept[-1].size)
        end = offset if header is None else min(offset, header.base_offset)
        # Readers first: they must not look for what is about to go.
        self._segments = kept
        self._end = (end, kept, position)
        self._recovery_point = min(self._recovery_point, end)
        self._log_start_offset = min(self._log_start_offset, end)
        # Each step is on the disk before the next. A start takes what is below the recovery point as it finds it: with
        # the last kept segment cut and later ones still there, or with an epoch forgotten that still has its records,
        # it would serve another history. The epochs of records that are gone it forgets by itself.
        recovery.remove_snapshots(self._home, end)
        self._remove(tuple(reversed(gone)), wall_ms())
        self._names_dirty = False
        self._home.sync()
        kept[-1].truncate(offset)
        self._guarded(lambda: kept[-1].flush(indexes=False))
        self._store_epochs(self._epochs.truncated_from_end(end))
        self._producers = recovery.load_producers(self._home, list(kept), end, now_ms=wall_ms())

    def truncate_fully(self, offset: int) -> None:
        """Drop everything; the log then starts and ends at `offset`. Raises `LogAppendError`, `NotEnoughSpace`."""
        self._refuse_closed()
        with self._flush_lock:
            try:
                self._restart_at(offset, wall_ms())
            except OSError as exc:
                if isinstance(exc, NoRoom):
                    raise NotEnoughSpace(f"no space left on {self.directory} for a segment of {self.tp}") from exc
                raise LogAppendError(self.directory, f"truncating the log of {self.tp}") from exc

    def _restart_at(self, offset: int, now_ms: int) -> None:
        gone = self._segments
        self._remove(tuple(reversed(gone)), now_ms)
        for taken in recovery.snapshots(self._home):
            self._home.unlink(snapshot_name(taken))
        self._segments = (self._new_segment(offset, now_ms),)
        self._producers = ProducerState()
        self._recovery_point = self._log_start_offset = offset
        self._publish(offset)
        # The old segments are gone on the disk before the epochs of their records are.
        self._names_dirty = False
        self._home.sync()
        self._store_epochs(LeaderEpochs())
        self._names_dirty = False
        self._home.sync()

    def advance_log_start(self, offset: int) -> bool:
        """Raise the log start offset (DeleteRecords), which may then lie inside a batch; False if it is there already.

        Raises `OffsetOutOfRange` beyond the log end offset, `MetadataIOError`. Segments wholly below it go with the
        next `delete_old_segments`.
        """
        self._refuse_closed()
        if offset > self._end[0]:
            raise OffsetOutOfRange(
                f"Cannot increment the log start offset to {offset} of partition {self.tp} since it is larger than "
                f"the log end offset {self._end[0]}"
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        try:
            self._forget_epochs_before(offset)
        except OSError as exc:
            raise MetadataIOError(self.directory, f"raising the log start offset of {self.tp}") from exc
        return True

    def follow_start(self, start: int) -> None:
        """Drop what another copy of this log has dropped: all below its log start offset, or all there is.

        Raises like `advance_log_start` and `truncate_fully`.
        """
        if start > self._end[0]:
            self.truncate_fully(start)
        elif start > self._log_start_offset:
            self.advance_log_start(start)

    # Retention

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Delete the oldest segments by time, size and log start offset; answers how many.

        Nothing goes that is not below the high watermark (the log end offset, if not given). The files are renamed to
        `.deleted` now and removed by `purge_deleted`. Producers that were silent for too long are forgotten. Raises
        `LogAppendError`, `NotEnoughSpace`.
        """
        if self._closed:
            return 0
        self._producers.expire(now_ms, self.config.producer_id_expiration_ms)
        end = self._end[0]
        try:
            count = deletable(
                self._ages(),
                self.config,
                log_start_offset=self._log_start_offset,
                high_watermark=end if high_watermark is None else high_watermark,
                now_ms=now_ms,
            )
            if not count:
                return 0
            if count == len(self._segments):
                self._roll(end, now_ms)
            gone = self._segments[:count]
            self._segments = self._segments[count:]
            self._log_start_offset = max(self._log_start_offset, self._segments[0].base_offset)
            self._publish(end)
            self._remove(gone, now_ms)
            for segment in gone:
                self._home.unlink(snapshot_name(segment.base_offset))
            self._forget_epochs_before(self._log_start_offset)
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} to roll the log of {self.tp}") from exc
            raise LogAppendError(self.directory, f"deleting old segments of {self.tp}") from exc
        return count

    def _ages(self) -> list[SegmentAge]:
        segments, ends = self._segments, [segment.base_offset for segment in self._segments[1:]]
        ages = []
        for segment, end in zip(segments, [*ends, self._end[0]], strict=True):
            timestamp = segment.max_timestamp[0]
            ages.append(
                SegmentAge(
                    segment.base_offset, end, segment.size, timestamp if timestamp >= 0 else segment.modified_ms()
                )
            )
        return ages

    def _remove(self, segments: Sequence[Segment], now_ms: int) -> None:
        due = now_ms + self.config.file_delete_delay_ms
        for segment in segments:
            segment.remove()
            self._removed.append((due, segment))

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of segments whose delay has passed; answers how many. Raises `MetadataIOError`."""
        with self._flush_lock:
            count = 0
            try:
                while not self._closed and self._removed and self._removed[0][0] <= now_ms:
                    self._removed[0][1].purge()
                    self._removed.popleft()
                    count += 1
            except OSError as exc:
                raise MetadataIOError(self.directory, f"removing deleted segments of {self.tp}") from exc
            return count

    # The directory, and the end

    def rename(self, new_path: Path) -> None:
        """Rename the log's directory within its parent; open files stay good. The parent is not flushed.

        Raises `RequestRefused` if something has that name, or it is in another directory; `MetadataIOError`.
        """
        if new_path == self.path:
            return
        if new_path.parent != self.path.parent:
            raise RequestRefused(f"{self.path} can only be renamed within {self.path.parent}, not to {new_path}")
        try:
            if os.path.lexists(new_path):
                raise RequestRefused(f"{self.path} cannot be renamed: {new_path} exists")
            self.path.rename(new_path)
        except OSError as exc:
            raise MetadataIOError(self.directory, f"renaming {self.path} to {new_path}") from exc
        self.relocated(new_path)

    def relocated(self, new_path: Path) -> None:
        """Take note that the directory was renamed."""
        self.path = new_path
        self._home.path = str(new_path)

    def close(self, clean: bool = True) -> None:
        """Stop using the log; reads under way finish, later calls raise `LogClosed`. Closing twice is allowed.

        `clean`: everything is flushed and the producers are written down, so that the next open scans nothing. Raises
        `LogFlushError` if that failed; the log is closed all the same.
        """
        with self._flush_lock:
            if self._closed:
                return
            try:
                if clean:
                    self._settle()
            finally:
                self._closed = True
                for segment in (*self._segments, *(segment for _, segment in self._removed)):
                    segment.close()

    def settle(self) -> None:
        """Flush everything and write the producers down, as `close` does, and stay open; the writer's to call.

        Raises `LogFlushError`.
        """
        with self._flush_lock:
            self._refuse_closed()
            self._settle()

    def _settle(self) -> None:
        end = self._end[0]
        self._segments[-1].seal()
        self._flush(self._segments, end)
        try:
            self._home.write(snapshot_name(end), self._producers.encode(), sync=True)
            self._home.sync()
        except OSError as exc:
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} for the producers of {self.tp}") from exc
            self._flush_failed = not no_descriptor(exc)
            raise LogFlushError(self.directory, f"writing the producers of {self.tp}") from exc

    def delete(self) -> None:
        """Close the log and remove its directory; a symlink in its place is refused.

        Raises `RequestRefused`, `MetadataIOError`.
        """
        self.close(clean=False)
        if self.path.is_symlink():
            raise RequestRefused(f"{self.path} is a symbolic link and is not deleted")
        try:
            while os.path.lexists(self.path):
                # A file may go while the tree is walked: somebody purged beside us.
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.path)
        except OSError as exc:
            raise MetadataIOError(self.directory, f"removing {self.path}") from exc
