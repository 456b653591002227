"""The producer state of one log over its life: loaded, stored in `.snapshot` files, truncated with the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from storage_node.errors import CorruptRecord, MetadataIOError
from storage_node.log.context import LogContext
from storage_node.log.files import Home
from storage_node.log.producers.state import SUFFIX, ProducerState, snapshot_name
from storage_node.log.segment import Segment
from storage_node.log.segment_files import offset_of
from storage_node.log.segments import LogSegments


class ProducerStateManager:
    """The producers of one log and their snapshots. Only the log's writer uses it.

    Methods raise OSError where they do not name another error.
    """

    __slots__ = ("_context", "_segments", "state")

    def __init__(self, context: LogContext, segments: LogSegments) -> None:
        self._context = context
        self._segments = segments
        self.state = ProducerState()
        """Replaced by a truncation; other threads use only `ProducerState.known`."""

    # A start

    def load(self, segments: Sequence[Segment], end: int, now_ms: int) -> None:
        """Load the state as of the log end offset `end`; see `remove_beyond`."""
        self.state = _load(self._context.home, segments, end, now_ms=now_ms)
        _tidy(self._context.home, segments)

    # Snapshots

    def take_snapshot(self, offset: int) -> None:
        """Write the state as of `offset`, where a segment begins.

        It is not flushed: the CRC reveals a damaged snapshot, and recovery then uses the one before it.
        """
        self._context.home.write(snapshot_name(offset), self.state.encode(), sync=False)

    def flush_snapshot(self, offset: int) -> None:
        """Write the state as of `offset`, flushed, also its name."""
        self._context.home.write(snapshot_name(offset), self.state.encode(), sync=True)
        self._context.home.sync()

    def remove_beyond(self, offset: int) -> bool:
        """Remove the snapshots beyond an offset; return whether there were any.

        The log has lost or truncated the records that they cover. The caller flushes the directory before the next
        append: other records may get these offsets, and if a power loss brought a snapshot back, the log would
        acknowledge batches as duplicates that were never appended.
        """
        home = self._context.home
        stale = [taken for taken in _snapshots(home) if taken > offset]
        self.remove(stale)
        return bool(stale)

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove the snapshots as of these offsets, where they exist."""
        for offset in offsets:
            self._context.home.unlink(snapshot_name(offset))

    # Truncation

    def truncated(self, kept: Sequence[Segment], end: int, now_ms: int) -> None:
        """Load the state as of the log end offset to which the log was truncated."""
        state = _load(self._context.home, kept, end, now_ms=now_ms)
        state.has_forgotten |= self.state.has_forgotten
        self.state = state

    def remove_snapshots(self) -> None:
        """Remove all snapshots, because all records are being removed."""
        self.remove(_snapshots(self._context.home))

    # Another copy's

    def adopt(self, other: ProducerState) -> None:
        """Add the producer state of another copy, also to the snapshots on disk if no record of this log implies it.

        Raises `LogClosed`, `NotEnoughSpace`, `MetadataIOError`.
        """
        context = self._context
        context.refuse_closed()
        home, first = context.home, self._segments.all[0].base_offset
        silent = {pid: known for pid, known in other.producers.items() if pid not in self.state.producers}
        try:
            # A start loads the last snapshot (`_load`), or the one before it after a truncation.
            # Produces wait for each of these flushes.
            for offset in (_snapshots(home) or [first])[-2:] if silent else ():
                stored = self._stored(offset)
                if stored is not None:
                    before = {pid: known for pid, known in silent.items() if known.last_offset < offset}
                    content = ProducerState({**before, **stored.producers}).encode()
                    home.write(snapshot_name(offset), content, sync=True)
                    context.names_dirty = True
            self.state.take_over(other)
        except OSError as exc:
            raise context.wrapped(MetadataIOError, exc, "writing the producers of", "for the producers of") from exc

    def _stored(self, offset: int) -> ProducerState | None:
        """Return the producers in an offset's snapshot: empty if the file does not exist, None if it is damaged."""
        try:
            return ProducerState.decode(self._context.home.read(snapshot_name(offset)) or ProducerState().encode())
        except ValueError:
            return None


def _snapshots(home: Home) -> list[int]:
    """Return the offsets of all producer snapshots, ascending."""
    return sorted(offset for name in home.names() if (offset := offset_of(name, SUFFIX)) is not None)


def _load(home: Home, segments: Sequence[Segment], end_offset: int, *, now_ms: int) -> ProducerState:
    """Return the producer state as of `end_offset`: the newest intact snapshot, and the batch headers after it.

    `remove_beyond` has removed the snapshots beyond that offset.
    """
    state, start = ProducerState(), segments[0].base_offset
    for offset in reversed(_snapshots(home)):
        try:
            state, start = ProducerState.decode(home.read(snapshot_name(offset)) or b""), offset
            break
        except ValueError:
            home.unlink(snapshot_name(offset))
    state.seen_ms.update(dict.fromkeys(state.producers, now_ms))
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if following <= start or start >= end_offset:
            continue
        # Bytes that were not scanned may be damaged; a read reports that, but the start does not fail.
        with contextlib.suppress(CorruptRecord):
            position, _ = segment.find(start, segment.size)
            for _, header in segment.walk(position, segment.size):
                state.update(header, now_ms)
    return state


def _tidy(home: Home, segments: Sequence[Segment]) -> None:
    """Remove the snapshots that belong to no segment, except the newest."""
    bases = {segment.base_offset for segment in segments}
    for offset in _snapshots(home)[:-1]:
        if offset not in bases:
            home.unlink(snapshot_name(offset))
