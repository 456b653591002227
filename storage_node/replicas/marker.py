"""Read and write the marker: one small file that says what a partition's directory is, durable before anything relies
on it.

The name of a directory alone (`t-0`, `t-0.move`, `t-0.<id>.delete`) is ambiguous: a partial copy looks like a whole
one, and of two whole ones the newer is not known. The marker adds a state, the replica's generation and the ids of the
two directories. It also holds the claim, which identifies the request that owns the move.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import crc32c

from storage_node import failpoints
from storage_node.directories.atomic import full_is_no_room, io_errors, is_no_room, read_bytes, write_atomic
from storage_node.errors import MetadataIOError
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition

OVERWRITE_AFTER_DATA = failpoints.register("marker.overwrite_after_data")

NAME = "partition.move"
VERSION = 1
_LIMIT = 64 << 10
_NO_FILE_OF_OURS = frozenset({errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.EFBIG})
"""A symlink, a pipe, a folder, a huge file: proves nothing about the disk."""


class State(StrEnum):
    """What a partition's directory is."""

    CURRENT = "CURRENT"  # a settled replica
    COPYING = "COPYING"  # a `.move` that is not complete
    SEALED = "SEALED"  # a `.move` that holds all that the source holds; becomes CURRENT once it is promoted
    CANCELLED = "CANCELLED"  # a `.move` that must be removed
    DELETED = "DELETED"  # a `.delete`, with a reason


class Reason(StrEnum):
    """Why a directory is a `.delete`; only the first can be rolled back."""

    SWAP = "swap"  # the source of a move that was swapped
    TOPIC = "topic"  # the topic was deleted
    REASSIGNED = "reassigned"  # other nodes hold the partition now
    CANCEL = "cancel"  # the copy of a move that was cancelled
    REMOVING = "removing"  # removal has begun: what is left is no longer a copy


#: The reason reported for a move whose replica is deleted for good.
GOES = {Reason.TOPIC: "the topic was deleted", Reason.REASSIGNED: "the partition was reassigned to other nodes"}


class MarkerCorrupt(Exception):
    """A marker exists but cannot be trusted; the message names the file."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The contents of the file.

    `generation` is the replica's: the source has g, its copy g + 1. `claim` is, in a source, the newest claim issued
    for the partition, and in a `.move` the claim of its owner. `seal_*`, `log_start` and `leader_epoch` are offsets and
    epoch at the seal (-1 before it; `log_start` also once the directory's checkpoint has it). `delete_at_ms` is the
    wall clock at which a `.delete` is due (0: count from the start), `full_name` the directory's name before it was
    shortened, `throttle` the limit of a `.move`'s run (bytes per second, 0: none), so that a copy that a start resumes
    keeps it. `partition_epoch` is that under which this node held the replica when the `.move` was made (-1: not
    known): a directory that was offline when the replica was reassigned has no other record of it. `created_epoch` is
    the partition epoch under which this node created the replica while a directory was unavailable that might hold an
    earlier one (-1: none was), and its copies inherit it: generations restart with a new replica, so that those of an
    earlier one are not comparable.
    """

    topic: str
    partition: int
    topic_id: str = ""
    source_id: str = ""
    target_id: str = ""
    generation: int = 0
    state: State = State.CURRENT
    reason: str = ""
    claim: int = 0
    owner: str = ""
    run_id: str = ""
    seal_leo: int = -1
    seal_hw: int = -1
    log_start: int = -1
    leader_epoch: int = -1
    delete_at_ms: int = 0
    full_name: str = ""
    throttle: int = 0
    partition_epoch: int = -1
    created_epoch: int = -1

    @property
    def tp(self) -> TopicPartition:
        """The partition; for a `.delete` with a shortened name this is its only record."""
        return TopicPartition(self.topic, self.partition)

    def settled(self, generation: int | None = None) -> Marker:
        """Return this replica as a current one, of this or another generation; it keeps the claim, so that claims never
        decrease.
        """
        return replace(
            self,
            state=State.CURRENT,
            generation=self.generation if generation is None else generation,
            reason="",
            delete_at_ms=0,
            full_name="",
            throttle=0,
        )


