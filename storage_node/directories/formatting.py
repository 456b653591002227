"""Looks at the configured directories, locks them, and makes their meta.properties what `meta_plan` decides."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from storage_node import failpoints
from storage_node.directories import atomic, health, layout, meta_properties, names
from storage_node.directories.directory import reason_of
from storage_node.directories.errors import MalformedMetaProperties
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta_plan import Found, Plan, plan
from storage_node.errors import MetadataIOError
from storage_node.failpoints import failpoint

__all__ = ["FormatResult", "Prepared", "format_directories", "inspect", "prepare"]

_log = logging.getLogger(__name__)

WRITTEN = failpoints.register("directories.meta_properties_written")


@dataclass(frozen=True, slots=True)
class FormatResult:
    """What a format did: `formatted` got their first meta.properties, `kept` had one; `ids`: path, directory id."""

    cluster_id: str
    formatted: tuple[str, ...]
    kept: tuple[str, ...]
    ids: tuple[tuple[str, str], ...]


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
                kinds = {names.parse(entry.name).kind for entry in entries if entry.is_dir(follow_symlinks=False)}
            return Found(path, "unformatted", has_replicas=bool(kinds - {"other"}))
        if not os.access(path, os.W_OK):
            return Found(path, "error", reason="it is not writable")
        return Found(path, "ok", properties)
    except (OSError, MetadataIOError, MalformedMetaProperties) as exc:
        return Found(path, "error", reason=reason_of(exc))


def prepare(
    paths: Sequence[str | Path],
    *,
    node_id: int,
    cluster_id: str | None = None,
    format: bool = False,
    forget: Collection[str] = (),
    patience: float | None = None,
) -> Prepared:
    """Check, lock and bring in step all of log.dirs; on success the caller owns the locks.

    A directory (not the metadata directory) that fails while it is locked or written is in the plan's `offline`; so is
    one that does not answer within `patience` seconds (None: however long it takes), which is not touched again.
    Raises StartRefused, also as DirectoryInUse; then no lock is held.
    """
    what = "the directories are not formatted" if format else f"node {node_id} does not start"
    ordered = [layout.normalise(path) for path in paths]
    locks: dict[str, DirectoryLock] = {}
    broken: dict[str, str] = {}
    if patience is not None:
        reason = f"it did not answer within {patience:g} s when the node started: the disk hangs"
        broken = dict.fromkeys(health.unanswering(ordered, patience), reason)
    facts = layout.look([path for path in ordered if path not in broken])
    if facts or not broken:
        layout.check(facts, what)
    with ExitStack() as undo:
        undo.callback(_release, locks)
        # Every pass either succeeds or finds one more broken directory, and decides again without it.
        while True:
            found = [_found(path, locks, broken) for path in ordered]
            decided = plan(found, node_id=node_id, cluster_id=cluster_id, format=format, forget=forget)
            if _carry_out(decided, locks, broken):
                break
        undo.pop_all()
    for path, reason in decided.offline:
        if path in locks:
            locks.pop(path).release()
        _log.error("log directory %s is offline: %s", path, reason)
    return Prepared(decided, locks)


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


def _carry_out(decided: Plan, locks: dict[str, DirectoryLock], broken: dict[str, str]) -> bool:
    path = ""
    try:
        for path in decided.create:
            atomic.make_directory(path)
            _lock(path, locks)
        for path, properties in decided.writes:
            meta_properties.write(path, properties)
            failpoint(WRITTEN)
    except (OSError, MetadataIOError) as exc:
        broken[path] = reason_of(exc)
        return False
    return True


def format_directories(
    paths: Sequence[str | Path], cluster_id: str | None, node_id: int, *, forget: Collection[str] = ()
) -> FormatResult:
    """First set-up: give every directory of log.dirs that has none its meta.properties, and bring all in step.

    All must exist or be creatable; those with an id keep it; formatting again changes nothing. `forget` names directory
    ids that the operator declares gone for good. Raises StartRefused; then what was not formatted before may be partly
    formatted, and doing it again finishes it.
    """
    prepared = prepare(paths, node_id=node_id, cluster_id=cluster_id, format=True, forget=forget)
    _release(prepared.locks)
    done = prepared.plan
    kept = tuple(path for path, _ in done.ids if path not in done.formatted)
    return FormatResult(done.cluster_id, done.formatted, kept, done.ids)
