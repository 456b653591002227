"""What each directory's meta.properties becomes at a start or a format, or why the start is refused. Pure.

The danger is the disk that is not mounted: its directory is there, empty, and looks like a new one. Formatting it
would give its replicas up. So the ids of all directories are in every file, the union over all files counts, and an
unformatted directory is taken for a new one only while every known id is present. An id leaves only by the operator's
word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from storage_node.directories.errors import StartRefused
from storage_node.directories.meta_properties import (
    FILE,
    MetaProperties,
    fresh_directory_id,
    is_reserved,
    random_directory_id,
    upgrade,
)

__all__ = ["Found", "Plan", "State", "plan"]

State = Literal["ok", "unformatted", "missing", "error"]


@dataclass(frozen=True, slots=True)
class Found:
    """What is at one path of log.dirs.

    "ok": a readable meta.properties; "unformatted": a directory without one; "missing": nothing there; "error": it
    cannot be read, for `reason`. `has_replicas`: an unformatted directory that nevertheless holds replicas.
    """

    path: str
    state: State
    properties: MetaProperties | None = None
    reason: str = ""
    has_replicas: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: `create` these directories, make these `writes` in this order, serve `ids` (path to directory id).

    `offline` has path and reason of directories in error; `directory_ids` is every known id; `missing_ids` those of
    them that no directory present has; `formatted` the paths that get their first file.
    """

    cluster_id: str
    node_id: int
    ids: tuple[tuple[str, str], ...]
    directory_ids: tuple[str, ...]
    missing_ids: frozenset[str]
    create: tuple[str, ...]
    writes: tuple[tuple[str, MetaProperties], ...]
    offline: tuple[tuple[str, str], ...]
    formatted: tuple[str, ...]


def plan(
    found: Sequence[Found],
    *,
    node_id: int,
    cluster_id: str | None = None,
    format: bool = False,
    forget: Collection[str] = (),
    draw: Callable[[], str] = random_directory_id,
) -> Plan:
    """Decide; `found` is in the order of log.dirs, its first is the metadata directory (KIP-858's metadata.log.dir).

    A start expects `node_id` and, where it is given, `cluster_id` in every file. With `format` directories without a
    file are the normal case, and all must be available. `forget` are ids that the operator declares gone for good.
    Raises StartRefused.
    """
    what = "the directories are not formatted" if format else f"node {node_id} does not start"
    if not found:
        raise StartRefused(f"{what}: log.dirs names no directory; name at least one")
    _check_available(found, what, format)
    good = [(f.path, f.properties) for f in found if f.properties is not None]
    cluster = _one_cluster(good, what, node_id, cluster_id)
    present = _present_ids(good, what)
    known = dict.fromkeys(present)
    for _, properties in good:
        known.update(dict.fromkeys(sorted(properties.directory_ids)))
    for id in forget:
        if id in present:
            raise StartRefused(f"{what}: directory id {id} is to be forgotten, but {present[id]} has it")
        known.pop(id, None)
    missing = frozenset(known) - present.keys()
    new = [f for f in found if f.state == "unformatted" or (f.state == "missing" and (format or not missing))]
    _check_new(new, good, missing, node_id, what)
    offline = [(f.path, f.reason) for f in found if f.state == "error"]
    offline += [(f.path, "there is no such directory") for f in found if f.state == "missing" and f not in new]
    return _write_plan(found, new, offline, cluster, node_id, list(known), missing, draw)


def _check_available(found: Sequence[Found], what: str, format: bool) -> None:
    if format:
        for f in found:
            if f.state == "error":
                raise StartRefused(
                    f"{what}: {f.path} cannot be used ({f.reason}), and formatting needs all directories of log.dirs; "
                    f"repair it or take it out of log.dirs"
                )
        return
    if not any(f.state == "ok" for f in found):
        errors = "".join(f"; {f.path}: {f.reason}" for f in found if f.state == "error")
        paths = ", ".join(f.path for f in found)
        raise StartRefused(
            f"{what}: none of the log directories {paths} has a readable {FILE}{errors}; "
            f"format them first, or mount the disks that hold them"
        )
    metadata = found[0]
    reasons = {
        "missing": "does not exist",
        "unformatted": f"has no {FILE}",
        "error": f"cannot be used ({metadata.reason})",
    }
    if metadata.state != "ok":
        raise StartRefused(
            f"{what}: the metadata directory {metadata.path} (the first of log.dirs) {reasons[metadata.state]}; "
            f"mount or repair its disk, or put a directory that is formatted first in log.dirs"
        )


