"""Opening a log's files: what is trusted, what is scanned, and what is cut off.

After a clean stop nothing is scanned: the end is found from the last index entry. Otherwise every segment that
reaches beyond the recovery point is read from there on, each batch's CRC and offsets checked, the indexes rebuilt,
and whatever follows the last valid batch cut off, with the segments after it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storage_node.errors import CorruptRecord, LogReadError
from storage_node.log.batch import CRC_START, HEADER_SIZE, BatchHeader, checksum, parse, problem
from storage_node.log.files import Home, read_exact
from storage_node.log.index import IndexBuilder
from storage_node.log.leader_epochs import FILE_NAME, LeaderEpochs
from storage_node.log.producer_state import SUFFIX, ProducerState, snapshot_name
from storage_node.log.segment import DELETED, LOG, SUFFIXES, Segment, file_name

_DIGITS = 20
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """The segments in order, the log end offset, and what it took; `removed` are segments that were cut off."""

    segments: list[Segment] = field(default_factory=list)
    end_offset: int = 0
    scanned: bool = False
    """Whether anything had to be scanned; `recovered_bytes` of it were valid."""
    recovered_bytes: int = 0
    removed: list[Segment] = field(default_factory=list)
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, offset) where the scan saw the epoch change."""
    sparse: bool = False
    """Whether the scan saw offsets missing between two batches of a segment."""


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in the name of a segment's file or a snapshot; None if it is not one of that suffix."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == _DIGITS and stem.isascii() and stem.isdigit() else None


def _tidy(home: Home) -> list[int]:
    """Remove what a crash may leave half done, and answer the base offsets of the segments."""
    names = home.names()
    bases = sorted(base for name in names if (base := offset_of(name, LOG)) is not None)
    known = set(bases)
    for name in names:
        stem = name.removesuffix(".tmp")
        half_written = stem != name and (stem == FILE_NAME or offset_of(stem, SUFFIX) is not None)
        deleted = name.endswith(DELETED) and name[:_DIGITS].isdigit()
        orphan = any((base := offset_of(name, suffix)) is not None and base not in known for suffix in SUFFIXES[1:])
        if half_written or deleted or orphan:
            home.unlink(name)
    return bases


def load(home: Home, *, interval: int, recovery_point: int, clean: bool, now_ms: int, gaps: bool = True) -> Loaded:
    """Open all segments found in the directory; an empty answer if there is none. Raises OSError.

    Offsets missing between two segments that are scanned are lost ones, unless (with `gaps`) they are missing inside
    segments too, as in a log that was compacted elsewhere.
    """
    found = [Segment(home, base, interval, created_ms=now_ms) for base in _tidy(home)]
    loaded = Loaded(segments=found)
    if not found:
        return loaded
    if clean:
        end = _end_of(found[-1])
        if end is not None:
            loaded.end_offset = end
            return loaded
        # The marker says clean, the bytes do not: the active segment is scanned as after a crash.
        recovery_point = found[-1].base_offset
    loaded.scanned = True
    _recover(loaded, recovery_point, gaps)
    return loaded


def _end_of(segment: Segment) -> int | None:
    """The offset after the segment's last batch, found from its last index entry; None if its bytes do not add up."""
    try:
        position = segment.indexes()[0].last()[1]
        end = segment.base_offset
        for at, header in segment.walk(position, segment.size):
            end = header.next_offset
            if header.base_offset < segment.base_offset or at + header.length > segment.size:
                return None
        return end
    except CorruptRecord:
        return None


def _recover(loaded: Loaded, recovery_point: int, gaps: bool) -> None:
    found, kept = loaded.segments, list[Segment]()
    end = 0
    cut = False
    for number, segment in enumerate(found):
        following = found[number + 1].base_offset if number + 1 < len(found) else None
        # Batches were lost before this segment, or it repeats offsets: it cannot follow. They may be lost at their very
        # border: a power loss takes the end of one file and leaves the name of the next, or even what is in it.
        gap = segment.base_offset > end and (cut or not gaps or not loaded.sparse)
        if kept and (segment.base_offset < end or gap):
            loaded.removed = found[number:]
            for later in reversed(loaded.removed):
                _log.warning(
                    "segment %s does not follow offset %d and is removed", file_name(later.base_offset, LOG), end
                )
                later.remove()
            break
        kept.append(segment)
        if following is not None and following <= recovery_point:
            end = following
            continue
        end, cut = _recover_segment(loaded, segment, recovery_point, active=following is None)
    loaded.segments = kept
    loaded.end_offset = end


def _recover_segment(loaded: Loaded, segment: Segment, recovery_point: int, *, active: bool) -> tuple[int, bool]:
    """Scan from the recovery point; answers the offset after the last valid batch, and whether anything was cut off."""
    builder = IndexBuilder(segment.base_offset, segment.interval)
    start, end = _resume(segment, builder, recovery_point)
    position = start
    for position_of, header, data in scan(segment, start):
        if (
            header.base_offset < end
            or checksum(data[CRC_START:]) != header.crc
            or header.last_offset - segment.base_offset >= 2**31
        ):
            break
        builder.add(position_of, header)
        loaded.sparse |= header.base_offset > end
        starts = loaded.epoch_starts
        if header.leader_epoch >= 0 and (not starts or starts[-1][0] != header.leader_epoch):
            starts.append((header.leader_epoch, header.base_offset))
        position, end = position_of + header.length, header.next_offset
    loaded.recovered_bytes += position - start
    cut = segment.size > position
    if cut:
        _log.warning(
            "segment %s: %d bytes after offset %d are no valid batches and are cut off",
            file_name(segment.base_offset, LOG),
            segment.size - position,
            end,
        )
        file = segment.file
        os.ftruncate(file.fd, position)
        segment.size = position
    if not active or cut:
        builder.finish()
    segment.adopt(builder)
    return end, cut


