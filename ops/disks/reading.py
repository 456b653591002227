"""Read all of a log that no broker has open, and return what is found. Never writes: files are opened for reading only.

The batches, indexes and leader epochs are read by the storage node's own readers (`storage_node.log`); Apache Kafka's
files have the same formats.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

from ops.disks.found import FATAL, Damage, DamageKind, LogFound
from storage_node.directories import atomic
from storage_node.directories.io_faults import reason_of
from storage_node.log.batches.batch import CRC_START, HEADER_SIZE, BatchHeader, checksum, parse, problem
from storage_node.log.files import Handle, read_exact
from storage_node.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from storage_node.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.log.recovery import scan
from storage_node.log.segment_files import INDEX, LOG, TIME_INDEX, file_name, offset_of

__all__ = ["Read", "fingerprint", "log_size", "read_log", "segments"]

Read = Callable[[int], None]
"""Called with the number of bytes read since the last call."""

_EPOCHS_LIMIT = 16 << 20
_INDEX_LIMIT = 1 << 30
_REST = 1 << 20
_REPORTED = 20
"""Damages of one log that are reported one by one."""


@dataclass(slots=True)
class OpenFile:
    """A .log that is open for reading."""

    file: Handle
    size: int


def open_log(path: Path) -> OpenFile:
    """Open a regular file for reading, without following a symlink. Raises OSError."""
    handle = Handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    found = os.fstat(handle.fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(22, "not a regular file", str(path))
    return OpenFile(handle, found.st_size)


def segments(folder: Path) -> list[int]:
    """Return the base offsets of a log's segments in their order. Raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(base for entry in entries if (base := offset_of(entry.name, LOG)) is not None)


def log_size(folder: Path) -> int:
    """Return the bytes of all .log files; 0 where they cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sum(e.stat(follow_symlinks=False).st_size for e in entries if e.name.endswith(LOG))
    except OSError:
        return 0


def read_log(folder: Path, read: Read = lambda _: None) -> LogFound:
    """Read every batch of a log, its indexes and its leader epochs; never raises for what the disk holds."""
    try:
        bases = segments(folder)
    except OSError as error:
        return LogFound(damages=(Damage(DamageKind.UNREADABLE, folder.name, reason_of(error)),))
    reader = _Reader(folder, read)
    for number, base in enumerate(bases):
        reader.segment(base, bases[number + 1] if number + 1 < len(bases) else None)
    return reader.finish(bases)


@dataclass(slots=True)
class _Reader:
    folder: Path
    read: Read
    end: int = 0
    reach: int = 0
    size: int = 0
    batches: int = 0
    sparse: bool = False
    broken: bool = False
    begun: bool = False
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    damages: list[Damage] = field(default_factory=list)
    gaps: list[Damage] = field(default_factory=list)

    def segment(self, base: int, following: int | None) -> None:
        """Read a segment; `following` is the next one's base offset."""
        name = file_name(base, LOG)
        if self.begun and base > self.reach:
            says = f"it begins at offset {base}, but the segment before it ends at {self.reach}"
            self.gaps.append(Damage(DamageKind.TRUNCATED, name, says, 0, self.reach))
        if not self.begun:
            self.end = self.reach = base
        self.begun = True
        try:
            opened = open_log(self.folder / name)
            self.size += opened.size
            index = _offset_index(self.folder / file_name(base, INDEX), base, opened.size, self.damages)
            wanted = dict(index or {})
            position = self._batches(name, base, opened, wanted)
            if position < opened.size:
                self._rest(name, opened, position, last=following is None)
            elif wanted:
                at = min(wanted)
                says = f"its entry for offset {base + wanted[at]} points at position {at}, where no batch of it begins"
                self.damages.append(Damage(DamageKind.INDEX, file_name(base, INDEX), says, at))
            _time_index(self.folder / file_name(base, TIME_INDEX), self.damages)
        except OSError as error:
            self._damage(DamageKind.UNREADABLE, name, reason_of(error), 0)

    def _batches(self, name: str, base: int, opened: OpenFile, wanted: dict[int, int]) -> int:
        position, pending = 0, 0
        for at, header, data in scan(opened, 0):
            position = at + header.length
            self.batches += 1
            pending += header.length
            if pending >= _REST:
                self.read(pending)
                pending = 0
            if checksum(data[CRC_START:]) != header.crc:
                self._damage(DamageKind.BATCH, name, "its CRC does not match its bytes", at, header.base_offset)
                continue
            if header.base_offset < max(base, self.reach):
                says = f"its base offset {header.base_offset} is below {max(base, self.reach)}"
                self._damage(DamageKind.BATCH, name, says, at, header.base_offset)
                continue
            self._valid(at, header, base, wanted)
        self.read(pending)
        return position

    def _valid(self, at: int, header: BatchHeader, base: int, wanted: dict[int, int]) -> None:
        if header.base_offset > self.reach and at > 0:
            self.sparse = True
        self.reach = header.next_offset
        if not self.broken:
            self.end = header.next_offset
        if header.leader_epoch > self.epochs.latest:
            self.epochs = self.epochs.assign(header.leader_epoch, header.base_offset)
        # An entry may have the last offset of several batches that were appended together at its position.
        relative = wanted.get(at)
        if relative is not None and base + relative >= header.base_offset:
            del wanted[at]

    def _rest(self, name: str, opened: OpenFile, position: int, *, last: bool) -> None:
        """Return what follows the last batch that can be distinguished from its neighbours."""
        left = opened.size - position
        torn = is_torn(opened, position)
        self.read(left)
        says = f"{left} bytes behind its last batch are " + ("an unfinished batch or zeros" if torn else "no batches")
        if torn:
            self._damage(DamageKind.TORN_TAIL if last else DamageKind.TRUNCATED, name, says, position, self.reach)
        else:
            self._damage(DamageKind.BATCH, name, says, position, self.reach)

    def _damage(self, kind: DamageKind, name: str, says: str, position: int, offset: int = -1) -> None:
        self.broken |= kind is not DamageKind.TORN_TAIL
        self.damages.append(Damage(kind, name, says, position, offset))

    def finish(self, bases: list[int]) -> LogFound:
        """Return what was found, once all segments were read."""
        if not self.sparse:
            # A compaction leaves gaps between segments too; without gaps inside them, batches are missing.
            self.damages += self.gaps
            if self.gaps:
                self.end = min(self.end, self.gaps[0].offset)
        self.damages += _epochs(self.folder / EPOCHS_FILE, self.epochs)
        return LogFound(
            start=bases[0] if bases else 0,
            end=self.end,
            reach=self.reach,
            size=self.size,
            batches=self.batches,
            segments=len(bases),
            epochs=self.epochs,
            sparse=self.sparse,
            damages=_few(self.damages),
        )


