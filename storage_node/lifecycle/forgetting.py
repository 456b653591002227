"""Forget lost log directories on the operator's command: remove their ids from every meta.properties of a stopped node.

Until then a start takes an empty directory for a disk that is not mounted, and serves nothing that may be older than
what the missing one holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories import atomic, image_store
from storage_node.directories.errors import MalformedFile, StartRefused
from storage_node.directories.formatting import FormatResult, format_directories, inspect
from storage_node.directories.layout import normalise
from storage_node.lifecycle.failures import assigned
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage, decode_whole

__all__ = ["Lost", "forget", "look"]

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
    found = [inspect(normalise(path)) for path in (*paths, *([metadata] if metadata else []))]
    listed: set[str] = set()
    for each in found:
        if each.properties is None:
            continue
        if each.properties.directory_id == directory_id:
            raise StartRefused(
                f"{each.path} has the directory id {directory_id}; only an id that is missing is forgotten"
            )
        listed |= {each.properties.directory_id or "", *each.properties.directory_ids}
    missing = listed - {each.properties.directory_id for each in found if each.properties} - {""}
    if directory_id not in listed:
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
