"""Write a log in blocks: bytes that a copier has read from another copy and validated.

A block may end anywhere, also inside a batch.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from storage_node.errors import LogAppendError
from storage_node.log.appender import Appender
from storage_node.log.batches.batch import BatchHeader
from storage_node.log.context import LogContext, wall_ms
from storage_node.log.files import write_all
from storage_node.log.leader_epochs import LeaderEpochFileCache
from storage_node.log.producers.snapshots import ProducerStateManager
from storage_node.log.producers.state import REMEMBERED
from storage_node.log.segment import Segment
from storage_node.log.segments import LogSegments


@dataclass(slots=True)
class Recent:
    """The last batches of a producer, and the largest timestamp of all its batches."""

    headers: deque[BatchHeader] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    timestamp: int = -1


@dataclass(slots=True)
class Walked:
    """The result of the batches that ended in one block. Positions are those in the written file.

    `entries` are index entries (position, last offset, largest timestamp so far, offset that has it), `epochs` pairs of
    (leader epoch, first offset).
    """

    count: int = 0
    first_offset: int = -1
    next_offset: int = -1
    end: int = 0  # position behind the last whole batch
    largest: tuple[int, int] = (-1, 0)
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: dict[int, Recent] = field(default_factory=dict)


class BlockAppender:
    """Writes blocks to the active segment of one log. Only the log's writer uses it.

    Bytes of a partial batch are behind the active segment's end: no reader, size or offset includes them, and a start
    cuts them off. `cut` removes them before anything else changes the log.
    """

    __slots__ = ("_appender", "_context", "_epochs", "_producers", "_segments", "_torn")

    def __init__(
        self,
        context: LogContext,
        segments: LogSegments,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        appender: Appender,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._appender = appender
        self._torn = 0
        """Bytes behind the active segment's end."""

    def begin(self, base_offset: int | None, first: int) -> Segment:
        """Return the segment for the next bytes: a new one with this `base_offset` if the source has one there.

        `first` is the base offset of the next batch. Raises `NotEnoughSpace`, `LogAppendError`.
        """
        segments = self._segments
        with self._errors():
            active, end = segments.active, segments.end
            if active.size and base_offset is not None and base_offset != active.base_offset:
                active = self._appender.roll(max(base_offset, end), wall_ms())
            elif not active.size:
                wanted = min(first, active.base_offset) if base_offset is None else base_offset
                if wanted != active.base_offset:
                    active = segments.replace_active(wanted, wall_ms())
            segments.publish(end)
            return active

    def write(self, data: memoryview, walked: Walked) -> None:
        """Write the next bytes, and append the batches that they complete.

        Raises `LogClosed`, `NotEnoughSpace`, `LogAppendError`; the log's end is then unchanged.
        """
        with self._errors():
            self._context.refuse_closed()
            active = self._segments.active
            position = active.size + self._torn
            epochs = self._epochs.epochs
            for epoch, start in walked.epochs:
                epochs = epochs.assign(epoch, start)
            try:
                if epochs is not self._epochs.epochs:
                    self._epochs.store(epochs)
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
                self._segments.publish(walked.next_offset)

    def _take_in(self, producer_id: int, recent: Recent, now_ms: int) -> None:
        state = self._producers.state
        for header in recent.headers:
            state.update(header, now_ms)
        known = state.get(producer_id)
        if known is None:
            return  # it was silent for longer than as many others as a log remembers
        if recent.timestamp > known.timestamp:
            state.producers[producer_id] = replace(known, timestamp=recent.timestamp)

    def cut(self) -> None:
        """Cut off the bytes of a partial batch. Raises LogAppendError."""
        if self._torn and not self._context.closed:
            active = self._segments.active
            try:
                file = active.file
                os.ftruncate(file.fd, active.size)
            except OSError as exc:
                raise self._context.wrapped(LogAppendError, exc, "cutting the copy of") from exc
        self._torn = 0

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise self._context.wrapped(LogAppendError, exc, "appending to the log of", "to append to") from exc
