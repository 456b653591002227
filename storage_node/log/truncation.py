"""Truncation of a log: at its end, to the offset that another replica shares with it, and at its start."""

from __future__ import annotations

from storage_node.errors import LogAppendError, MetadataIOError, OffsetOutOfRange
from storage_node.log.context import LogContext, wall_ms
from storage_node.log.flusher import Flusher
from storage_node.log.leader_epochs import LeaderEpochFileCache, LeaderEpochs
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.producers.state import ProducerState
from storage_node.log.segments import LogSegments


class Truncation:
    """The truncations of one log. Only the log's writer uses it."""

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

    def truncate_to(self, offset: int) -> None:
        """See `Log.truncate_to`."""
        self._context.refuse_closed()
        if offset >= self._segments.end:
            return
        if offset < self._segments.all[0].base_offset:
            self.truncate_fully(offset)
            return
        with self._flusher.lock:
            try:
                self._truncate(offset, wall_ms())
            except OSError as exc:
                raise self._context.wrapped(LogAppendError, exc, "truncating the log of") from exc

    def _truncate(self, offset: int, now_ms: int) -> None:
        context, segments, flusher = self._context, self._segments, self._flusher
        kept = tuple(segment for segment in segments.all if segment.base_offset <= offset)
        gone = segments.all[len(kept) :]
        position, header = kept[-1].find(offset, kept[-1].size)
        end = offset if header is None else min(offset, header.base_offset)
        # Readers first, so that they do not read what is about to be removed.
        segments.shorten(kept, end, position)
        flusher.recovery_point = min(flusher.recovery_point, end)
        segments.log_start_offset = min(segments.log_start_offset, end)
        # Each step is on disk before the next one. A start trusts everything below the recovery point: if the last
        # kept segment were cut while later ones remain, or an epoch were dropped whose records remain, the replica
        # would serve a diverging log. A start itself drops the epochs of records that do not exist.
        self._producers.remove_beyond(end)
        segments.remove(reversed(gone), now_ms)
        context.names_dirty = False
        context.home.sync()
        kept[-1].truncate(offset)
        flusher.guarded(lambda: kept[-1].flush(indexes=False))
        self._epochs.store(self._epochs.epochs.truncated_from_end(end))
        self._producers.truncated(kept, end, now_ms)

    def truncate_fully(self, offset: int) -> None:
        """See `Log.truncate_fully`."""
        self._context.refuse_closed()
        with self._flusher.lock:
            try:
                self._restart_at(offset, wall_ms())
            except OSError as exc:
                raise self._context.wrapped(LogAppendError, exc, "truncating the log of", "for a segment of") from exc

    def _restart_at(self, offset: int, now_ms: int) -> None:
        context, segments, producers = self._context, self._segments, self._producers
        segments.remove(reversed(segments.all), now_ms)
        producers.remove_snapshots()
        segments.all = (segments.create(offset, now_ms),)
        producers.state = ProducerState()
        self._flusher.recovery_point = segments.log_start_offset = offset
        segments.publish(offset)
        # The removal of the old segments is on disk before the removal of their epochs.
        context.names_dirty = False
        context.home.sync()
        self._epochs.store(LeaderEpochs())
        context.names_dirty = False
        context.home.sync()

    def advance_log_start(self, offset: int) -> bool:
        """See `Log.advance_log_start`."""
        context, segments = self._context, self._segments
        context.refuse_closed()
        if offset > segments.end:
            raise OffsetOutOfRange(
                f"Cannot increment the log start offset to {offset} of partition {context.tp} since it is larger than "
                f"the log end offset {segments.end}"
            )
        if offset <= segments.log_start_offset:
            return False
        segments.log_start_offset = offset
        try:
            self._epochs.forget_before(offset)
        except OSError as exc:
            raise context.wrapped(MetadataIOError, exc, "raising the log start offset of") from exc
        return True
