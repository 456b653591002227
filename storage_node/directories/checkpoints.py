"""Kafka's offset checkpoints: one small text file per log directory and kind.

Line 1 is the version `0`, line 2 the number of entries, then one `topic partition offset` per line. An empty file has
no entries. A partition's moving copy shares the files with the replicas: both are never in the same directory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from storage_node.directories import atomic
from storage_node.directories.errors import MalformedCheckpoint
from storage_node.errors import CheckpointIOError
from storage_node.model.ids import TopicPartition

__all__ = [
    "HIGH_WATERMARKS",
    "LOG_START_OFFSETS",
    "RECOVERY_POINTS",
    "OffsetCheckpoint",
    "decode",
    "encode",
    "write_together",
]

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"

_LIMIT: Final = 64 * 1024 * 1024  # bytes; 20,000 entries with the longest names are 6 MB
_POINTS: Final = atomic.points("checkpoint")


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return a checkpoint file's content, entries sorted by topic and partition."""
    lines = ["0", str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offsets[tp]}" for tp in sorted(offsets)]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode(data: bytes, path: Path | str = "checkpoint") -> dict[TopicPartition, int]:
    """Parse a checkpoint file's content; raises MalformedCheckpoint with `path`, the line and the reason."""
    if not data:
        return {}
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise MalformedCheckpoint(path, "it is not an ASCII text file") from None
    if lines[0].strip() != "0":
        raise MalformedCheckpoint(path, f"line 1: unknown version {lines[0][:40]!r}")
    count = _number(lines[1]) if len(lines) > 1 else None
    if count is None:
        raise MalformedCheckpoint(path, "line 2: not a number of entries")
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split()
        partition, offset = (_number(fields[1]), _number(fields[2])) if len(fields) == 3 else (None, None)
        if partition is None or offset is None:
            raise MalformedCheckpoint(path, f"line {number}: not 'topic partition offset': {line[:80]!r}")
        offsets[TopicPartition(fields[0], partition)] = offset
    if len(lines) - 2 != count:
        raise MalformedCheckpoint(path, f"line 2 declares {count} entries, but the file has {len(lines) - 2}")
    return offsets


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


class OffsetCheckpoint:
    """A checkpoint file of a log directory; thread-safe.

    Reading and writing raise CheckpointIOError on I/O errors.
    """

    def __init__(self, directory: Path | str, name: str) -> None:
        self.directory = str(directory)
        self.path = Path(directory) / name
        self._lock = threading.Lock()
        self._written: bytes | None = None  # the content, once this object has written it

    def read(self) -> dict[TopicPartition, int]:
        """Return the file's offsets, none if it does not exist; raises MalformedCheckpoint."""
        with atomic.io_errors(self.directory, f"reading {self.path.name}", CheckpointIOError):
            try:
                data = atomic.read_bytes(self.path, _LIMIT)
            except FileNotFoundError:
                return {}
        return decode(data, self.path)

    def read_lenient(self) -> tuple[dict[TopicPartition, int], str | None]:
        """Read the file; a malformed one counts as empty, and the second value is the reason.

        Suits recovery points and log start offsets, for which 0 only costs recovery time or keeps more records.
        """
        try:
            return self.read(), None
        except MalformedCheckpoint as exc:
            return {}, str(exc)

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file durably."""
        with self._lock:
            self._write(offsets)

    def update(self, put: Mapping[TopicPartition, int], drop: Iterable[TopicPartition] = ()) -> None:
        """Change some entries durably and keep the others; write nothing if nothing changes."""
        with self._lock:
            before, problem = self.read_lenient()
            after = {**before, **put}
            for tp in drop:
                after.pop(tp, None)
            if after != before or problem is not None:
                self._write(after)

    def lower(self, limits: Mapping[TopicPartition, int]) -> None:
        """Lower entries to at most these offsets, durably; on a full disk, remove the whole file instead.

        For recovery points, whose loss only makes the recovery slower.
        """
        with self._lock:
            before, _ = self.read_lenient()
            low = {tp: limit for tp, limit in limits.items() if before.get(tp, 0) > limit}
            if not low:
                return
            try:
                self._write({**before, **low})
            except CheckpointIOError as error:
                if not atomic.is_no_room(error):
                    raise
                self._written = None
                with atomic.io_errors(self.directory, f"removing {self.path.name}", CheckpointIOError):
                    atomic.remove(self.path)

    def _write(self, offsets: Mapping[TopicPartition, int]) -> None:
        data = self._replace(offsets, name=True)
        if data is not None:
            self._written = data

    def _replace(self, offsets: Mapping[TopicPartition, int], *, name: bool) -> bytes | None:
        """Replace the file and return its new content; None if it was unchanged."""
        data = encode(offsets)
        if data == self._written:
            return None
        self._written = None
        with atomic.io_errors(self.directory, f"writing {self.path.name}", CheckpointIOError):
            atomic.write_atomic(self.path, data, _POINTS, name=name)
        return data


def write_together(
    directory: Path | str, files: Iterable[tuple[OffsetCheckpoint, Mapping[TopicPartition, int]]]
) -> None:
    """Replace several files of a log directory durably, in this order, with one flush of the directory.

    Raises CheckpointIOError; each file then has its old or its new content.
    """
    with contextlib.ExitStack() as locks:
        replaced: list[tuple[OffsetCheckpoint, bytes]] = []
        for file, offsets in files:
            locks.enter_context(file._lock)
            data = file._replace(offsets, name=False)
            if data is not None:
                replaced.append((file, data))
        if replaced:
            with atomic.io_errors(directory, "flushing the names of its checkpoints", CheckpointIOError):
                atomic.fsync_dir(directory)
            for file, data in replaced:
                file._written = data
