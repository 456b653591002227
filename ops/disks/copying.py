"""Copy a replica of a stopped broker to another directory: every batch checked, throttled, resumable. Flushes all.

The copy grows in a wrapper of the target directory (`aside`), whose note says which files are whole there and how far
the one under way is flushed. A file of the source that has changed since is copied again from its beginning.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ops.disks import aside
from ops.disks.aside import Note
from ops.disks.reading import is_torn, open_log
from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.names import replica_name
from storage_node.failpoints import failpoint
from storage_node.log.batches.batch import CRC_START, checksum
from storage_node.log.files import read_exact, write_all
from storage_node.log.recovery import scan
from storage_node.log.segment_files import DELETED, INDEX, LOG, TIME_INDEX, file_name, offset_of

__all__ = ["CHUNK", "CopyFailed", "Source", "copy", "files_of", "remaining", "unchanged"]

CHUNK = 1 << 20
FLUSH_BYTES = 64 << 20

CHUNK_WRITTEN = failpoints.register("offline.copy_after_chunk")
FLUSHED = failpoints.register("offline.copy_after_flush")
FILE_DONE = failpoints.register("offline.copy_after_file")
FOLDER_FLUSHED = failpoints.register("offline.copy_after_folder")
COMPLETE = failpoints.register("offline.copy_after_complete")


class CopyFailed(Exception):
    """A replica cannot be copied as it is: a damaged batch, an unexpected file. The source is as it was."""


@dataclass(frozen=True, slots=True)
class Source:
    """The replica to copy; `clean`: its directory was stopped cleanly; `recovery_point`: from its checkpoint."""

    folder: Path
    clean: bool
    recovery_point: int


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    size: int
    mtime_ns: int


def files_of(source: Source) -> list[_File]:
    """Return the files to copy, segments first, in the order of their offsets. Raises OSError, CopyFailed.

    After an unclean stop the indexes from the recovery point on are left out: every start builds them again.
    """
    found = []
    with os.scandir(source.folder) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode) or entry.name.endswith((DELETED, atomic.TMP_SUFFIX)):
                continue
            if not stat.S_ISREG(info.st_mode):
                raise CopyFailed(f"{entry.path} is not a regular file; remove it or put the file in its place")
            found.append(_File(entry.name, info.st_size, info.st_mtime_ns))
    bases = sorted(base for file in found if (base := offset_of(file.name, LOG)) is not None)
    rebuilt = set()
    if not source.clean:
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            if following is None or following > source.recovery_point:
                rebuilt |= {file_name(base, INDEX), file_name(base, TIME_INDEX)}
    kept = [file for file in found if file.name not in rebuilt]
    return sorted(kept, key=lambda file: (offset_of(file.name, LOG) is None, file.name))


def unchanged(source: Source, note: Note, *, records_only: bool = False) -> bool:
    """Return whether the source is as it was when a complete copy was made, apart from its indexes.

    A broker that has started meanwhile, and did not come up, leaves the records as they were (`records_only`). Raises
    OSError, CopyFailed.
    """

    def counts(name: str) -> bool:
        return name.endswith(LOG) if records_only else not name.endswith((INDEX, TIME_INDEX))

    now = {file.name: (file.size, file.mtime_ns) for file in files_of(source) if counts(file.name)}
    return now == {name: (size, mtime) for name, (size, mtime, _) in note.files.items() if counts(name)}


def remaining(source: Source, note: Note | None) -> int:
    """Return the bytes still to copy. Raises OSError, CopyFailed."""
    left = 0
    for file in files_of(source):
        done = 0
        if note is not None and note.files.get(file.name, ())[:2] == (file.size, file.mtime_ns):
            done = file.size
        elif (
            note is not None and note.current is not None and note.current[:3] == (file.name, file.size, file.mtime_ns)
        ):
            done = note.current[3]
        left += file.size - done
    return left


@dataclass(slots=True)
class _Copier:
    source: Source
    wrapper: Path
    note: Note
    admit: Callable[[int], None]
    cut: list[str] = field(default_factory=list)
    unsaved: int = 0
    """Bytes that are whole and flushed, and of which the note on the disk does not know."""

    @property
    def inner(self) -> Path:
        return self.wrapper / replica_name(self.note.tp)

    def file(self, file: _File, *, last: bool) -> None:
        """Copy one file unless it is whole already."""
        known = self.note.files.get(file.name)
        path = self.inner / file.name
        if known is not None and known[:2] == (file.size, file.mtime_ns) and _size(path) == known[2]:
            return
        start = 0
        current = self.note.current
        if current is not None and current[:3] == (file.name, file.size, file.mtime_ns) and _size(path) >= current[3]:
            start = current[3]
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.ftruncate(fd, start)
            is_log = offset_of(file.name, LOG) is not None
            pieces = self._batches(file, start, last=last) if is_log else _bytes(self.source.folder / file.name, start)
            end = self._write(fd, file, start, pieces)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.note = replace(
            self.note, files={**self.note.files, file.name: (file.size, file.mtime_ns, end)}, current=None
        )
        self.unsaved += end - start
        if self.unsaved >= FLUSH_BYTES:
            self.save()
        failpoint(FILE_DONE)

    def _write(self, fd: int, file: _File, start: int, pieces: Iterator[bytes]) -> int:
        position = flushed = start
        for piece in pieces:
            self.admit(len(piece))
            write_all(fd, piece, position)
            position += len(piece)
            failpoint(CHUNK_WRITTEN)
            if position - flushed >= FLUSH_BYTES:
                os.fdatasync(fd)
                flushed = position
                self.note = replace(self.note, current=(file.name, file.size, file.mtime_ns, position))
                self.save()
                failpoint(FLUSHED)
        return position

    def save(self) -> None:
        """Write the note durably. Raises OSError."""
        aside.write_note(self.wrapper, self.note)
        self.unsaved = 0

    def _batches(self, file: _File, start: int, *, last: bool) -> Iterator[bytes]:
        """Yield a segment in pieces of whole batches. Raises CopyFailed for a batch that is damaged."""
        opened = open_log(self.source.folder / file.name)
        position, piece = start, bytearray()
        end = offset_of(file.name, LOG) or 0
        for at, header, data in scan(opened, start):
            if checksum(data[CRC_START:]) != header.crc or header.base_offset < end:
                raise CopyFailed(
                    f"{self.source.folder / file.name} has a damaged batch at position {at} (offset "
                    f"{header.base_offset}); run: rehome storage check"
                )
            end = header.next_offset
            piece += data
            position = at + header.length
            if len(piece) >= CHUNK:
                yield bytes(piece)
                piece.clear()
        if piece:
            yield bytes(piece)
        if position < opened.size:
            if not last or self.source.clean or not is_torn(opened, position):
                raise CopyFailed(
                    f"{self.source.folder / file.name} has {opened.size - position} bytes at position {position} that "
                    f"are not valid batches; run: rehome storage check"
                )
            self.cut.append(f"{opened.size - position} bytes of an unfinished batch at the end of {file.name}")


def copy(
    source: Source,
    wrapper: Path,
    note: Note,
    admit: Callable[[int], None],
    *,
    extra: Mapping[str, bytes] | None = None,
) -> tuple[Note, list[str]]:
    """Copy what is missing; return the note of the complete copy, and what a start would have cut off as well.

    `admit` is called with the number of bytes before they are written, and may wait. `extra` are small files that the
    copy gets instead of the source's. Everything is durable when this returns. Raises OSError, CopyFailed.
    """
    copier = _Copier(source, wrapper, replace(note, complete=False), admit)
    atomic.make_directory(copier.inner)
    files = files_of(source)
    logs = [file.name for file in files if offset_of(file.name, LOG) is not None]
    known = {file.name for file in files}
    # What an earlier attempt has copied of files that the source no longer has.
    with os.scandir(copier.inner) as entries:
        stale = [entry.path for entry in entries if entry.name not in known]
    for path in stale:
        os.unlink(path)  # noqa: PTH108
    copier.note = replace(copier.note, files={n: v for n, v in copier.note.files.items() if n in known})
    try:
        for file in files:
            copier.file(file, last=bool(logs) and file.name == logs[-1])
    except (OSError, CopyFailed):
        with contextlib.suppress(OSError):
            copier.save()
        raise
    for name, data in (extra or {}).items():
        atomic.write_atomic(copier.inner / name, data)
    atomic.fsync_dir(copier.inner)
    atomic.fsync_dir(wrapper)
    failpoint(FOLDER_FLUSHED)
    done = replace(copier.note, complete=True)
    aside.write_note(wrapper, done)
    failpoint(COMPLETE)
    return done, copier.cut


def _bytes(path: Path, start: int) -> Iterator[bytes]:
    opened = open_log(path)
    position = start
    while data := read_exact(opened.file.fd, CHUNK, position):
        yield data
        position += len(data)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return -1