def _one_cluster(good: Sequence[tuple[str, MetaProperties]], what: str, node_id: int, expected: str | None) -> str:
    cluster, says = expected, "the configuration says"
    for path, properties in good:
        if properties.node_id is not None and properties.node_id != node_id:
            raise StartRefused(
                f"{what}: {path}/{FILE} belongs to node.id {properties.node_id}, but the configuration says {node_id}; "
                f"correct node.id or log.dirs"
            )
        if properties.cluster_id is None:
            continue
        if cluster is not None and properties.cluster_id != cluster:
            raise StartRefused(
                f"{what}: {path}/{FILE} belongs to cluster.id {properties.cluster_id}, but {says} {cluster}; "
                f"take the directory of the other cluster out of log.dirs"
            )
        cluster, says = properties.cluster_id, f"{path}/{FILE} says"
    if not cluster:
        raise StartRefused(f"{what}: no {FILE} and no configuration names a cluster.id; name one")
    return cluster


def _present_ids(good: Sequence[tuple[str, MetaProperties]], what: str) -> dict[str, str]:
    present: dict[str, str] = {}
    for path, properties in good:
        id = properties.directory_id
        for each in (*([id] if id else []), *properties.directory_ids):
            if is_reserved(each):
                raise StartRefused(
                    f"{what}: {path}/{FILE} names the directory id {each}, which is reserved; "
                    f"remove that line, and a new id will be given"
                )
        if id is None:
            continue
        if id in present:
            raise StartRefused(
                f"{what}: {present[id]} and {path} both have the directory id {id}, one is a copy of the other; "
                f"take the copy out of log.dirs"
            )
        present[id] = path
    return present


def _check_new(
    new: Sequence[Found], good: Sequence[tuple[str, MetaProperties]], missing: frozenset[str], node_id: int, what: str
) -> None:
    for f in new:
        if missing:
            ids = ", ".join(sorted(missing))
            where = next(path for path, properties in good if missing & set(properties.directory_ids))
            raise StartRefused(
                f"{what}: {f.path} has no {FILE}, while {where}/{FILE} lists the directory id {ids}, which no "
                f"directory present has, so {f.path} may be a disk that is not mounted; mount it, or, if the "
                f"disk is gone for good, say so with: rehome dirs forget {node_id} {' '.join(sorted(missing))}"
            )
        if f.has_replicas:
            raise StartRefused(
                f"{what}: {f.path} has no {FILE} but holds replicas, whose cluster and node are therefore unknown; "
                f"put its {FILE} back, or empty the directory"
            )


def _write_plan(
    found: Sequence[Found],
    new: Sequence[Found],
    offline: Sequence[tuple[str, str]],
    cluster: str,
    node_id: int,
    known: list[str],
    missing: frozenset[str],
    draw: Callable[[], str],
) -> Plan:
    ids: dict[str, str] = {}
    writes: list[tuple[str, MetaProperties]] = []
    on_disk: dict[str, MetaProperties | None] = {}
    # First the directories that get an id, one by one, each listing only ids that are on disk already and its own:
    # after a crash in between no file lists an id that no directory has. Then all others are brought in step.
    for f in found:
        if f.properties is not None and f.properties.directory_id is not None:
            ids[f.path] = f.properties.directory_id
            on_disk[f.path] = f.properties
        elif f.properties is not None or f in new:
            ids[f.path] = fresh_directory_id(known, draw)
            known.append(ids[f.path])
            first = upgrade(
                f.properties,
                cluster_id=cluster,
                node_id=node_id,
                directory_id=ids[f.path],
                directory_ids=tuple(known),
            )
            writes.append((f.path, first))
            on_disk[f.path] = first
    order = [ids[f.path] for f in found if f.path in ids]
    everything = (*order, *sorted(set(known) - set(order)))
    for path, content in on_disk.items():
        wanted = upgrade(content, cluster_id=cluster, node_id=node_id, directory_id=ids[path], directory_ids=everything)
        # The order of the ids means nothing: a file is not written again for it.
        same = content is not None and set(content.directory_ids) == set(everything)
        if not same or content is None or replace(content, directory_ids=everything) != wanted:
            writes.append((path, wanted))
    return Plan(
        cluster_id=cluster,
        node_id=node_id,
        ids=tuple((f.path, ids[f.path]) for f in found if f.path in ids),
        directory_ids=everything,
        missing_ids=missing,
        create=tuple(f.path for f in new if f.state == "missing"),
        writes=tuple(writes),
        offline=tuple(offline),
        formatted=tuple(f.path for f in new),
    )