def _resume(segment: Segment, builder: IndexBuilder, recovery_point: int) -> tuple[int, int]:
    """Give the builder what the index files hold below the recovery point; answers position and offset to scan from."""
    beginning = (0, segment.base_offset)
    indexes = segment.stored_indexes() if recovery_point > segment.base_offset else None
    if indexes is None:
        return beginning
    index, times = indexes
    index.truncate(recovery_point - segment.base_offset)
    relative, position = index.last()
    times.truncate(relative + 1 if len(index) else 0)
    if not len(index):
        return beginning
    try:
        header = segment.header_at(position)
    except CorruptRecord:
        return beginning
    # An entry that points at another batch says that the file is not this segment's.
    if header.last_offset != segment.base_offset + relative:
        return beginning
    builder.start_from(index, times)
    return position, header.base_offset


def scan(segment: Segment, position: int, *, chunk: int = 4 << 20) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of every whole batch from `position`, read in large chunks; ends before what is none.

    The caller checks CRCs and the order of offsets. Zeros, as a file has them that was extended and not written, are
    no batch.
    """
    file = segment.file
    size = os.fstat(file.fd).st_size
    while size - position >= HEADER_SIZE:
        view = memoryview(read_exact(file.fd, min(chunk, size - position), position))
        at = 0
        while len(view) - at >= HEADER_SIZE:
            header = parse(view, at)
            if problem(header) or header.length > size - position - at:
                return
            if header.length > len(view) - at:
                chunk = max(chunk, header.length)
                break
            yield position + at, header, view[at : at + header.length]
            at += header.length
        position += at
        if at == 0 and len(view) < HEADER_SIZE:
            return


def log_end(path: Path, directory: str) -> int:
    """The log end offset of a log that is not open, from its last segment; nothing is changed, no CRC is checked.

    For a look before anybody decides whether it is to be opened. Raises `LogReadError` with the log directory.
    """
    try:
        home = Home(str(path))
        bases = [base for name in home.names() if (base := offset_of(name, LOG)) is not None]
        if not bases:
            return 0
        segment = Segment(home, max(bases), 0, created_ms=0)
        end = segment.base_offset
        for _, header, _ in scan(segment, 0):
            if header.base_offset < end:
                break
            end = header.next_offset
        return end
    except OSError as exc:
        raise LogReadError(directory, f"looking for the end of the log in {path}") from exc


def load_epochs(home: Home, segments: list[Segment]) -> tuple[LeaderEpochs, bool]:
    """The leader epochs, and whether the file held them: if it is missing or damaged the batches' headers do."""
    data = home.read(FILE_NAME)
    if data:
        try:
            return LeaderEpochs.decode(data), True
        except ValueError:
            pass
    epochs = LeaderEpochs()
    for segment in segments:
        with contextlib.suppress(CorruptRecord):
            for _, header in segment.walk(0, segment.size):
                if header.leader_epoch > epochs.latest:
                    epochs = epochs.assign(header.leader_epoch, header.base_offset)
    return epochs, False


def snapshots(home: Home) -> list[int]:
    """The offsets of all producer snapshots, rising."""
    return sorted(offset for name in home.names() if (offset := offset_of(name, SUFFIX)) is not None)


def remove_snapshots(home: Home, beyond: int) -> bool:
    """Remove the snapshots of larger offsets; return whether there were any.

    They are of records that the log has lost or cut off. The caller flushes the directory before it appends: other
    records may have these offsets after the next loss of power, and a snapshot that came back would acknowledge what
    was never appended.
    """
    stale = [offset for offset in snapshots(home) if offset > beyond]
    for offset in stale:
        home.unlink(snapshot_name(offset))
    return bool(stale)


def load_producers(home: Home, segments: list[Segment], end_offset: int, *, now_ms: int) -> ProducerState:
    """Return the producers as of `end_offset`: the newest snapshot that is whole, and the batches' headers after it.

    There are no snapshots beyond that offset any more (`remove_snapshots`).
    """
    state, start = ProducerState(), segments[0].base_offset
    for offset in reversed(snapshots(home)):
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
        # Bytes that no scan has seen may be damaged; reading them says so, a start does not fail for it.
        with contextlib.suppress(CorruptRecord):
            position, _ = segment.find(start, segment.size)
            for _, header in segment.walk(position, segment.size):
                state.update(header, now_ms)
    return state


def tidy_snapshots(home: Home, segments: list[Segment]) -> None:
    """Remove the snapshots that belong to no segment, the newest one excepted."""
    bases = {segment.base_offset for segment in segments}
    for offset in snapshots(home)[:-1]:
        if offset not in bases:
            home.unlink(snapshot_name(offset))
