"""A partition's log in one directory: appends, reads, flushes, truncation, retention.

Writers (`append_*`, `roll`, `truncate_*`, `advance_log_start`, `delete_old_segments`, `close`) are serialised by the
caller. Reads run at any time from any thread without a lock: segments are a tuple that is replaced, never changed,
and the log end offset is published last. `flush` and `purge_deleted` may run beside appends.

An OSError becomes a `StorageError` with the log directory here, once. A full disk is `NotEnoughSpace` and leaves the
log as it was.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from storage_node.directories.atomic import NoRoom
from storage_node.errors import LogAppendError, LogReadError, NotEnoughSpace, OffsetOutOfRange
from storage_node.log import recovery, timestamps
from storage_node.log.admission import (
    LAST_EPOCH,
    Batches,
    Produced,
    UnexpectedAppendOffset,
    admit_copied,
    admit_produced,
    inspect,
)
from storage_node.log.batch import NO_PRODUCER, Buffer
from storage_node.log.config import LOG_APPEND_TIME
from storage_node.log.files import Region
from storage_node.log.maintenance import MaintainedLog
from storage_node.log.producer_state import ProducerState
from storage_node.log.segment import LogClosed, Segment
from storage_node.log.state import wall_ms

__all__ = ["Appended", "FetchedData", "Log", "LogClosed", "UnexpectedAppendOffset"]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where batches went; `log_append_time` in ms or -1; `duplicate`: they were there already, at these offsets."""

    base_offset: int
    last_offset: int
    log_append_time: int = -1
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class FetchedData:
    """Whole batches; `base_offset` is that of the first (maybe less than was asked for), `next_offset` follows them."""

    data: bytes
    base_offset: int
    next_offset: int
    region: Region | None = field(default=None, compare=False)
    """Where all bytes are, to read the rest or read them again; None if there are none."""


#: Bytes that a fetch counts where its offset lies in a sealed segment, as Apache Kafka's DelayedFetch: enough for any.
PLENTY = 2**62


@dataclass(slots=True)
class _Before:
    """What a log was before an append, so that it can be cut back to it."""

    segments: tuple[Segment, ...]
    producers: ProducerState | None = None

    @property
    def rolled(self) -> bool:
        """Whether a part of the append was written before a segment was begun for the rest."""
        return self.producers is not None

    def remember(self, known: ProducerState) -> None:
        """Keep what is known of producers before the first part is written."""
        self.producers = ProducerState(dict(known.producers), dict(known.seen_ms))


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


