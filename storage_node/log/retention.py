"""Retention: how many of a log's oldest segments to delete, by age, log size, and log start offset (pure), and their
deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from storage_node.errors import LogAppendError, MetadataIOError
from storage_node.log.appender import Appender
from storage_node.log.config import LogConfig
from storage_node.log.context import LogContext
from storage_node.log.flusher import Flusher
from storage_node.log.leader_epochs import LeaderEpochFileCache
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.segments import LogSegments

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention needs of a segment: its offsets [base, end), its bytes, the time of its newest record in ms."""

    base_offset: int
    end_offset: int
    size: int
    newest_ms: int


def deletable(
    segments: Sequence[SegmentAge], config: LogConfig, *, log_start_offset: int, high_watermark: int, now_ms: int
) -> int:
    """Return how many of the oldest segments may be deleted; the last one is the active segment.

    An empty active segment is never deleted, nor one that is not entirely below the high watermark.
    """
    excess = sum(s.size for s in segments) - config.retention_bytes if config.retention_bytes >= 0 else -1
    count = 0
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment.end_offset > high_watermark or (last and segment.size == 0):
            break
        too_old = 0 <= config.retention_ms < now_ms - segment.newest_ms
        too_much = excess - segment.size >= 0
        if not (too_old or too_much or segment.end_offset <= log_start_offset):
            break
        excess -= segment.size
        count += 1
    return count


class Retention:
    """The retention of one log. Only the log's writer uses it, except `purge_deleted`."""

    __slots__ = ("_appender", "_context", "_epochs", "_flusher", "_producers", "_segments")

    def __init__(
        self,
        context: LogContext,
        segments: LogSegments,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        flusher: Flusher,
        appender: Appender,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._flusher = flusher
        self._appender = appender

    def delete_old_segments(self, now_ms: int, high_watermark: int | None) -> int:
        """See `Log.delete_old_segments`."""
        context, log = self._context, self._segments
        if context.closed:
            return 0
        self._producers.state.expire(now_ms, context.config.producer_id_expiration_ms)
        end = log.end
        try:
            ages = self._ages()
            count = deletable(
                ages,
                context.config,
                log_start_offset=log.log_start_offset,
                high_watermark=end if high_watermark is None else high_watermark,
                now_ms=now_ms,
            )
            if not count:
                return 0
            if count == len(log.all):
                self._appender.roll(end, now_ms)
            self._say(ages[:count])
            gone = log.all[:count]
            log.all = log.all[count:]
            log.log_start_offset = max(log.log_start_offset, log.all[0].base_offset)
            log.publish(end)
            log.remove(gone, now_ms)
            self._producers.remove(segment.base_offset for segment in gone)
            self._epochs.forget_before(log.log_start_offset)
        except OSError as exc:
            raise context.wrapped(LogAppendError, exc, "deleting old segments of", "to roll the log of") from exc
        return count

    def _say(self, gone: Sequence[SegmentAge]) -> None:
        start = self._segments.log_start_offset
        below = gone[-1].end_offset <= start
        _log.info(
            "%s: deleting %d segments, offsets %d to %d, %d bytes: %s",
            self._context.tp, len(gone), gone[0].base_offset, gone[-1].end_offset, sum(each.size for each in gone),
            f"they are below the log start offset {start}" if below else "by retention.ms or retention.bytes",
        )  # fmt: skip

    def _ages(self) -> list[SegmentAge]:
        segments, ends = self._segments.all, [segment.base_offset for segment in self._segments.all[1:]]
        ages = []
        for segment, end in zip(segments, [*ends, self._segments.end], strict=True):
            timestamp = segment.max_timestamp[0]
            ages.append(
                SegmentAge(
                    segment.base_offset, end, segment.size, timestamp if timestamp >= 0 else segment.modified_ms()
                )
            )
        return ages

    def purge_deleted(self, now_ms: int) -> int:
        """See `Log.purge_deleted`."""
        with self._flusher.lock:
            try:
                return self._segments.purge(now_ms) if not self._context.closed else 0
            except OSError as exc:
                raise self._context.wrapped(MetadataIOError, exc, "removing deleted segments of") from exc
