"""Folders that are set aside, and unfinished copies: names that neither Apache Kafka nor a storage node reads.

A log directory of Apache Kafka may hold no folder with a name of its own: a broker that finds one does not start. But a
name with `-stray` (KIP-858) is one that it gives itself to what it no longer serves, never deletes, and only opens. So
that it does not even open the records, they are one level deeper: `<topic>-<partition>.<32 hex>-stray/` holds the
replica's folder `<topic>-<partition>` and a note (`rehome.json`) of what it is. A broker that starts meanwhile makes
an empty log beside it; a storage node leaves the folder alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.names import NAME_MAX, is_valid_topic, parse, replica_name
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition

__all__ = [
    "NOTE",
    "Note",
    "NoteKind",
    "Wrapper",
    "read_note",
    "remove",
    "set_aside",
    "sweep",
    "take_back",
    "wrapper_name",
    "wrappers",
]

NOTE: Final = "rehome.json"
VERSION: Final = 1
_LIMIT: Final = 16 << 20
_STRAY: Final = "-stray"
_OURS: Final = b"rehome".hex()
"""The first of the 32 digits, by which an empty wrapper is known."""

NOTED = failpoints.register("offline.aside_after_note")
RENAMED = failpoints.register("offline.aside_after_rename")
BACK = failpoints.register("offline.aside_after_taken_back")
EMPTIED = failpoints.register("offline.aside_after_emptied")


class NoteKind(StrEnum):
    """Why a folder is in a wrapper."""

    REPAIRED = "repaired"  # set aside by a repair; `--undo` takes it back
    MOVED = "moved"  # the source of a finished move
    COPY = "copy"  # the copy of a move that is not finished


@dataclass(frozen=True, slots=True)
class Note:
    """What a wrapper holds: which replica, why, and the log directory of its counterpart.

    `made_ns` orders what was set aside of one replica; what one repair sets aside has the same. `added`: entries that a
    repair added to checkpoint files of `other` (file name to offset), which an undo removes.
    For a copy, `complete` says that it is whole and flushed, `files` has for each copied file of the source [size,
    modification time in ns, bytes in the copy], and `current` the file that is being copied, in the same form.
    """

    topic: str
    partition: int
    kind: NoteKind
    other: str
    reason: str = ""
    made_ns: int = 0
    added: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False
    files: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    current: tuple[str, int, int, int] | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper with a note; `filled`: it holds the replica's folder."""

    path: Path
    note: Note
    filled: bool

    @property
    def directory(self) -> str:
        return str(self.path.parent)

    @property
    def inner(self) -> Path:
        return self.path / replica_name(self.note.tp)


def wrapper_name(tp: TopicPartition, seed: str) -> str:
    """Return a wrapper's name; like Apache Kafka's, it has a part of the topic only where it would be too long."""
    suffix = f".{_OURS}{blake2s(seed.encode(), digest_size=16 - len(_OURS) // 2).hexdigest()}{_STRAY}"
    return replica_name(tp)[: NAME_MAX - len(suffix)] + suffix


