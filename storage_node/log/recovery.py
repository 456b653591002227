"""Recovery of a log when it is opened: which files are trusted, scanned, or truncated.

After a clean shutdown nothing is scanned: the last index entry leads to the log end. Otherwise every segment that
reaches beyond the recovery point is scanned from there on: each batch's CRC and offsets are checked, the indexes are
rebuilt, and everything after the last valid batch is cut off, later segments included.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storage_node.errors import CorruptRecord, LogReadError
from storage_node.log.batches.batch import CRC_START, HEADER_SIZE, BatchHeader, checksum, parse, problem
from storage_node.log.files import Home, Source, read_exact
from storage_node.log.index import IndexBuilder
from storage_node.log.leader_epochs import FILE_NAME, LeaderEpochs
from storage_node.log.producers.state import SUFFIX
from storage_node.log.segment import DELETED, LOG, SUFFIXES, Segment, file_name
from storage_node.log.segment_files import DIGITS, offset_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """The segments in order, the log end offset, and the work done; `removed` are the segments that were cut off."""

    segments: list[Segment] = field(default_factory=list)
    end_offset: int = 0
    scanned: bool = False
    """Whether any segment was scanned; `recovered_bytes` is how many scanned bytes were valid."""
    recovered_bytes: int = 0
    removed: list[Segment] = field(default_factory=list)
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, offset) at each change of the epoch within the scanned batches."""
    sparse: bool = False
    """Whether the scan found offsets missing between two batches of a segment."""


def _tidy(home: Home) -> list[int]:
    """Remove the leftovers of a crash and return the base offsets of the segments."""
    names = home.names()
    gone = {base: name for name in names if (base := offset_of(name, LOG + DELETED)) is not None}
    if gone:
        size = 0
        for name in gone.values():
            with contextlib.suppress(OSError):
                size += home.look(name).st_size
        _log.info(
            "%s: removing %d segments from offset %d on, %d bytes, which were deleted before this start",
            home.path, len(gone), min(gone), size,
        )  # fmt: skip
    bases = sorted(base for name in names if (base := offset_of(name, LOG)) is not None)
    known = set(bases)
    for name in names:
        stem = name.removesuffix(".tmp")
        half_written = stem != name and (stem == FILE_NAME or offset_of(stem, SUFFIX) is not None)
        deleted = name.endswith(DELETED) and name[:DIGITS].isdigit()
        orphan = any((base := offset_of(name, suffix)) is not None and base not in known for suffix in SUFFIXES[1:])
        if half_written or deleted or orphan:
            home.unlink(name)
    return bases


def load(home: Home, *, interval: int, recovery_point: int, clean: bool, now_ms: int, gaps: bool = True) -> Loaded:
    """Open all segments in the directory; empty if there are none. Raises OSError.

    Offsets missing between two scanned segments mean lost batches, unless (with `gaps`) offsets are also missing inside
    segments, as in a log that was compacted elsewhere.
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
        # The clean shutdown marker contradicts the bytes: recover the active segment as after a crash.
        recovery_point = found[-1].base_offset
    loaded.scanned = True
    _recover(loaded, recovery_point, gaps)
    return loaded


def _end_of(segment: Segment) -> int | None:
    """Return the offset after the segment's last batch, searched from the last index entry; None if it is damaged."""
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
        # The segment cannot follow if batches before it were lost, or if it repeats offsets. Batches may be missing
        # exactly at the border: a power loss can drop the end of one file and keep the next file's name or content.
        gap = segment.base_offset > end and (cut or not gaps or not loaded.sparse)
        if kept and (segment.base_offset < end or gap):
            loaded.removed = found[number:]
            for later in reversed(loaded.removed):
                _log.warning(
                    "%s: removing segment %s, %d bytes: it does not follow offset %d",
                    later.home.path, file_name(later.base_offset, LOG), later.size, end,
                )  # fmt: skip
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
    """Scan from the recovery point; return the offset after the last valid batch, and whether the rest was cut off."""
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
            "%s: segment %s: truncating %d bytes after offset %d, which are not valid batches",
            segment.home.path, file_name(segment.base_offset, LOG), segment.size - position, end,
        )  # fmt: skip
        file = segment.file
        os.ftruncate(file.fd, position)
        segment.size = position
    if not active or cut:
        builder.finish()
    segment.adopt(builder)
    return end, cut


def _resume(segment: Segment, builder: IndexBuilder, recovery_point: int) -> tuple[int, int]:
    """Add the index entries below the recovery point to the builder; return position and offset to scan from."""
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
    # An entry that points at another batch shows that the index does not belong to this segment.
    if header.last_offset != segment.base_offset + relative:
        return beginning
    builder.start_from(index, times)
    return position, header.base_offset


def scan(segment: Source, position: int, *, chunk: int = 4 << 20) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield position, header and bytes of every whole batch from `position` on, read in large chunks, up to the first
    invalid one.

    The caller checks CRCs and the order of offsets. Zeros, as in a file that was extended but not written, are not a
    batch.
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
    """Return the log end offset of a log that is not open, from its last segment, without checking CRCs.

    Changes nothing: it runs before the decision whether to open the log. Raises `LogReadError` with the log directory.
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
        raise LogReadError(directory, f"finding the end of the log in {path}") from exc


def load_epochs(home: Home, segments: list[Segment]) -> tuple[LeaderEpochs, bool]:
    """Return the leader epochs, and whether the file had them: if it is missing or damaged, batch headers are read."""
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
