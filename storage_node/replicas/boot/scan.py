"""Read the good directories and return, per partition, what they hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from storage_node.directories import partition_metadata
from storage_node.directories.atomic import io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.directories.io_faults import Fault, fault_of, reason_of
from storage_node.directories.layout import linked
from storage_node.directories.names import CLUSTER_METADATA, parse
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.recovery import log_end
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.boot.actions import Copy, Found
from storage_node.replicas.marker import State

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Folders of Apache Kafka, and of a file system at its root, that are not reported.
_QUIET = frozenset({"lost+found", "remote-log-index-cache", CLUSTER_METADATA})


@dataclass(frozen=True, slots=True)
class Scan:
    """What the directories hold, and which folders are left alone, with the reason."""

    found: dict[TopicPartition, Found]
    unknown: dict[Path, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Copies:
    current: list[Copy] = field(default_factory=list)
    move: list[Copy] = field(default_factory=list)
    delete: list[Copy] = field(default_factory=list)


Look = tuple[list[tuple[TopicPartition, Copy]], dict[Path, str]]
"""What one directory holds, and which folders there are left alone, with the reason."""
Run = Callable[[LogDirectory, Callable[[], T]], T]
"""Runs a function that touches a directory."""


def _here(_: LogDirectory, work: Callable[[], T]) -> T:
    return work()


def scan(directories: Iterable[LogDirectory], only: Collection[TopicPartition] | None = None) -> Scan:
    """Read names, markers and topic ids of all partitions, or some, in the directories that are online.

    A directory that cannot be read, for whatever reason, is taken offline here: its contents must count as missing.
    """
    looks: dict[LogDirectory, Look] = {}
    for directory in directories:
        if directory.online:
            try:
                looks[directory] = look(directory, only)
            except StorageError as error:
                directory.fail(error)
    return together(looks)


def together(looks: Mapping[LogDirectory, Look], run: Run[Copy] = _here) -> Scan:
    """Combine what several directories hold."""
    copies: dict[TopicPartition, _Copies] = {}
    unknown: dict[Path, str] = {}
    for seen, strange in looks.values():
        unknown |= strange
        for tp, copy in seen:
            place = copies.setdefault(tp, _Copies())
            {"current": place.current, "move": place.move, "delete": place.delete}[copy.kind].append(copy)
    by_id = {directory.id: directory for directory in looks}
    for tp, place in copies.items():
        if any(copy.marker is not None and copy.marker.state is State.SEALED for copy in place.move):
            where = [by_id[copy.directory_id] for copy in place.current]
            place.current = [
                run(directory, partial(_with_end, tp, copy, directory))
                for copy, directory in zip(place.current, where, strict=True)
            ]
    return Scan(
        {tp: Found(tp, tuple(c.current), tuple(c.move), tuple(c.delete)) for tp, c in sorted(copies.items())},
        unknown,
    )


def _with_end(tp: TopicPartition, copy: Copy, directory: LogDirectory) -> Copy:
    """Return the replica beside a sealed copy with its log end offset; unchanged when the offset cannot be read."""
    try:
        return replace(copy, end=log_end(copy.path, directory.name))
    except StorageError as error:
        directory.fail_on(error)
    except RequestRefused as error:
        _log.warning("%s: %s", tp, error)
    return copy


def look(directory: LogDirectory, only: Collection[TopicPartition] | None = None) -> Look:
    """Read one directory; raises StorageError, and nothing of it counts then.

    With `only` nothing of other partitions is read: on a running node their folders appear and disappear. A folder that
    has disappeared before it is read counts as absent.
    """
    seen: list[tuple[TopicPartition, Copy]] = []
    strange: dict[Path, str] = {}
    with io_errors(directory.name, "listing it"):
        paths = sorted(path for path in directory.path.iterdir() if _counts(path) and path.name not in _QUIET)
    for path in paths:
        name = parse(path.name)
        if only is not None and name.tp is not None and name.tp not in only:
            continue
        if path.is_symlink():
            strange[path] = why = linked(path) or "it was a symlink"
            if name.tp is not None and name.kind == "current":
                seen.append((name.tp, Copy(directory.id, path, name.kind, unreadable=why, link=True)))
            continue
        if name.kind not in ("current", "move", "delete"):
            strange[path] = "it was left by Apache Kafka" if name.id else "its name is not that of a replica"
            continue
        corrupt = False
        marker = None
        unreadable = ""
        files: tuple[Path, ...] | None = ()
        try:
            marker = markers.read(path)
            files = _files(directory, path) if marker is None else ()
        except markers.MarkerCorrupt:
            corrupt = True
        except StorageError as error:
            if fault_of(error) is not Fault.FILE or directory.fail_on(error):
                raise
            unreadable = reason_of(error)
        tp = name.tp or (marker.tp if marker is not None else None)
        if tp is None or (marker is not None and marker.tp != tp):
            strange[path] = "name and marker do not say the same" if tp is not None else "it says of no partition"
            continue
        if only is not None and tp not in only:
            continue
        if files is None:
            continue
        if unreadable:
            seen.append((tp, Copy(directory.id, path, name.kind, None, unreadable=unreadable)))
            continue
        unmarked = marker is None and not corrupt
        unborn = unmarked and name.kind == "current" and not any(file.suffix == ".log" for file in files)
        topic_id = (marker.topic_id if marker is not None else "") or _topic_id(directory, path)
        seen.append((tp, Copy(directory.id, path, name.kind, marker, corrupt, unborn=unborn, topic_id=topic_id)))
    return seen, strange


def _counts(path: Path) -> bool:
    """Return whether it is a folder, or a symlink under a replica's name, even one that leads nowhere."""
    return path.is_dir() or (path.is_symlink() and parse(path.name).tp is not None)


def _files(directory: LogDirectory, path: Path) -> tuple[Path, ...] | None:
    """Return the files in a folder; None if the folder no longer exists."""
    with io_errors(directory.name, f"listing {path.name}"):
        try:
            return tuple(path.iterdir())
        except FileNotFoundError:
            return None


def _topic_id(directory: LogDirectory, path: Path) -> str:
    """Return the topic id in a folder; "" without one, or where that file alone is malformed or unreadable."""
    try:
        return partition_metadata.read(path, directory=directory.name) or ""
    except MalformedFile as error:
        _log.warning("%s", error)
    except StorageError as error:
        if fault_of(error) is not Fault.FILE or directory.fail_on(error):
            raise
    return ""
