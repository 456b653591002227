"""Appending to a log: all batches of an append or none, rolled over as many segments as they need."""

from __future__ import annotations

from dataclasses import dataclass

from storage_node import failpoints
from storage_node.errors import LogAppendError
from storage_node.failpoints import failpoint
from storage_node.log.admission import Batches
from storage_node.log.batches.batch import NO_PRODUCER, Buffer
from storage_node.log.context import LogContext
from storage_node.log.flusher import Flusher
from storage_node.log.leader_epochs import LeaderEpochFileCache
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.producers.state import ProducerState
from storage_node.log.segment import Segment
from storage_node.log.segments import LogSegments

ROLL_AFTER_PRODUCERS = failpoints.register("log.roll_after_producers")
ROLL_AFTER_SEGMENT = failpoints.register("log.roll_after_segment")


@dataclass(slots=True)
class _Before:
    """A log's state before an append, to which a failed append is cut back."""

    segments: tuple[Segment, ...]
    producers: ProducerState | None = None

    @property
    def rolled(self) -> bool:
        """Whether the append has written batches to one segment and rolled to another."""
        return self.producers is not None

    def remember(self, known: ProducerState) -> None:
        """Save the producer state before the first batches are written."""
        self.producers = ProducerState(dict(known.producers), dict(known.seen_ms), known.has_forgotten)


class Appender:
    """Writes admitted batches to the active segment of one log and rolls it. Only the log's writer uses it."""

    __slots__ = ("_context", "_epochs", "_flusher", "_producers", "_segments")

    def __init__(
        self,
        context: LogContext,
        segments: LogSegments,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        flusher: Flusher,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._flusher = flusher

    def append(self, data: Buffer, batches: Batches, now_ms: int) -> None:
        """Append all batches or none; readers see them once the last one is written. Flush if flush.messages requires.

        Raises `NotEnoughSpace`, `LogAppendError`, `LogFlushError`.
        """
        context, segments = self._context, self._segments
        before = _Before(segments.all)
        try:
            self._append_all(data, batches, now_ms, before)
        except OSError as exc:
            if before.rolled:
                self._take_back(before, now_ms)
            raise context.wrapped(LogAppendError, exc, "appending to the log of", "to append to") from exc
        end = batches[-1][1].next_offset
        segments.publish(end)
        if end - self._flusher.recovery_point >= context.config.flush_messages:
            self._flusher.flush()

    def _append_all(self, data: Buffer, batches: Batches, now_ms: int, before: _Before) -> None:
        config = self._context.config
        view = memoryview(data)
        active = self._segments.all[-1]
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
                        before.remember(self._producers.state)
                    self._write(active, view[start:position], batches[first:number], now_ms)
                active = self.roll(header.base_offset, now_ms)
                first, start = number, position
                active.first_timestamp = header.max_timestamp
        self._write(active, view[start:] if start else data, batches[first:] if first else batches, now_ms)

    def _write(self, active: Segment, data: Buffer, batches: Batches, now_ms: int) -> None:
        history = self._epochs
        epochs = history.epochs
        latest = epochs.latest
        for _, header in batches:
            if header.leader_epoch > latest:
                epochs = epochs.assign(header.leader_epoch, header.base_offset)
                latest = header.leader_epoch
        if epochs is not history.epochs or history.stale:
            history.store(epochs, always=True)
            history.stale = False
        active.append(data, batches)
        for _, header in batches:
            if header.producer_id != NO_PRODUCER:
                self._producers.state.update(header, now_ms)

    # Rolling

    def roll_filled(self, now_ms: int) -> None:
        """Start a new segment at the log end offset, unless the active one is empty.

        Raises `LogClosed`, `NotEnoughSpace`, `LogAppendError`.
        """
        context, segments = self._context, self._segments
        context.refuse_closed()
        try:
            if segments.active.size:
                self.roll(segments.end, now_ms)
                segments.publish(segments.end)
        except OSError as exc:
            raise context.wrapped(LogAppendError, exc, "rolling the log of", "for a segment of") from exc

    def roll(self, base_offset: int, now_ms: int) -> Segment:
        """Start a segment at this base offset, in place of the active one if that is empty; the caller publishes it.

        Raises OSError.
        """
        active = self._segments.active
        if not active.size:
            return self._segments.replace_active(base_offset, now_ms)
        active.seal()
        self._producers.take_snapshot(base_offset)
        failpoint(ROLL_AFTER_PRODUCERS)
        segment = self._segments.add(base_offset, now_ms)
        failpoint(ROLL_AFTER_SEGMENT)
        return segment

    # A failed append

    def _take_back(self, before: _Before, now_ms: int) -> None:
        """Cut a failed append back to the state before it.

        Raises LogAppendError if that fails too; the log rejects every append from then on.
        """
        context = self._context
        context.broken = True
        try:
            with self._flusher.lock:
                self._cut_back(before, now_ms)
        except OSError as exc:
            # `from None`: whatever the errno, the files no longer match the log's state.
            message = f"cutting off the part of an append that was written to the log of {context.tp} ({exc})"
            raise LogAppendError(context.directory, message) from None
        context.broken = False

    def _cut_back(self, before: _Before, now_ms: int) -> None:
        context, segments = self._context, self._segments
        end, known = segments.end, before.segments
        for segment in reversed(segments.all):
            if segment not in known:
                segment.remove()
                segment.purge()
        kept = [segment for segment in segments.all if segment in known]
        context.names_dirty = True
        if kept and kept[-1] is known[-1]:
            kept[-1].truncate(end)
        else:
            # The append replaced the active segment, which was empty.
            kept.append(segments.create(end, now_ms))
        segments.all = tuple(kept)
        if self._producers.remove_beyond(end):
            context.home.sync()
        if before.producers is not None:
            self._producers.state = before.producers
        self._epochs.cut_back(end)
        segments.publish(end)
