"""Inspects and locks the configured directories, and writes the meta.properties that `meta.ensemble` decides on."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from storage_node import failpoints
from storage_node.directories import atomic, health, layout, names
from storage_node.directories.directory import reason_of
from storage_node.directories.errors import MalformedMetaProperties, Problem, StartRefused
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.ensemble import EnsembleDecision, Found, decide
from storage_node.directories.meta.properties import MetaProperties
from storage_node.directories.names import CLUSTER_METADATA
from storage_node.errors import MetadataIOError
from storage_node.failpoints import failpoint

__all__ = ["FormatResult", "Prepared", "format_directories", "inspect", "prepare"]

_log = logging.getLogger(__name__)

WRITTEN = failpoints.register("directories.meta_properties_written")


@dataclass(frozen=True, slots=True)
class FormatResult:
    """The result of a format: `formatted` got their first meta.properties, `kept` had one, `rewritten` are those of
    `kept` whose file was updated; `ids`: (path, directory id); `metadata`: the path of the metadata directory.
    """

    cluster_id: str
    formatted: tuple[str, ...]
    kept: tuple[str, ...]
    ids: tuple[tuple[str, str], ...]
    rewritten: tuple[str, ...] = ()
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Directories whose files match `decision`, and the locks held on them (by path)."""

    decision: EnsembleDecision
    locks: dict[str, DirectoryLock]


def inspect(path: str) -> Found:
    """Inspect a configured path; never raises: an error becomes a Found of state "error"."""
    directory = Path(path)
    try:
        if not directory.exists():
            if directory.is_symlink():
                return Found(path, "error", reason=f"it is a symlink to {directory.readlink()}, which does not exist")
            return Found(path, "missing")
        if not directory.is_dir():
            return Found(path, "error", reason="it is not a directory")
        properties = meta_properties.read(path)
        if properties is None:
            with os.scandir(path) as entries:
                folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)} - {CLUSTER_METADATA}
            kinds = {names.parse(name).kind for name in folders}
            if not os.access(path, os.W_OK):
                return Found(path, "error", reason="it is not writable")
            return Found(path, "unformatted", has_replicas=bool(kinds - {"other"}))
        if not os.access(path, os.W_OK):
            return Found(path, "error", reason="it is not writable")
        return Found(path, "ok", properties)
    except (OSError, MetadataIOError, MalformedMetaProperties) as exc:
        return Found(path, "error", reason=reason_of(exc))


@dataclass(slots=True)
class _Changes:
    """The changes of a format so far, to be undone if it fails."""

    created: list[Path] = field(default_factory=list)
    written: list[tuple[str, bytes | None]] = field(default_factory=list)

    def create(self, path: str) -> None:
        """Create a directory with its parents. Raises OSError."""
        lacking = [each for each in (Path(path), *Path(path).parents) if not each.exists()]
        self.created += reversed(lacking)
        atomic.make_directory(path)

    def write(self, path: str, properties: MetaProperties) -> None:
        """Write a directory's meta.properties. Raises OSError, MetadataIOError."""
        try:
            before: bytes | None = (Path(path) / meta_properties.FILE).read_bytes()
        except FileNotFoundError:
            before = None
        self.written.append((path, before))
        meta_properties.write(path, properties)

    def take_back(self) -> None:
        """Restore every file; log an error for each that cannot be restored."""
        while self.written:
            path, before = self.written.pop()
            file = Path(path) / meta_properties.FILE
            try:
                if before is None:
                    atomic.remove(file)
                else:
                    atomic.write_atomic(file, before)
            except OSError as exc:
                _log.error("restoring %s failed: %s", file, reason_of(exc))

    def remove_created(self) -> None:
        """Remove the created directories that are still empty."""
        while self.created:
            with contextlib.suppress(OSError):
                self.created.pop().rmdir()