def is_torn(opened: OpenFile, position: int) -> bool:
    """Return whether the bytes from `position` on are an unfinished last batch, or zeros as a power loss leaves them.

    Raises OSError.
    """
    head = read_exact(opened.file.fd, HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return True
    header = parse(head)
    if problem(header) is None:
        return position + header.length > opened.size
    while position < opened.size:
        data = read_exact(opened.file.fd, _REST, position)
        if data.count(0) != len(data) or not data:
            return False
        position += len(data)
    return True


def _offset_index(path: Path, base: int, size: int, damages: list[Damage]) -> dict[int, int] | None:
    """Return an index's relative offsets by position; None if it is missing or broken."""
    data = _file(path, damages)
    if data is None:
        return None
    if len(data) % OFFSET_ENTRY:
        damages.append(Damage(DamageKind.INDEX, path.name, f"its {len(data)} bytes are not whole entries"))
        return None
    data = _without_zeros(data, OFFSET_ENTRY)
    if not OffsetIndex(data).sane(size):
        damages.append(Damage(DamageKind.INDEX, path.name, f"its entries do not rise within {size} bytes of records"))
        return None
    fields = memoryview(data)
    return {
        int.from_bytes(fields[at + 4 : at + 8], "big"): int.from_bytes(fields[at : at + 4], "big")
        for at in range(0, len(data), OFFSET_ENTRY)
    }


def _time_index(path: Path, damages: list[Damage]) -> None:
    data = _file(path, damages)
    if data is None:
        return
    if len(data) % TIME_ENTRY:
        damages.append(Damage(DamageKind.INDEX, path.name, f"its {len(data)} bytes are not whole entries"))
    elif not TimeIndex(_without_zeros(data, TIME_ENTRY)).sane():
        damages.append(Damage(DamageKind.INDEX, path.name, "its entries do not rise"))


def _file(path: Path, damages: list[Damage]) -> bytes | None:
    try:
        return atomic.read_bytes(path, _INDEX_LIMIT)
    except FileNotFoundError:
        damages.append(Damage(DamageKind.INDEX, path.name, "it is missing"))
    except OSError as error:
        damages.append(Damage(DamageKind.INDEX, path.name, f"it cannot be read: {reason_of(error)}"))
    return None


def _without_zeros(data: bytes, entry: int) -> bytes:
    """Return an index without the room that Apache Kafka reserves behind the entries of an open one."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry) * entry]


def _epochs(path: Path, found: LeaderEpochs) -> Iterator[Damage]:
    """Yield what is wrong with the leader epochs of a file, compared to those in the batches."""
    try:
        epochs = LeaderEpochs.decode(atomic.read_bytes(path, _EPOCHS_LIMIT))
    except FileNotFoundError:
        if found.entries:
            yield Damage(DamageKind.EPOCHS, path.name, "it is missing")
        return
    except (OSError, ValueError) as error:
        yield Damage(DamageKind.EPOCHS, path.name, f"it cannot be used: {error}")
        return
    for epoch, offset in found.entries:
        if epochs.epoch_for(offset) != epoch:
            says = f"it has epoch {epochs.epoch_for(offset)} for offset {offset}, the batch has {epoch}"
            yield Damage(DamageKind.EPOCHS, path.name, says, 0, offset)
            return


def _few(damages: list[Damage]) -> tuple[Damage, ...]:
    """Return the damages, those beyond the first few summed up."""
    if len(damages) <= _REPORTED:
        return tuple(damages)
    rest = damages[_REPORTED:]
    worst = next((d.kind for d in rest if d.kind in FATAL), rest[0].kind)
    more = Damage(worst, rest[0].file, f"and {len(rest)} more damages from here on", rest[0].position, rest[0].offset)
    return (*damages[:_REPORTED], more)


def fingerprint(folder: Path, start: int, below: int) -> int:
    """Return a checksum over the offsets and CRCs of a log's batches in a range of offsets. Raises OSError."""
    value = 0
    for base in segments(folder):
        if base >= below:
            break
        for _, header, _ in scan(open_log(folder / file_name(base, LOG)), 0):
            if header.next_offset > below:
                return value
            if header.base_offset < start:
                continue
            row = b"%d %d %d %d;" % (header.base_offset, header.last_offset, header.leader_epoch, header.crc)
            value = crc32c.crc32c(row, value)
    return value