def encode(note: Note) -> bytes:
    """Return the note's content."""
    return json.dumps({"version": VERSION, **asdict(note)}, sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> Note:
    """Parse a note. Raises ValueError for anything that is not exactly one."""
    try:
        given: dict[str, Any] = json.loads(data)
        if given.pop("version") != VERSION:
            raise ValueError("its version is unknown")
        if set(given) != {each.name for each in fields(Note)}:
            raise ValueError("its keys are not those of a note")
        note = Note(
            topic=str(given["topic"]),
            partition=int(given["partition"]),
            kind=NoteKind(given["kind"]),
            other=str(given["other"]),
            reason=str(given["reason"]),
            made_ns=int(given["made_ns"]),
            added={str(key): int(value) for key, value in given["added"].items()},
            complete=given["complete"] is True,
            files={str(key): (int(a), int(b), int(c)) for key, (a, b, c) in given["files"].items()},
            current=_current(given["current"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a note: {error}") from error
    if not is_valid_topic(note.topic) or not 0 <= note.partition < 2**31:
        raise ValueError("it names no valid partition")
    if any("/" in name or name in (".", "..") for name in note.files):
        raise ValueError("it names files outside of the folder")
    return note


def _current(value: Any) -> tuple[str, int, int, int] | None:
    if value is None:
        return None
    name, size, mtime, position = value
    if "/" in str(name) or name in (".", ".."):
        raise ValueError("it names a file outside of the folder")
    return str(name), int(size), int(mtime), int(position)


def read_note(path: Path) -> Note | None:
    """Return the note in a folder; None without one, or with one that cannot be used: the folder is then left alone."""
    try:
        return decode(atomic.read_bytes(path / NOTE, _LIMIT))
    except (OSError, ValueError):
        return None


def write_note(path: Path, note: Note) -> None:
    """Write a wrapper's note durably. Raises OSError."""
    atomic.write_atomic(path / NOTE, encode(note))


def wrappers(directory: str) -> list[Wrapper]:
    """Return the wrappers with a note in a log directory, sorted by name. Raises OSError."""
    found = []
    with os.scandir(directory) as entries:
        paths = sorted(Path(e.path) for e in entries if e.name.endswith(_STRAY) and e.is_dir(follow_symlinks=False))
    for path in paths:
        note = read_note(path) if parse(path.name).kind == "stray" else None
        if note is not None:
            inner = path / replica_name(note.tp)
            found.append(Wrapper(path, note, inner.is_dir() and not inner.is_symlink()))
    return found


def make_wrapper(directory: str, note: Note) -> Path:
    """Return an empty wrapper with this note, durable: the one that an earlier attempt left, or a new one.

    Raises OSError.
    """
    for number in range(1 << 16):
        path = Path(directory) / wrapper_name(note.tp, f"{note.kind}\0{number}")
        if not path.exists() or (not (path / replica_name(note.tp)).exists() and _reusable(path, note)):
            break
    else:
        raise FileExistsError(17, "every name for what is set aside is taken", directory)
    atomic.make_directory(path)
    write_note(path, note)
    failpoint(NOTED)
    return path


def _reusable(path: Path, note: Note) -> bool:
    """Return whether a wrapper without a replica is what a crash left of the same step."""
    found = read_note(path)
    with os.scandir(path) as entries:
        empty = all(entry.name in (NOTE, NOTE + atomic.TMP_SUFFIX) for entry in entries)
    return empty if found is None else (found.kind, found.tp) == (note.kind, note.tp)


def set_aside(directory: str, note: Note, name: str = "") -> Path:
    """Rename a replica's folder, or its unfinished copy `name`, into a wrapper, durably; return where it is now.

    A crash leaves the replica, or the replica in the wrapper; an empty wrapper is used by the next attempt. Raises
    OSError.
    """
    name = name or replica_name(note.tp)
    path = make_wrapper(directory, note)
    inner = path / name
    atomic.rename_new(Path(directory) / name, inner)
    atomic.fsync_dir(path)
    atomic.fsync_dir(directory)
    failpoint(RENAMED)
    return inner


def take_back(wrapper: Wrapper) -> None:
    """Rename what a wrapper holds to the replica's plain name, durably.

    Raises OSError, if that name exists FileExistsError.
    """
    atomic.rename_new(wrapper.inner, wrapper.path.parent / wrapper.inner.name)
    atomic.fsync_dir(wrapper.path.parent)
    atomic.fsync_dir(wrapper.path)
    failpoint(BACK)


def remove(path: Path) -> None:
    """Remove a wrapper that holds no replica: its note, and the empty log that a broker may have made in it.

    Raises OSError; a file with bytes in a .log is left, with the wrapper, as is any folder.
    """
    with os.scandir(path) as entries:
        found = list(entries)
    if any(e.is_dir(follow_symlinks=False) or (e.name.endswith(".log") and e.stat().st_size) for e in found):
        raise OSError(39, "it holds more than a note and an empty log", str(path))
    # The note goes last: until then the wrapper is known.
    for entry in sorted(found, key=lambda each: each.name == NOTE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.path)  # noqa: PTH108
    failpoint(EMPTIED)
    path.rmdir()
    atomic.fsync_dir(path.parent)


def sweep(directory: str) -> None:
    """Remove the empty wrappers that a crash of `remove` or `make_wrapper` left. Raises OSError."""
    with os.scandir(directory) as entries:
        paths = [Path(e.path) for e in entries if f".{_OURS}" in e.name and e.name.endswith(_STRAY)]
    for path in paths:
        if not path.is_dir() or path.is_symlink():
            continue
        unfinished = path / (NOTE + atomic.TMP_SUFFIX)
        if {each.name for each in path.iterdir()} <= {unfinished.name}:
            unfinished.unlink(missing_ok=True)
            path.rmdir()
            atomic.fsync_dir(directory)


def destroy(wrapper: Wrapper) -> None:
    """Remove a wrapper with the replica in it. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(wrapper.inner)
    remove(wrapper.path)