_TYPES = {field.name: str if field.type in ("str", "State") else int for field in fields(Marker)}


def encode(marker: Marker) -> bytes:
    """Return the bytes of the file: one JSON object, `crc` over the canonical JSON of the rest."""
    document: dict[str, Any] = {"version": VERSION, **asdict(marker)}
    document["crc"] = crc32c.crc32c(_canonical(document))
    return json.dumps(document, sort_keys=True).encode() + b"\n"


def decode(data: bytes, name: str) -> Marker:
    """Decode the bytes of a marker; raises `MarkerCorrupt`, naming `name`, for anything that is not exactly one."""
    try:
        document = json.loads(data)
        crc = document.pop("crc")
        if crc != crc32c.crc32c(_canonical(document)):
            raise ValueError("its checksum is wrong")
        if document.pop("version") != VERSION:
            raise ValueError("its version is not known")
        for key, kind in _TYPES.items():
            if key in document and type(document[key]) is not kind:
                raise ValueError(f"{key} is not of type {kind.__name__}")
        known = {key: document[key] for key in _TYPES if key in document}
        return Marker(**{**known, "state": State(document["state"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkerCorrupt(f"marker {name} cannot be used: {error}") from error


def read(path: Path) -> Marker | None:
    """Return the marker in the partition's directory `path`, or None.

    Raises `MarkerCorrupt` and, when the file cannot be read, `MetadataIOError`.
    """
    file = path / NAME
    try:
        data = read_bytes(file, _LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILE_OF_OURS:
            raise MarkerCorrupt(f"marker {file} cannot be used: {error.strerror}") from error
        raise MetadataIOError(str(path.parent), f"reading {file}") from error
    return decode(data, str(file))


def read_any(path: Path) -> Marker | None:
    """Like `read`, for a directory that is deleted whatever its marker says: also None for an unusable marker."""
    try:
        return read(path)
    except MarkerCorrupt:
        return None


def write(path: Path, marker: Marker, *, name: bool = True) -> None:
    """Write the marker into the partition's directory `path`; it is durable when this returns.

    Without `name` a crash may restore the earlier marker, or none where none was, see `write_atomic`. Raises
    `MetadataIOError` with the log directory.
    """
    try:
        write_atomic(path / NAME, encode(marker), name=name)
    except OSError as error:
        raise MetadataIOError(str(path.parent), f"writing {path / NAME}") from error


def write_in_any_case(path: Path, marker: Marker) -> bool:
    """Like `write`, for an operation that frees space in the end: on a full disk the marker is overwritten in place.

    A crash then leaves a new, old or corrupt marker, and a folder with a corrupt marker is never taken for a copy as
    long as there is another. Where no marker exists none is created, and False is returned: only a replica that was
    never moved has none, and its name is then all that is known of it. A folder in the marker's place is renamed.
    """
    _put_aside(path)
    try:
        write(path, marker)
        return True
    except MetadataIOError as error:
        if not is_no_room(error):
            raise
        with io_errors(path.parent, f"writing {path / NAME}"):
            if not (path / NAME).exists():
                return False
            fd = os.open(path / NAME, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data = encode(marker)
                with full_is_no_room():
                    os.pwrite(fd, data, 0)
                failpoint(OVERWRITE_AFTER_DATA)
                os.ftruncate(fd, len(data))
                os.fsync(fd)
            finally:
                os.close(fd)
        return True


def _put_aside(path: Path) -> None:
    """Rename a folder in the marker's place; it is deleted with the rest."""
    with io_errors(path.parent, f"putting {path.name}/{NAME} aside"):
        if (path / NAME).is_dir() and not (path / NAME).is_symlink():
            number = 1
            while (aside := path / f"{NAME}.{number}").exists():
                number += 1
            (path / NAME).rename(aside)


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
