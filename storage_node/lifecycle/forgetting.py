"""Forget lost log directories on the operator's command: remove their ids from every meta.properties of a stopped node.

Until then a start takes an empty directory for a disk that is not mounted, and serves nothing that may be older than
what the missing one holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_node.directories import atomic, image_store
from storage_node.directories.errors import MalformedFile, StartRefused
from storage_node.directories.formatting import FormatResult, format_directories, inspect
from storage_node.directories.layout import normalise
from storage_node.directories.meta.problems import Found
from storage_node.lifecycle.failures import assigned
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage, decode_whole

__all__ = ["Lost", "forget", "look", "look_at"]

_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class Lost:
    """A directory that is not at any path of log.dirs: its id, its path, and the replicas that were assigned to it.

    Path and replicas are those in the newest cluster image on the other directories; `known` is False where there is no
    image. `alone` are the replicas of which no other node is in sync: the others are copied again from there.
    """

    directory_id: str
    path: str
    replicas: tuple[TopicPartition, ...]
    known: bool
    alone: tuple[TopicPartition, ...] = ()


def look(paths: Sequence[str | Path], node: int, directory_id: str, metadata: str = "") -> Lost:
    """Return what is lost with a directory; changes nothing. Raises StartRefused for an id that cannot be forgotten.

    `metadata` is a metadata.log.dir that is not among log.dirs.
    """
    found = _inspect(paths, metadata)
    for each in found:
        if each.properties is not None and each.properties.directory_id == directory_id:
            raise StartRefused(
                f"{each.path} has the directory id {directory_id}; only an id that is missing is forgotten"
            )
    missing = _missing(found)
    if directory_id not in missing:
        names = ", ".join(sorted(missing))
        raise StartRefused(
            f"no meta.properties of node {node} lists the directory id {directory_id}; "
            + (f"missing are {names}" if missing else "none is missing")
        )
    image = _newest_image([each.path for each in found if each.state == "ok"])
    if image is None:
        return Lost(directory_id, "", (), known=False)
    row = image.nodes.get(node)
    held_here = row.directories if row is not None else ()
    path = next((each.path for each in held_here if each.id == directory_id), "")
    replicas = sorted(replica.partition for replica in assigned(image, node, directory_id))
    alone = tuple(tp for tp in replicas if (held := image.partition(tp)) is not None and set(held.isr) <= {node})
    return Lost(directory_id, path, tuple(replicas), known=True, alone=alone)


def look_at(paths: Sequence[str | Path], node: int, path: str, metadata: str = "") -> Lost:
    """Return what is lost with the disk that was at a path of log.dirs, where a new or wiped one is now.

    Changes nothing. Raises StartRefused for a path whose disk is not missing, or where it is unknown which disk it was.
    """
    path = normalise(path)
    names = [normalise(each) for each in paths]
    if path not in names:
        raise StartRefused(f"{path} is not a log directory of node {node}; its log.dirs are {', '.join(names)}")
    found = _inspect(paths, metadata)
    own = next(each.properties for each in found if each.path == path)
    if own is not None:
        raise StartRefused(f"{path} has a disk with the directory id {own.directory_id}; empty it first if it is lost")
    missing = sorted(_missing(found))
    if not missing:
        raise StartRefused(f"no disk of node {node} is missing; a start formats a new directory by itself")
    lost = [look(paths, node, each, metadata) for each in missing]
    here = [each for each in lost if each.path == path] or [each for each in lost if not each.path and len(lost) == 1]
    if not here:
        raise StartRefused(
            f"the disk that was at {path} is unknown: missing are the directory ids {', '.join(missing)}; mount their "
            f"disks, or, if they are permanently lost, run: rehome dirs forget {node} {' '.join(missing)}"
        )
    return replace(here[0], path=path)


def _inspect(paths: Sequence[str | Path], metadata: str) -> list[Found]:
    return [inspect(normalise(path)) for path in (*paths, *([metadata] if metadata else []))]


def _missing(found: Sequence[Found]) -> set[str]:
    """Return the ids that a meta.properties lists and no directory has."""
    own = [each.properties for each in found if each.properties is not None]
    return {id for each in own for id in each.directory_ids} - {each.directory_id for each in own}


def forget(
    paths: Sequence[str | Path], cluster_id: str | None, node: int, directory_ids: Collection[str], metadata: str = ""
) -> FormatResult:
    """Remove ids from every meta.properties; directories without one, such as a new disk's, are formatted.

    Repeated after a crash, it completes. Raises StartRefused: as DirectoryInUse while the node runs, or when a
    directory of log.dirs is unusable.
    """
    return format_directories(paths, cluster_id, node, forget=directory_ids, metadata=metadata)


def _newest_image(paths: Sequence[str]) -> ClusterImage | None:
    images = []
    for path in paths:
        file = Path(path) / image_store.FILE
        with contextlib.suppress(OSError, MalformedFile):
            images.append(image_store.decode(atomic.read_bytes(file, _LIMIT), file))
    stored = image_store.newest(images)
    if stored is None:
        return None
    try:
        return decode_whole(stored.image)
    except BadImage:
        return None
