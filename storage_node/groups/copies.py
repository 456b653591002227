"""One log directory's copy of the groups: a snapshot and a tail of entries after it.

`consumer-groups` is the snapshot, which is replaced as a whole; entries are appended to `consumer-groups.tail`. When
the tail exceeds twice the snapshot's size and a minimum, a new snapshot is written and the tail truncated. A crash
between the two leaves entries in the tail that the snapshot has: a start skips them by their numbers. It also truncates
a torn entry at the end of the tail.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, LogFlushError, MetadataIOError, StorageError
from storage_node.failpoints import failpoint
from storage_node.groups.frames import Scan, check, frame, scan
from storage_node.groups.offsets import Entry, GroupsState

__all__ = ["SNAPSHOT", "TAIL", "Found", "GroupCopy", "Survey"]

_log = logging.getLogger(__name__)

SNAPSHOT: Final = "consumer-groups"
TAIL: Final = "consumer-groups.tail"

WRITTEN: Final = failpoints.register("groups.written")
FLUSHED: Final = failpoints.register("groups.flushed")

_MAGIC: Final = b"rehome-groups 1\n"
_LIMIT: Final = 4 << 30
_PIECE: Final = 256 * 1024  # bytes of a snapshot in one write
_MOST_WAITING: Final = 32 << 20  # bytes that wait for one directory, before it is left behind

Outcome = Callable[[BaseException | None], None]
"""Called with None when a job is done, else with its error; in a thread of the directory, or of the caller."""


@dataclass(frozen=True, slots=True)
class Survey:
    """A directory's files by their checksums: the highest number, whether all of it is valid, the end of the tail's
    last valid entry and the snapshot's size in bytes. `exists` is False where there are no files.
    """

    exists: bool = False
    number: int = 0
    whole: bool = True
    tail_end: int = 0
    snapshot_bytes: int = 0


@dataclass(slots=True)
class Found:
    """The groups in one directory, and the entries of its tail, with their numbers."""

    state: GroupsState = field(default_factory=GroupsState)
    number: int = 0
    damaged: int = 0
    tail: list[tuple[int, Entry]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], None]
    outcome: Outcome
    size: int = 0


class GroupCopy:
    """The groups' files in one directory. Its jobs run in order, on the directory's threads; other methods return at
    once, unless they say otherwise.

    `ready`: it has every entry that was handed to it. `catching_up`: a snapshot is being written, and entries wait.
    """

    def __init__(self, directory: LogDirectory, smallest_tail: int) -> None:
        self.directory = directory
        self.ready = False
        self.catching_up = False
        self.retry_at = 0.0
        """When a snapshot is tried again, by `time.monotonic`, in a copy that is not ready."""
        self._smallest = smallest_tail
        self._fd = -1
        self._length = 0
        self._most = smallest_tail
        """Bytes of the tail beyond which a new snapshot is due."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._closed = False

    # Jobs

    @property
    def idle(self) -> bool:
        """Whether no job waits or runs."""
        return not self._busy

    @property
    def long(self) -> bool:
        """Whether the tail is longer than it should be."""
        return self._length > self._most

    def append(self, data: bytes, outcome: Outcome) -> None:
        """Queue the frames of some entries. A copy that lags too far behind is not `ready` any more."""

        def work() -> None:
            self._append(data)

        with self._lock:
            lags = self._waiting_bytes + len(data) > _MOST_WAITING and self._busy
        if lags:
            self.leave_behind()
            outcome(LogDirectoryOffline(self.directory.name, f"writing {TAIL}, which lags behind"))
            return
        self._queue(_Job(work, outcome, len(data)))

    def renew(self, state: GroupsState, number: int, outcome: Outcome) -> None:
        """Queue a snapshot of the state, which has all entries up to `number`; what is appended after it is kept."""
        self.ready = self.catching_up = True

        def finished(error: BaseException | None) -> None:
            self.catching_up = False
            if error is not None:
                self.leave_behind()
            outcome(error)

        self._queue(_Job(lambda: self._compact(state, number), finished))

    def leave_behind(self) -> None:
        """Drop what waits: from now on the copy lacks entries, until it is renewed."""
        self.ready = False
        with self._lock:
            dropped = list(self._jobs)
            self._jobs.clear()
            self._waiting_bytes = 0
        for job in dropped:
            job.outcome(LogDirectoryOffline(self.directory.name, f"writing {TAIL}, which lags behind"))

    def _queue(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._waiting_bytes += job.size
            if self._busy:
                return
            self._busy = True
        try:
            self.directory.submit(self._drain)
        except (StorageError, RuntimeError) as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        with self._idle:
            dropped = list(self._jobs)
            self._jobs.clear()
            self._waiting_bytes = 0
            self._busy = False
            self._idle.notify_all()
        for job in dropped:
            job.outcome(error)

    def _drain(self) -> None:
        """Do the waiting jobs until none is left; only one thread runs this at a time."""
        while True:
            with self._idle:
                if not self._jobs:
                    self._busy = False
                    if self._closed:
                        self._close_file()
                    self._idle.notify_all()
                    return
                job = self._jobs.popleft()
                self._waiting_bytes -= job.size
            try:
                job.work()
            except StorageError as error:
                self.directory.fail_on(error)
                job.outcome(error)
            except Exception as error:
                _log.exception("the groups' files in %s", self.directory.path)
                job.outcome(error)
            else:
                job.outcome(None)

    def close(self, seconds: float) -> None:
        """Wait for the jobs under way, if the directory responds, and close the tail."""
        until = time.monotonic() + seconds
        closing: threading.Thread | None = None
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._busy or not self.directory.online, seconds)
            if not self._busy:
                closing = self._close_file()
        if closing is not None:
            closing.join(max(0.0, until - time.monotonic()))

    def retire(self) -> None:
        """Let go of a directory that is offline, whose disk may hang; close the tail once nothing uses it."""
        self.leave_behind()
        threading.Thread(target=self.close, args=(0.0,), name="close-groups", daemon=True).start()

    def _close_file(self) -> threading.Thread | None:
        """Begin to close the tail on a thread of its own: a close may wait for a disk that hangs."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return None
        closing = threading.Thread(target=_close, args=(fd,), name="close-groups", daemon=True)
        closing.start()
        return closing

    # Writing: on the directory's threads

    def open(self, survey: Survey) -> None:
        """Open the tail, and truncate it after its last valid entry. Raises StorageError."""
        self._open_tail()
        self._allow(survey.snapshot_bytes)
        if not survey.whole:
            self._most = -1  # a new snapshot is due
        self._length = survey.tail_end
        self._cut()

    def _open_tail(self) -> None:
        with atomic.io_errors(self.directory.name, f"opening {TAIL}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with atomic.full_is_no_room():
                self._fd = os.open(self.directory.path / TAIL, flags, 0o644)
            atomic.fsync_dir(self.directory.path)

    def _append(self, data: bytes) -> None:
        try:
            with atomic.io_errors(self.directory.name, f"writing {TAIL}"), atomic.full_is_no_room():
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
                failpoint(WRITTEN)
        except StorageError:
            self._cut()  # entries after a torn one would be lost
            raise
        self._flush()
        self._length += len(data)

    def _flush(self) -> None:
        with atomic.io_errors(self.directory.name, f"flushing {TAIL}", LogFlushError):
            os.fdatasync(self._fd)
            failpoint(FLUSHED)

    def _cut(self) -> None:
        """Truncate the tail after its last whole entry."""
        with atomic.io_errors(self.directory.name, f"cutting {TAIL}", LogFlushError):
            if os.fstat(self._fd).st_size > self._length:
                os.ftruncate(self._fd, self._length)
                os.fsync(self._fd)

    def _allow(self, snapshot_bytes: int) -> None:
        self._most = max(self._smallest, 2 * snapshot_bytes)

    def _compact(self, state: GroupsState, number: int) -> None:
        """Write the state as a snapshot and truncate the tail; on a full disk an open tail continues to grow.

        The state may change meanwhile: the changes are in the tail of this copy too, whose entries are applied again.
        """
        size = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in _pieces(_snapshot(state, number)):
                size += len(piece)
                yield piece

        try:
            with atomic.io_errors(self.directory.name, f"writing {SNAPSHOT}"):
                atomic.write_atomic(self.directory.path / SNAPSHOT, pieces())
        except MetadataIOError as error:
            if not atomic.is_no_room(error) or self._fd < 0:
                raise
            _log.warning("%s: the disk is full; the tail has %d bytes", error, self._length)
            self._most = 2 * self._length
            return
        if self._fd < 0:
            self._open_tail()
        self._allow(size)
        self._length = 0
        self._cut()

    # Reading: on the directory's threads

    def survey(self) -> Survey:
        """Check the files without parsing them. Raises MetadataIOError."""
        snapshot, tail = _bytes_of(self.directory, SNAPSHOT), _bytes_of(self.directory, TAIL)
        number, whole, end = 0, True, 0
        if snapshot is not None:
            checked = check(snapshot, len(_MAGIC)) if snapshot.startswith(_MAGIC) else None
            whole = checked is not None and not checked.damaged and _ends(checked.last, checked.count - 2)
            number = checked.number if checked is not None else 0
        if tail is not None:
            entries = check(tail)
            number, end = max(number, entries.number), entries.end
            whole = whole and not entries.damaged
        exists = snapshot is not None or bool(tail)
        return Survey(exists, number, whole, end, len(snapshot) if snapshot is not None else 0)

    def read(self) -> Found:
        """Return the groups in the directory. Raises MetadataIOError."""
        snapshot, tail = _bytes_of(self.directory, SNAPSHOT), _bytes_of(self.directory, TAIL)
        found = Found()
        if snapshot is not None:
            self._replay_snapshot(snapshot, found)
        if tail is not None:
            base = found.number
            scanned = scan(tail)
            found.tail = [(number, entry) for number, entry in scanned.entries if number > base]
            self._replay(TAIL, scanned, found, lambda number: number > base)
        return found

    def _replay_snapshot(self, data: bytes, found: Found) -> None:
        scanned = scan(data, len(_MAGIC)) if data.startswith(_MAGIC) else Scan()
        kept = [(number, entry) for number, entry in scanned.entries if entry[:1] not in (["head"], ["end"])]
        whole = scanned.entries[-1:] and scanned.entries[-1][1] == ["end", len(kept)]
        found.number = max((number for number, _ in scanned.entries), default=0)
        scanned.entries = kept
        self._replay(SNAPSHOT, scanned, found, lambda _: True)
        if not whole:
            found.damaged += 1
            _keep_aside(self.directory, data, len(kept))

    def _replay(self, name: str, scanned: Scan, found: Found, wanted: Callable[[int], bool]) -> None:
        damaged = scanned.damaged
        for number, entry in scanned.entries:
            found.number = max(found.number, number)
            if wanted(number):
                try:
                    found.state.apply(entry)
                except (ValueError, TypeError, IndexError):
                    damaged += 1
        if damaged:
            found.damaged += damaged
            _log.error(
                "%s: %d of %d entries are damaged: the offsets committed with them are lost unless another log "
                "directory has them",
                self.directory.path / name,
                damaged,
                damaged + len(scanned.entries),
            )


def wait_for(job: Future[Any], directory: LogDirectory, look: float = 0.2) -> Any:
    """Return the result of a directory's job. Raises LogDirectoryOffline once the directory is given up."""
    while True:
        try:
            return job.result(look)
        except TimeoutError:
            if not directory.online:
                raise LogDirectoryOffline(directory.name, "reading the groups' offsets") from None


def _ends(body: bytes, count: int) -> bool:
    try:
        return bool(json.loads(body or b"null") == ["end", count])
    except ValueError:
        return False


def _snapshot(state: GroupsState, number: int) -> Iterator[bytes]:
    yield _MAGIC
    yield frame(number, ["head"])
    count = 0
    for count, entry in enumerate(state.entries(), 1):  # noqa: B007 (the last is the count)
        yield frame(number, entry)
        time.sleep(0)  # yields the interpreter's lock to the listener's thread
    yield frame(number, ["end", count])


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join the parts to pieces of about `_PIECE` bytes."""
    gathered, size = [], 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


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
    """Keep a copy of a damaged snapshot for an operator; the next snapshot replaces the file itself."""
    path = directory.path / SNAPSHOT
    _log.error("%s is damaged: %d of its entries are valid; it is kept as %s.damaged", path, entries, SNAPSHOT)
    with atomic.io_errors(directory.name, f"keeping the damaged {SNAPSHOT}"):
        atomic.write_atomic(Path(f"{path}.damaged"), data)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