class Log(MaintainedLog):
    """See the module; make one with `Log.open`."""

    # Appending

    def append_as_leader(self, records: Buffer | Produced, leader_epoch: int, now_ms: int | None = None) -> Appended:
        """Append a produced batch: it gets the next offsets and this leader epoch. `inspect` may have been done before.

        A batch that one of the last five of its producer was already is answered with that one's offsets. Raises
        `CorruptRecord`, `OutOfOrderSequence`, `InvalidProducerEpoch`, `RequestRefused` (MESSAGE_TOO_LARGE,
        INVALID_RECORD, INVALID_TIMESTAMP, UNKNOWN_SERVER_ERROR), `NotEnoughSpace`, `LogAppendError`.
        """
        now = wall_ms() if now_ms is None else now_ms
        self._refuse_closed()
        admitted = admit_produced(
            records if isinstance(records, Produced) else inspect(records, self.config),
            offset=self._end[0],
            leader_epoch=leader_epoch,
            config=self.config,
            producers=self._producers,
            now_ms=now,
        )
        if (known := admitted.duplicate) is not None:
            return Appended(known.first_offset, known.last_offset, duplicate=True)
        self._append(admitted.data, admitted.batches, now)
        stamp = now if self.config.message_timestamp_type == LOG_APPEND_TIME else -1
        return Appended(admitted.batches[0][1].base_offset, admitted.batches[-1][1].last_offset, stamp)

    def append_copied(self, records: Buffer, now_ms: int | None = None, *, epoch: int = LAST_EPOCH) -> Appended:
        """Append batches of another copy of this log, offsets and epochs kept; nothing is done for no batches.

        They must begin at the log end offset or beyond it; an empty log also takes a first batch that holds its start
        offset. `epoch`: none of them may be of a later leader epoch. Raises `CorruptRecord`, `UnexpectedAppendOffset`,
        `RequestRefused` with FENCED_LEADER_EPOCH, `NotEnoughSpace`, `LogAppendError`.
        """
        now = wall_ms() if now_ms is None else now_ms
        self._refuse_closed()
        end = self._end[0]
        batches = admit_copied(records, offset=end, empty=self.size == 0, epoch=epoch)
        if not batches:
            return Appended(end, end - 1)
        if batches[0][1].base_offset < end:
            self._replace_active(batches[0][1].base_offset, now)
        self._append(records, batches, now)
        return Appended(batches[0][1].base_offset, batches[-1][1].last_offset)

    def _append(self, data: Buffer, batches: Batches, now_ms: int) -> None:
        """Append all batches or none: readers see them when the last one is written."""
        before = _Before(self._segments)
        try:
            self._append_all(data, batches, now_ms, before)
        except OSError as exc:
            if before.rolled:
                self._take_back(before, now_ms)
            if isinstance(exc, NoRoom):
                raise NotEnoughSpace(f"no space left on {self.directory} to append to {self.tp}") from exc
            raise LogAppendError(self.directory, f"appending to the log of {self.tp}") from exc
        self._publish(batches[-1][1].next_offset)
        if self._end[0] - self._recovery_point >= self.config.flush_messages:
            self.flush()

    def _append_all(self, data: Buffer, batches: Batches, now_ms: int, before: _Before) -> None:
        config = self.config
        view = memoryview(data)
        active = self._segments[-1]
        first = start = 0
        for number, (position, header) in enumerate(batches):
            if active.full(
                position - start + header.length,
                header,
                segment_bytes=config.segment_bytes,
                segment_ms=config.segment_ms,
                index_bytes=config.segment_index_bytes,
                now_ms=now_ms,
            ):
                if number > first:
                    if not before.rolled:
                        before.remember(self._producers)
                    self._write(active, view[start:position], batches[first:number], now_ms)
                active = self._roll(header.base_offset, now_ms)
                first, start = number, position
                active.first_timestamp = header.max_timestamp
        self._write(active, view[start:] if start else data, batches[first:] if first else batches, now_ms)

    def _take_back(self, before: _Before, now_ms: int) -> None:
        """Cut off what was written of an append that failed later on. Raises LogAppendError where that fails as well:
        nothing is appended then any more.
        """
        self._broken = True
        try:
            with self._flush_lock:
                self._cut_back(before, now_ms)
        except OSError as exc:
            # Not by its number: whatever it is, the files are not what the log takes them for.
            message = f"cutting off the part of an append that was written to the log of {self.tp} ({exc})"
            raise LogAppendError(self.directory, message) from None
        self._broken = False

    def _cut_back(self, before: _Before, now_ms: int) -> None:
        end, known = self._end[0], before.segments
        for segment in reversed(self._segments):
            if segment not in known:
                segment.remove()
                segment.purge()
        kept = [segment for segment in self._segments if segment in known]
        self._names_dirty = True
        if kept and kept[-1] is known[-1]:
            kept[-1].truncate(end)
        else:
            kept.append(self._new_segment(end, now_ms))  # the active one was empty, and was replaced
        self._segments = tuple(kept)
        if recovery.remove_snapshots(self._home, end):
            self._home.sync()
        if before.producers is not None:
            self._producers = before.producers
        epochs = self._epochs.truncated_from_end(end + 1)
        try:
            self._store_epochs(epochs)
        except NoRoom:
            # A start forgets by itself what begins beyond the log's end; written before anything is appended again.
            self._epochs, self._epochs_stale = epochs, True
        self._publish(end)

    def _write(self, active: Segment, data: Buffer, batches: Batches, now_ms: int) -> None:
        epochs = self._epochs
        latest = epochs.latest
        for _, header in batches:
            if header.leader_epoch > latest:
                epochs = epochs.assign(header.leader_epoch, header.base_offset)
                latest = header.leader_epoch
        if epochs is not self._epochs or self._epochs_stale:
            self._store_epochs(epochs, always=True)
            self._epochs_stale = False
        active.append(data, batches)
        for _, header in batches:
            if header.producer_id != NO_PRODUCER:
                self._producers.update(header, now_ms)

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upto: int | None = None, min_one: bool = True, at_once: int | None = None
    ) -> FetchedData:
        """Whole batches from the one that has `offset`, at most `max_bytes` of them, from one segment.

        Only batches that end before `upto` (the high watermark, say). `min_one`: the first batch is answered even if
        it is larger than `max_bytes`. `at_once`: of more than so many bytes only the first are read, and the region
        locates the others. Empty at the end. Raises `OffsetOutOfRange` below the log start offset and
        beyond the log end offset, `CorruptRecord` for damaged bytes, `LogReadError`, `LogClosed`.
        """
        end, segments, active_size = self._end
        if not self._log_start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"Received request for offset {offset} for partition {self.tp}, "
                f"but we only have log segments in the range {self._log_start_offset} to {end}"
            )
        limit = end if upto is None or upto > end else upto
        if offset >= limit:
            return FetchedData(b"", offset, offset)
        number = len(segments) - 1
        if offset < segments[number].base_offset:
            number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        try:
            while True:
                segment = segments[number]
                number += 1
                last = number == len(segments)
                # What follows a segment begins where the next one does, also if offsets are missing in between.
                stop, stop_offset = (active_size, end) if last else (segment.size, segments[number].base_offset)
                if limit < stop_offset:
                    stop, straddling = segment.find(limit, stop)
                    stop_offset = limit if straddling is None else straddling.base_offset
                    last = True
                found = segment.read(offset, max_bytes, stop, stop_offset, min_one=min_one, at_once=at_once)
                if found is not None:
                    return FetchedData(*found)
                if last:
                    return FetchedData(b"", offset, offset)
        except OSError as exc:
            raise LogReadError(self.directory, f"reading the log of {self.tp}") from exc

    def available(self, offset: int, *, upto: int | None = None) -> int:
        """Return how many bytes a fetch from `offset` on could get, before `upto`, without reading any record.

        `PLENTY` where `upto` lies in a later segment than `offset`. Raises like `read`.
        """
        end, segments, active_size = self._end
        if not self._log_start_offset <= offset <= end:
            raise OffsetOutOfRange(f"{self.tp} has offsets from {self._log_start_offset} to {end}, not {offset}")
        limit = end if upto is None or upto > end else upto
        if offset >= limit:
            return 0
        number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        last = number == len(segments) - 1
        if not last and limit > segments[number + 1].base_offset:
            return PLENTY
        segment = segments[number]
        try:
            return segment.bytes_from(offset, active_size if last else segment.size, limit if limit < end else None)
        except OSError as exc:
            raise LogReadError(self.directory, f"measuring the log of {self.tp}") from exc

    def offset_for_timestamp(self, ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than `ms`; None without one.

        In a batch compressed by other means than gzip it is the batch's base offset. Raises like `read`.
        """
        try:
            return timestamps.first_since(self._end[1], ms, self._log_start_offset, self._end[0])
        except OSError as exc:
            raise LogReadError(self.directory, f"searching the log of {self.tp}") from exc

    def max_timestamp(self) -> tuple[int, int]:
        """(offset, timestamp) of the first record with the largest timestamp; (-1, -1) if none. Raises like `read`."""
        try:
            return timestamps.newest(self._end[1], self._log_start_offset)
        except OSError as exc:
            raise LogReadError(self.directory, f"searching the log of {self.tp}") from exc
