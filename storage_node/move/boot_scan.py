"""Looks at the good directories and says, per partition, what they hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_node.directories.atomic import io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import CLUSTER_METADATA, parse
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.recovery import log_end
from storage_node.move import marker as markers
from storage_node.move.boot_plan import Copy, Found
from storage_node.move.marker import State
from storage_node.types import TopicPartition

_log = logging.getLogger(__name__)

#: Folders of Apache Kafka, and of a file system at its root, that are no reason to say anything.
_QUIET = frozenset({"lost+found", "remote-log-index-cache", CLUSTER_METADATA})


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found, and which folders are left alone, with the reason."""

    found: dict[TopicPartition, Found]
    unknown: dict[Path, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Copies:
    current: list[Copy] = field(default_factory=list)
    move: list[Copy] = field(default_factory=list)
    delete: list[Copy] = field(default_factory=list)


def scan(directories: Sequence[LogDirectory]) -> Scan:
    """Read names and markers of all partitions in the directories that are online.

    A directory that cannot be read is taken offline here, and what was seen of it does not count.
    """
    copies: dict[TopicPartition, _Copies] = {}
    unknown: dict[Path, str] = {}
    for directory in directories:
        if not directory.online:
            continue
        try:
            seen, strange = _scan_one(directory)
        except StorageError as error:
            directory.fail_on(error)
            continue
        unknown |= strange
        for tp, copy in seen:
            place = copies.setdefault(tp, _Copies())
            {"current": place.current, "move": place.move, "delete": place.delete}[copy.kind].append(copy)
    by_id = {directory.id: directory for directory in directories}
    for tp, place in copies.items():
        if any(copy.marker is not None and copy.marker.state is State.SEALED for copy in place.move):
            place.current = [_with_end(tp, copy, by_id[copy.directory_id]) for copy in place.current]
    return Scan(
        {tp: Found(tp, tuple(c.current), tuple(c.move), tuple(c.delete)) for tp, c in sorted(copies.items())},
        unknown,
    )


def _with_end(tp: TopicPartition, copy: Copy, directory: LogDirectory) -> Copy:
    """The replica beside a sealed copy, with its log end offset; as it is when that cannot be told."""
    try:
        return replace(copy, end=log_end(copy.path, directory.name))
    except StorageError as error:
        directory.fail_on(error)
    except RequestRefused as error:
        _log.warning("%s: %s", tp, error)
    return copy


def _scan_one(directory: LogDirectory) -> tuple[list[tuple[TopicPartition, Copy]], dict[Path, str]]:
    seen: list[tuple[TopicPartition, Copy]] = []
    strange: dict[Path, str] = {}
    with io_errors(directory.name, "listing it"):
        paths = sorted(path for path in directory.path.iterdir() if path.is_dir() and path.name not in _QUIET)
    for path in paths:
        name = parse(path.name)
        if path.is_symlink():
            strange[path] = "it is a symlink, which is never followed: it could lead out of the directory"
            continue
        if name.kind not in ("current", "move", "delete"):
            strange[path] = "it was left by Apache Kafka" if name.id else "its name is not that of a replica"
            continue
        corrupt = False
        marker = None
        try:
            marker = markers.read(path)
        except markers.MarkerCorrupt:
            corrupt = True
        tp = name.tp or (marker.tp if marker is not None else None)
        if tp is None or (marker is not None and marker.tp != tp):
            strange[path] = "name and marker do not say the same" if tp is not None else "it says of no partition"
            continue
        unborn = name.kind == "current" and marker is None and not corrupt and not _has_segments(directory, path)
        seen.append((tp, Copy(directory.id, path, name.kind, marker, corrupt, unborn=unborn)))
    return seen, strange


def _has_segments(directory: LogDirectory, path: Path) -> bool:
    with io_errors(directory.name, f"listing {path.name}"):
        return any(entry.suffix == ".log" for entry in path.iterdir())
