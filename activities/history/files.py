"""Files of an export: written under a temporary name, flushed, renamed; readable by their owner only.

Histories hold the users' topics and paths, so files have mode 0600 and folders 0700 whatever the umask is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temporalio.api.export.v1 import WorkflowExecution
from temporalio.api.history.v1 import History

from activities.history.manifest import FileEntry, RunEntry, close_bounds

FILE_MODE = 0o600
FOLDER_MODE = 0o700

#: Field 1, length-delimited: `items` of temporal.api.export.v1.WorkflowExecutions.
_ITEM_TAG = b"\x0a"


class ExportBusy(Exception):
    """Another export holds the folder's lock."""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each accessible to its owner only. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def sync_folder(path: Path) -> None:
    """Flush a folder, so that the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all. Raises OSError, and may then leave a temporary file."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, FILE_MODE)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)
    sync_folder(path.parent)


def digest(data: bytes) -> str:
    """Return the SHA-256 as lowercase hex."""
    return hashlib.sha256(data).hexdigest()


def varint(number: int) -> bytes:
    """Encode a length as protobuf does: seven bits per byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the export folder. Raises ExportBusy at once if another export, in any process, has locked it."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ExportBusy(f"another export is writing to {directory}: wait until it has ended") from error
        yield
    finally:
        os.close(descriptor)


class PartWriter:
    """Writes histories into files of limited size, one `WorkflowExecutions` message each, item by item.

    A file is closed if the next history would exceed its `limit` in bytes; a larger history gets a file of its own. The
    message is never built in memory: a repeated field may be written one element after the other.
    """

    def __init__(self, root: Path, folder: Path, kind: str, prefix: str, limit: int) -> None:
        """Write to `folder`, which has this export's files, below the export folder `root`."""
        self._root, self._folder, self._kind, self._prefix, self._limit = root, folder, kind, prefix, limit
        self._chunks: list[bytes] = []
        self._size = 0
        self._events = 0
        self._runs: list[RunEntry] = []
        self._files: list[FileEntry] = []

    @property
    def path(self) -> Path:
        """Return the file of the next history."""
        return self._folder / f"{self._prefix}-{len(self._files):05d}.pb"

    def add(self, run: RunEntry, history: History) -> None:
        """Append one run's history. Raises OSError."""
        item = WorkflowExecution(history=history).SerializeToString()
        framed = _ITEM_TAG + varint(len(item)) + item
        if self._runs and self._size + len(framed) > self._limit:
            self._close_file()
        self._chunks.append(framed)
        self._size += len(framed)
        self._events += len(history.events)
        self._runs.append(run)

    def finish(self) -> tuple[FileEntry, ...]:
        """Close the last file and return all of them in order. Raises OSError."""
        if self._runs:
            self._close_file()
        return tuple(self._files)

    def _close_file(self) -> None:
        data = b"".join(self._chunks)
        low, high = close_bounds(self._runs)
        write_whole(self.path, data)
        entry = FileEntry(
            str(self.path.relative_to(self._root)),
            self._kind,
            len(data),
            digest(data),
            self._events,
            low,
            high,
            tuple(self._runs),
        )
        self._files.append(entry)
        self._chunks, self._size, self._events, self._runs = [], 0, 0, []
