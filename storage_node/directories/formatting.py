"""Looks at the configured directories, locks them, and makes their meta.properties what `meta_plan` decides."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from storage_node import failpoints
from storage_node.directories import atomic, health, layout, meta_properties, names
from storage_node.directories.directory import reason_of
from storage_node.directories.errors import MalformedMetaProperties, Problem, StartRefused
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta_plan import Found, Plan, plan
from storage_node.directories.meta_properties import MetaProperties
from storage_node.directories.names import CLUSTER_METADATA
from storage_node.errors import MetadataIOError
from storage_node.failpoints import failpoint

__all__ = ["FormatResult", "Prepared", "format_directories", "inspect", "prepare"]

_log = logging.getLogger(__name__)

WRITTEN = failpoints.register("directories.meta_properties_written")


@dataclass(frozen=True, slots=True)
class FormatResult:
    """What a format did: `formatted` got their first meta.properties, `kept` had one, `rewritten` are those of them
    whose file was brought in step; `ids`: path, directory id; `metadata`: the path of the metadata directory.
    """

    cluster_id: str
    formatted: tuple[str, ...]
    kept: tuple[str, ...]
    ids: tuple[tuple[str, str], ...]
    rewritten: tuple[str, ...] = ()
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Directories whose files are in step with `plan`, and the locks held on them (by path)."""

    plan: Plan
    locks: dict[str, DirectoryLock]


def inspect(path: str) -> Found:
    """Look at one configured path; never raises, an error becomes a Found of state "error"."""
    directory = Path(path)
    try:
        if not directory.exists():
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
    """What a format has changed so far, so that one that fails leaves nothing behind."""

    created: list[Path] = field(default_factory=list)
    written: list[tuple[str, bytes | None]] = field(default_factory=list)

    def create(self, path: str) -> None:
        """Create a directory with its parents. Raises OSError."""
        lacking = [each for each in (Path(path), *Path(path).parents) if not each.exists()]
        self.created += reversed(lacking)
        atomic.make_directory(path)

    def write(self, path: str, properties: MetaProperties) -> None:
        """Write a directory's file. Raises OSError, MetadataIOError."""
        try:
            before: bytes | None = (Path(path) / meta_properties.FILE).read_bytes()
        except FileNotFoundError:
            before = None
        self.written.append((path, before))
        meta_properties.write(path, properties)

    def take_back(self) -> None:
        """Put every file back as it was; what the disk refuses now stays, and is said."""
        while self.written:
            path, before = self.written.pop()
            file = Path(path) / meta_properties.FILE
            try:
                if before is None:
                    atomic.remove(file)
                else:
                    atomic.write_atomic(file, before)
            except OSError as exc:
                _log.error("%s cannot be put back as it was: %s", file, reason_of(exc))

    def remove_created(self) -> None:
        """Remove the directories that were created; one that has something in it by now stays."""
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
    """Check, lock and bring in step all of log.dirs; on success the caller owns the locks.

    A directory (not the metadata directory) that fails while it is locked or written is in the plan's `offline`; so is
    one that does not answer within `patience` seconds (None: however long it takes), which is not touched again. A
    `format` that fails leaves nothing behind. `metadata`, `version`, `fresh`: see `meta_plan.plan`.
    Raises StartRefused, also as DirectoryInUse; then no lock is held.
    """
    what = "the directories are not formatted" if format else f"node {node_id} does not start"
    ordered = [layout.normalise(path) for path in (*paths, *([metadata] if metadata else []))]
    metadata = ordered[-1] if metadata else ""
    locks: dict[str, DirectoryLock] = {}
    broken: dict[str, str] = {}
    if patience is not None:
        reason = f"it did not answer within {patience:g} s when the node started: the disk hangs"
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
        # Every pass either succeeds or finds one more broken directory, and decides again without it.
        while True:
            found = [_found(path, locks, broken) for path in ordered]
            decided = plan(
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


def _carry_out(decided: Plan, locks: dict[str, DirectoryLock], changes: _Changes) -> tuple[str, str] | None:
    """Create and write; answers the directory in which that failed, and why."""
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
    """First set-up: give every directory of log.dirs that has none its meta.properties, and bring all in step.

    All must exist or be creatable; those with an id keep it; formatting again changes nothing, and is refused with
    `fresh`. `forget` names directory ids that the operator declares gone for good; `metadata` is the path of a
    metadata.log.dir that is none of log.dirs; `version` 1 is the way back to Apache Kafka. Raises StartRefused; then
    all is as before, as far as the disks allow. After a crash in between, doing it again finishes it (without `fresh`).
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
    done = prepared.plan
    kept = tuple(path for path, _ in done.ids if path not in done.formatted)
    written = {path for path, _ in done.writes}
    first = layout.normalise(metadata or next(iter(paths)))
    return FormatResult(
        done.cluster_id, done.formatted, kept, done.ids, tuple(path for path in kept if path in written), first
    )
