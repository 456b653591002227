"""What became of each log directory of this node: its failures, returns, replacements, and signs of trouble.

File `directory-history` in every directory: the entries of all directories, so that a directory's own are read while it
is offline. The copy with the highest number counts; of too many entries the oldest signs are dropped first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from storage_node.directories import json_file
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.newest_file import NewestFile
from storage_node.errors import LogDirectoryOffline
from storage_node.model.evidence import Evidence, Sign, evidence_row, read_evidence
from storage_node.model.ids import TopicPartition

log = logging.getLogger(__name__)

FILE: Final = "directory-history"
VERSION: Final = 1
#: Entries that are kept, and the replicas that one of them names.
KEPT: Final = 200
NAMED: Final = 200
#: Seconds within which the same sign of a directory is one entry: one that comes and goes is no news.
SIGN_AGAIN: Final = 3_600.0


class Event(StrEnum):
    """What happened to a directory."""

    FAILED = "failed"
    ONLINE = "online"  # after a failure: by the operator's request, or found by a start
    REPLACED = "replaced"
    ADDED = "added"
    REMOVED = "removed"
    MISSING = "missing"  # a start found no log directory with its id
    SIGN = "sign"  # of trouble, while it is online
    REMADE = "remade"  # while it is offline, its replicas were made again in other directories


#: After these a directory is not in use.
_AWAY: Final = (Event.FAILED, Event.REMOVED, Event.MISSING)
#: These say nothing about whether it is in use.
_ASIDE: Final = (Event.SIGN, Event.REMADE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `held` are the replicas that it concerns, at most `NAMED` of `count`; `reason` is in words."""

    time: float
    path: str
    directory_id: str
    event: Event
    reason: str = ""
    evidence: Evidence | None = None
    held: tuple[TopicPartition, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """The content of the file: the number increases with each version."""

    number: int = 0
    entries: tuple[Entry, ...] = ()


@dataclass(slots=True)
class DirectoryHistory:
    """The entries. Thread-safe; its methods do not wait for a disk, except `start`."""

    now: Callable[[], float] = time.time
    _kept: Entries = field(default_factory=Entries)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _file: NewestFile[Entries] | None = None
    _dirs: DirectoryManager | None = None

    def start(self, dirs: DirectoryManager, paths: Mapping[str, str]) -> None:
        """Read what earlier starts kept, and add what this one has found of the directories.

        `paths` has the path of each directory id that the last start registered.
        """
        self._dirs = dirs
        self._file = NewestFile(FILE, dirs.directories, _write, lambda entries: entries.number)
        found = [json_file.read(directory, FILE, _parse, Entries) for directory in dirs.online()]
        self._kept = max((each for each in found if each is not None), key=lambda each: each.number, default=Entries())
        for directory in dirs.online():
            last = self.last_of(directory.id)
            if self._failed(directory) or (last is not None and last.event is Event.MISSING):
                self.add(directory, Event.ONLINE, "a start found it online")
        for each in sorted(dirs.unused_ids()):
            last = self.last_of(each)
            if last is None or last.event not in _AWAY:
                reason = "a start found no log directory with its directory id"
                self._append(Entry(self.now(), paths.get(each, ""), each, Event.MISSING, reason))

    def add(
        self,
        directory: LogDirectory,
        event: Event,
        reason: str = "",
        evidence: Evidence | None = None,
        held: Sequence[TopicPartition] = (),
    ) -> None:
        """Add an entry and start to write it to every directory that is online.

        A failure that lasts is one entry, however many starts find it.
        """
        if event is Event.FAILED and self._failed(directory):
            return
        if event is Event.SIGN and self._shown(directory, reason):
            return
        names = tuple(sorted(held)[:NAMED])
        self._append(Entry(self.now(), directory.name, directory.id, event, reason, evidence, names, len(held)))

    def _append(self, entry: Entry) -> None:
        with self._lock:
            kept = self._kept = Entries(self._kept.number + 1, _newest((*self._kept.entries, entry)))
        if self._file is None or self._dirs is None:
            return
        self._file.directories = self._dirs.directories
        for each in self._dirs.online():
            with contextlib.suppress(LogDirectoryOffline, RuntimeError):
                self._file.start(each, kept)

    def _shown(self, directory: LogDirectory, reason: str) -> bool:
        """Return whether a sign of the same kind began a short time ago."""
        kind, since = reason.partition(":")[0], self.now() - SIGN_AGAIN
        signs = [entry for entry in self.of(directory.name) if entry.event is Event.SIGN and entry.time > since]
        return any(entry.reason.partition(":")[0] == kind for entry in signs)

    def _failed(self, directory: LogDirectory) -> bool:
        """Return whether the last that is known of a directory is its failure."""
        entries = [entry for entry in self.of(directory.name) if entry.event not in _ASIDE]
        return bool(entries) and entries[-1].event is Event.FAILED

    def last_of(self, directory_id: str) -> Entry | None:
        """Return the last entry of a directory by its id that says whether it is in use; None without one."""
        entries = (entry for entry in reversed(self._kept.entries) if entry.event not in _ASIDE)
        return next((entry for entry in entries if entry.directory_id == directory_id), None)

    def signs_of(self, directory: LogDirectory) -> tuple[Sign, ...]:
        """Return the signs of trouble since a directory was last taken into use: the first of each kind."""
        first: dict[str, Sign] = {}
        for entry in self.of(directory.name):
            if entry.event is Event.SIGN:
                first.setdefault(entry.reason.partition(":")[0], Sign(entry.reason, entry.time))
            elif entry.event not in _ASIDE:
                first.clear()
        return tuple(first.values())

    def of(self, path: str) -> tuple[Entry, ...]:
        """Return the entries of a directory by its path, oldest first."""
        return tuple(entry for entry in self._kept.entries if entry.path == path)


def _newest(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Drop what is too much: the oldest signs first, so that none displaces a failure."""
    over = len(entries) - KEPT
    if over <= 0:
        return entries
    dropped = [entry for entry in entries if entry.event is Event.SIGN][:over]
    rest = tuple(entry for entry in entries if not any(entry is each for each in dropped))
    return rest[-KEPT:]


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON, for operators and for the file."""
    return {
        "time": entry.time,
        "path": entry.path,
        "directory_id": entry.directory_id,
        "event": entry.event.value,
        "reason": entry.reason,
        "evidence": None if entry.evidence is None else evidence_row(entry.evidence),
        "replicas": [[tp.topic, tp.partition] for tp in entry.held],
        "count": entry.count,
    }


def _write(directory: LogDirectory, kept: Entries) -> None:
    rows = [entry_row(entry) for entry in kept.entries]
    json_file.write(directory, FILE, {"version": VERSION, "number": kept.number, "entries": rows})


def _parse(value: Any) -> Entries:
    if value["version"] != VERSION:
        raise ValueError(f"its version is {value['version']}")
    rows: Iterable[Mapping[str, Any]] = value["entries"]
    return Entries(int(value["number"]), tuple([_entry(row) for row in rows]))


def _entry(row: Mapping[str, Any]) -> Entry:
    held = tuple(TopicPartition(str(topic), int(index)) for topic, index in row["replicas"])
    return Entry(
        float(row["time"]),
        str(row["path"]),
        str(row["directory_id"]),
        Event(row["event"]),
        str(row["reason"]),
        read_evidence(row["evidence"], "$.evidence"),
        held,
        int(row["count"]),
    )