def prepare(
    paths: Sequence[str | Path],
    *,
    node_id: int,
    cluster_id: str | None = None,
    format: bool = False,
    forget: Collection[str] = (),
    patience: float | None = None,
    metadata: str = "",
    version: int = meta_properties.VERSION,
    fresh: bool = False,
) -> Prepared:
    """Check and lock all of log.dirs, and update their meta.properties; on success the caller owns the locks.

    A directory (but not a metadata.log.dir beside log.dirs) that fails while it is locked or written is in the
    decision's `offline`; so is one that does not respond within `patience` seconds (None: no limit), which is not
    accessed again. A failed `format` leaves no changes behind. `metadata`, `version`, `fresh`: see `ensemble.decide`.
    Raises StartRefused, also as DirectoryInUse; then no lock is held.
    """
    what = "the directories are not formatted" if format else f"node {node_id} does not start"
    ordered = [layout.normalise(path) for path in (*paths, *([metadata] if metadata else []))]
    metadata = ordered[-1] if metadata else ""
    locks: dict[str, DirectoryLock] = {}
    broken: dict[str, str] = {}
    if patience is not None:
        reason = f"it did not respond within {patience:g} s when the node started: the disk hangs"
        broken = dict.fromkeys(health.unanswering(ordered, patience), reason)
    facts = layout.look([path for path in ordered if path not in broken])
    if facts or not broken:
        layout.check(facts, what)
    changes = _Changes()
    with ExitStack() as undo:
        if format:
            undo.callback(changes.remove_created)
        undo.callback(_release, locks)
        if format:
            undo.callback(changes.take_back)
        # Every pass either succeeds or finds another failed directory, and plans again without it.
        while True:
            found = [_found(path, locks, broken) for path in ordered]
            decided = decide(
                found,
                node_id=node_id,
                cluster_id=cluster_id,
                format=format,
                forget=forget,
                metadata=metadata,
                version=version,
                fresh=fresh,
            )
            failed = _carry_out(decided, locks, changes)
            if failed is None:
                break
            path, reason = failed
            if format:
                raise StartRefused.because(what, [_not_written(path, reason)], len(ordered))
            broken[path] = reason
        undo.pop_all()
    for path, reason in decided.offline:
        if path in locks:
            locks.pop(path).release()
        _log.error("log directory %s is offline: %s", path, reason)
    return Prepared(decided, locks)


def _not_written(path: str, reason: str) -> Problem:
    says = f"Error while writing meta.properties file {path}: {reason}"
    return Problem(path, says, "nothing was formatted; repair it or take it out of log.dirs")


def _found(path: str, locks: dict[str, DirectoryLock], broken: dict[str, str]) -> Found:
    if path not in broken and path not in locks:
        try:
            if Path(path).is_dir():
                _lock(path, locks)
        except OSError as exc:
            broken[path] = f"it cannot be locked: {reason_of(exc)}"
    return Found(path, "error", reason=broken[path]) if path in broken else inspect(path)


def _release(locks: dict[str, DirectoryLock]) -> None:
    for lock in locks.values():
        lock.release()


def _lock(path: str, locks: dict[str, DirectoryLock]) -> None:
    lock = DirectoryLock(path)
    lock.acquire()
    locks[path] = lock


def _carry_out(decided: EnsembleDecision, locks: dict[str, DirectoryLock], changes: _Changes) -> tuple[str, str] | None:
    """Create directories and write files; return the directory in which that failed and the reason, or None."""
    path = ""
    try:
        for path in decided.create:
            changes.create(path)
            _lock(path, locks)
        for path, properties in decided.writes:
            changes.write(path, properties)
            failpoint(WRITTEN)
    except (OSError, MetadataIOError) as exc:
        return path, reason_of(exc)
    return None


def format_directories(
    paths: Sequence[str | Path],
    cluster_id: str | None,
    node_id: int,
    *,
    forget: Collection[str] = (),
    metadata: str = "",
    version: int = meta_properties.VERSION,
    fresh: bool = False,
) -> FormatResult:
    """Format: write a meta.properties to every directory of log.dirs without one, and update the others.

    Every directory must exist or be creatable; those with an id keep it. Formatting again changes nothing, and is
    refused with `fresh`. `forget` has the directory ids that the operator declares permanently lost; `metadata` is the
    path of a metadata.log.dir that is not in log.dirs; `version` 1 is for a return to Apache Kafka. Raises
    StartRefused; all changes are then undone, as far as the disks allow. A format interrupted by a crash can be
    repeated (without `fresh`).
    """
    prepared = prepare(
        paths,
        node_id=node_id,
        cluster_id=cluster_id,
        format=True,
        forget=forget,
        metadata=metadata,
        version=version,
        fresh=fresh,
    )
    _release(prepared.locks)
    done = prepared.decision
    kept = tuple(path for path, _ in done.ids if path not in done.formatted)
    written = {path for path, _ in done.writes}
    first = layout.normalise(metadata or next(iter(paths)))
    return FormatResult(
        done.cluster_id, done.formatted, kept, done.ids, tuple(path for path in kept if path in written), first
    )
