"""Decides what each directory's meta.properties becomes at a start or a format, or why the start is refused. Pure.

The danger is a disk that is not mounted: its mount point is an empty directory and looks like a new one, and formatting
it would give up the disk's replicas. Therefore every file lists the ids of all directories, the union over all files
counts, and an unformatted directory is treated as new only while every known id is present. Only the operator removes
an id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from storage_node.directories.errors import StartRefused
from storage_node.directories.meta.problems import Found, Judged, State, judge
from storage_node.directories.meta.properties import (
    FILE,
    VERSION,
    MetaProperties,
    fresh_directory_id,
    in_order,
    random_directory_id,
    upgrade,
)

__all__ = ["EnsembleDecision", "Found", "State", "decide"]


@dataclass(frozen=True, slots=True)
class EnsembleDecision:
    """What to do: `create` these directories, make these `writes` in this order, serve `ids` (path to directory id).

    `offline` has path and reason of directories with errors; `directory_ids` is every known id; `missing_ids` are the
    ids that no present directory has; `formatted` the paths that get their first file.
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


def decide(
    found: Sequence[Found],
    *,
    node_id: int,
    cluster_id: str | None = None,
    format: bool = False,
    forget: Collection[str] = (),
    metadata: str = "",
    version: int = VERSION,
    fresh: bool = False,
    draw: Callable[[], str] = random_directory_id,
) -> EnsembleDecision:
    """Decide; `found` is in the order of log.dirs, its first is the metadata directory (KIP-858's metadata.log.dir).

    `metadata` is the path of a metadata.log.dir that is not in log.dirs; `found` includes it. A start expects
    `node_id` and, if given, `cluster_id` in every file. With `format`, directories without a file are the normal
    case, and all must be available; `fresh` allows only directories without a file. `forget` has the ids that the
    operator declares permanently lost. `version` is that of the files: 1 is Apache Kafka's, with directory.ids added.
    Raises StartRefused, and ValueError for a path that occurs twice in `found`.
    """
    if len({each.path for each in found}) != len(found):
        raise ValueError(f"duplicate directories in {[(each.path, each.state) for each in found]}")
    what = "the directories are not formatted" if format else f"node {node_id} does not start"
    if not found:
        raise StartRefused(f"{what}: log.dirs is empty; configure at least one directory")
    judged = judge(
        found,
        what,
        metadata=metadata or found[0].path,
        separate=bool(metadata),
        node_id=node_id,
        cluster_id=cluster_id,
        format=format,
        forget=forget,
    )
    if format and all(f.state == "error" for f in found):
        what += ": No available log directories to format"
    if judged.problems:
        raise StartRefused.because(what, judged.problems, len(found))
    formatted = sorted(f.path for f in found if f.state == "ok")
    if fresh and formatted:
        raise StartRefused(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore this directory and "
            f"format the others."
        )
    if not judged.cluster:
        raise StartRefused(f"{what}: neither a {FILE} nor the configuration has a cluster.id; configure one")
    offline = [(f.path, f.reason) for f in found if f.state == "error"]
    offline += [(f.path, "the directory does not exist") for f in found if f.state == "missing" and f not in judged.new]
    return _writes(found, judged, offline, node_id, version, draw)


def _writes(
    found: Sequence[Found],
    judged: Judged,
    offline: Sequence[tuple[str, str]],
    node_id: int,
    version: int,
    draw: Callable[[], str],
) -> EnsembleDecision:
    new, known, cluster = judged.new, list(judged.known), judged.cluster
    ids: dict[str, str] = {}
    writes: list[tuple[str, MetaProperties]] = []
    on_disk: dict[str, MetaProperties | None] = {}
    # First the directories that get an id, one by one, each listing only ids already on disk and its own: after a
    # crash in between, no file lists an id that no directory has. Then the other files are updated.
    for f in found:
        if f.properties is not None and f.properties.directory_id is not None:
            ids[f.path] = f.properties.directory_id
            on_disk[f.path] = f.properties
        elif f.properties is not None or f in new:
            ids[f.path] = fresh_directory_id(known, draw)
            known.append(ids[f.path])
            first = upgrade(
                f.properties,
                version=version,
                cluster_id=cluster,
                node_id=node_id,
                directory_id=ids[f.path],
                directory_ids=tuple(known),
            )
            writes.append((f.path, first))
            on_disk[f.path] = first
    order = [ids[f.path] for f in found if f.path in ids]
    listed = dict.fromkeys(each for f in found if f.properties for each in f.properties.directory_ids if each in known)
    everything = in_order(tuple(dict.fromkeys((*listed, *known))), order)
    for path, content in on_disk.items():
        wanted = upgrade(
            content,
            version=version,
            cluster_id=cluster,
            node_id=node_id,
            directory_id=ids[path],
            directory_ids=everything,
        )
        # The order is that of log.dirs at the last start: `rehome storage check` finds swapped disks by it.
        if content != wanted:
            writes.append((path, wanted))
    return EnsembleDecision(
        cluster_id=cluster,
        node_id=node_id,
        ids=tuple((f.path, ids[f.path]) for f in found if f.path in ids),
        directory_ids=everything,
        missing_ids=judged.missing,
        create=tuple(f.path for f in new if f.state == "missing"),
        writes=tuple(writes),
        offline=tuple(offline),
        formatted=tuple(f.path for f in new),
    )
