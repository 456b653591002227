"""The groups' state on disk: a snapshot and a tail of entries after it, in the metadata log directory.

`consumer-groups` is the snapshot, replaced whole; `consumer-groups.tail` gets one write and one flush for all entries
that wait, and only then they count. When the tail has grown beyond the snapshot's size and a bound, a new snapshot is
written and the tail is emptied. A crash between the two leaves entries in the tail that the snapshot has: their numbers
tell. A torn end of the tail is cut off by the next start.

Where the first of log.dirs is another directory than before, what stands in the old one is found and taken over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, LogFlushError, MetadataIOError, StorageError
from storage_node.failpoints import failpoint
from storage_node.groups.frames import Scan, frame, scan
from storage_node.groups.offsets import Entry, GroupsState

__all__ = ["SNAPSHOT", "TAIL", "Done", "GroupStore"]

_log = logging.getLogger(__name__)

SNAPSHOT: Final = "consumer-groups"
TAIL: Final = "consumer-groups.tail"
SMALLEST_TAIL: Final = 1 << 20
"""Bytes up to which no snapshot is written anew."""

WRITTEN: Final = failpoints.register("groups.written")
FLUSHED: Final = failpoints.register("groups.flushed")

_MAGIC: Final = b"rehome-groups 1\n"
_LIMIT: Final = 4 << 30
_CLOSING: Final = 5.0  # seconds
_PIECE: Final = 256 * 1024  # bytes of a snapshot that are in memory at a time

#: Called once an entry is on disk (None), or cannot be; in a thread of the directory's.
Done = Callable[[BaseException | None], None]


class GroupStore:
    """Thread-safe after `load`. `state` is what is on disk, nothing else."""

    def __init__(self, directories: Sequence[LogDirectory], smallest_tail: int = SMALLEST_TAIL) -> None:
        self.state = GroupsState()
        self.directory = directories[0]
        self._directories = tuple(directories)
        self._smallest = smallest_tail
        self._fd = -1
        self._number = 0
        self._length = 0
        self._most = smallest_tail
        """Bytes of the tail beyond which a new snapshot is written."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: list[tuple[Entry, Done]] = []
        self._busy = False
        self._closed = False

    def load(self) -> None:
        """Read what is there and make ready to write; blocks. Raises StorageError when the metadata directory fails."""
        own = self._read(self.directory)
        newest = own
        for directory in self._directories[1:]:
            if directory.online:
                try:
                    other = self._read(directory)
                except StorageError as error:
                    directory.fail_on(error)
                    continue
                if other is not None and (newest is None or other.number > newest.number):
                    _log.warning("the groups' offsets are taken over from %s", directory.path)
                    newest = other
        if newest is not None:
            self.state, self._number = newest.state, newest.number
        with atomic.io_errors(self.directory.name, f"opening {TAIL}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with atomic.full_is_no_room():
                self._fd = os.open(self.directory.path / TAIL, flags, 0o644)
            atomic.fsync_dir(self.directory.path)
        self._allow(own.snapshot_bytes if own is not None else 0)
        self._length = own.tail_end if own is not None else 0
        self._cut()
        unreachable = self.state.drop_unreachable()
        if unreachable:
            _log.warning("%d groups are dropped: their ids are longer than a request can hold", unreachable)
        if newest is not own or unreachable:
            self._compact()

    def put(self, entry: Entry, done: Done) -> None:
        """Have an entry written; `done` is called when it is on disk and in `state`, or cannot be."""
        with self._lock:
            if not self._closed:
                self._waiting.append((entry, done))
                if self._busy:
                    return
                self._busy = True
        if self._closed:
            done(LogDirectoryOffline(self.directory.name, "keeping groups' offsets while the node stops"))
            return
        self._go_on()

    def close(self) -> None:
        """Wait for what is being written, as long as the directory answers; later entries are refused."""
        with self._idle:
            self._closed = True
            quiet = self._idle.wait_for(lambda: not self._busy or not self.directory.online, _CLOSING)
            if quiet and self._fd >= 0 and not self._busy:
                os.close(self._fd)
                self._fd = -1

    # Writing

    def _go_on(self) -> None:
        try:
            self.directory.submit(self._drain)
        except (StorageError, RuntimeError) as error:
            self._refuse_all(error)

    def _refuse_all(self, error: BaseException) -> None:
        with self._idle:
            waiting, self._waiting, self._busy = self._waiting, [], False
            self._idle.notify_all()
        for _, done in waiting:
            done(error)

    def _drain(self) -> None:
        """Write what waits until nothing does; one of these runs at a time."""
        batch: list[tuple[Entry, Done]] = []
        try:
            while True:
                with self._idle:
                    batch, self._waiting = self._waiting, []
                    if not batch:
                        self._busy = False
                        self._idle.notify_all()
                        return
                self._append([entry for entry, _ in batch])
                for _, done in batch:
                    done(None)
                batch = []
                if self._length > self._most:
                    self._compact()
        except BaseException as error:
            for _, done in batch:
                done(error)
            if atomic.is_no_room(error):
                self._go_on()  # the next ones may be smaller, or there is room by then
            else:
                self._refuse_all(error)
            raise

    def _append(self, entries: Sequence[Entry]) -> None:
        data = b"".join(frame(self._number + 1 + index, entry) for index, entry in enumerate(entries))
        try:
            with atomic.io_errors(self.directory.name, f"writing {TAIL}"), atomic.full_is_no_room():
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
                failpoint(WRITTEN)
        except StorageError:
            self._cut()  # what is behind a torn entry would be lost
            raise
        self._flush()
        self._length += len(data)
        self._number += len(entries)
        for entry in entries:
            self.state.apply(entry)

    def _flush(self) -> None:
        with atomic.io_errors(self.directory.name, f"flushing {TAIL}", LogFlushError):
            os.fdatasync(self._fd)
            failpoint(FLUSHED)

    def _cut(self) -> None:
        """Make the tail end where it is whole."""
        with atomic.io_errors(self.directory.name, f"cutting {TAIL}", LogFlushError):
            if os.fstat(self._fd).st_size > self._length:
                os.ftruncate(self._fd, self._length)
                os.fsync(self._fd)

    def _allow(self, snapshot_bytes: int) -> None:
        self._most = max(self._smallest, 2 * snapshot_bytes)

    def _compact(self) -> None:
        """Write the state as a snapshot and empty the tail. Where there is no room, the tail goes on growing."""
        size = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in _pieces(self._snapshot()):
                size += len(piece)
                yield piece

        try:
            with atomic.io_errors(self.directory.name, f"writing {SNAPSHOT}"):
                atomic.write_atomic(self.directory.path / SNAPSHOT, pieces())
        except MetadataIOError as error:
            if not atomic.is_no_room(error):
                raise
            _log.warning("%s, there is no room; its tail has %d bytes", error, self._length)
            self._most = 2 * self._length
            return
        self._allow(size)
        self._length = 0
        self._cut()

    def _snapshot(self) -> Iterator[bytes]:
        yield _MAGIC
        yield frame(self._number, ["head"])
        count = 0
        for count, entry in enumerate(self.state.entries(), 1):  # noqa: B007 (the last is the count)
            yield frame(self._number, entry)
            time.sleep(0)  # lets the listener's thread go on
        yield frame(self._number, ["end", count])

    # Reading

    def _read(self, directory: LogDirectory) -> _Found | None:
        """What a directory holds; None for nothing. Raises MetadataIOError."""
        snapshot = _bytes_of(directory, SNAPSHOT)
        tail = _bytes_of(directory, TAIL)
        if snapshot is None and tail is None:
            return None
        found = _Found()
        if snapshot is not None:
            found.snapshot_bytes = len(snapshot)
            self._replay_snapshot(directory, snapshot, found)
        if tail is not None:
            scanned = scan(tail)
            found.tail_end = scanned.end
            base = found.number
            self._replay(directory, TAIL, scanned, found, lambda number: number > base)
        return found

    def _replay_snapshot(self, directory: LogDirectory, data: bytes, found: _Found) -> None:
        scanned = scan(data, len(_MAGIC)) if data.startswith(_MAGIC) else Scan()
        kept = [(number, entry) for number, entry in scanned.entries if entry[:1] not in (["head"], ["end"])]
        whole = scanned.entries[-1:] and scanned.entries[-1][1] == ["end", len(kept)]
        scanned.entries = kept
        self._replay(directory, SNAPSHOT, scanned, found, lambda _: True)
        if not whole:
            _keep_aside(directory, data, len(kept))

    def _replay(
        self, directory: LogDirectory, name: str, scanned: Scan, found: _Found, wanted: Callable[[int], bool]
    ) -> None:
        damaged = scanned.damaged
        for number, entry in scanned.entries:
            found.number = max(found.number, number)
            if wanted(number):
                try:
                    found.state.apply(entry)
                except (ValueError, TypeError, IndexError):
                    damaged += 1
        if damaged:
            _log.error(
                "%s: %d of %d entries are damaged: the offsets committed with them are lost",
                directory.path / name,
                damaged,
                damaged + len(scanned.entries),
            )


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about `_PIECE`."""
    gathered, size = [], 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


class _Found:
    """What one directory holds."""

    def __init__(self) -> None:
        self.state = GroupsState()
        self.number = 0
        self.tail_end = 0
        self.snapshot_bytes = 0


def _bytes_of(directory: LogDirectory, name: str) -> bytes | None:
    path = directory.path / name
    try:
        with atomic.io_errors(directory.name, f"reading {name}"):
            return atomic.read_bytes(path, _LIMIT)
    except MetadataIOError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _keep_aside(directory: LogDirectory, data: bytes, entries: int) -> None:
    """A damaged snapshot stays for whoever wants to look at it; the next snapshot takes its place."""
    path = directory.path / SNAPSHOT
    _log.error("%s is damaged; %d entries of it are used, the file is kept as %s.damaged", path, entries, SNAPSHOT)
    with atomic.io_errors(directory.name, f"keeping the damaged {SNAPSHOT}"):
        atomic.write_atomic(Path(f"{path}.damaged"), data)
