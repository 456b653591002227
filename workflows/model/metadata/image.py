"""Cluster images for nodes: whole or as a delta, compressed, and split so that no message is too large."""

from __future__ import annotations

from collections.abc import Iterator

from storage_node.model.packing import compressed
from workflows.model.metadata.state import Changed, ClusterState

#: The maximum length of an image before it is compressed. Temporal accepts 2 MB per event; base64 of so many bytes is
#: below that even if they cannot be compressed. The compressed length must not matter: a replay may run with another
#: zlib, which compresses differently.
MAX_BYTES = 1_400_000


def weight(state: ClusterState, generation: int, version: int) -> int:
    """Return how many partitions an image for a receiver at (generation, version) holds."""
    return state.weight(version if generation == state.cluster_generation else 0)


def since(state: ClusterState, generation: int, version: int, limit: int = MAX_BYTES) -> list[str]:
    """Return the images that a receiver at (generation, version) lacks: none, one or several, oldest first, each at
    most `limit` long before it is compressed.

    A receiver of another generation, or without an image (version 0), gets a whole one. The parts of a split image are
    deltas on one another, and each brings the receiver to a version of its own, on which the next delta builds. A
    single row may be longer.
    """
    known = version if generation == state.cluster_generation else 0
    changes = state.changes(known)
    return list(_cut(state, known, changes, limit)) if changes else []


def whole(state: ClusterState, limit: int = MAX_BYTES) -> list[str]:
    """Return the whole image, in parts if it is too long."""
    return list(_cut(state, 0, state.changes(0), limit))


def _cut(state: ClusterState, known: int, changes: list[Changed], limit: int) -> Iterator[str]:
    parts = [changes]
    while parts:
        part = parts.pop(0)
        last = state.version if not parts else part[-1].version
        made = state.message_of(part, known, last).json()
        if len(made) > limit and len(part) > 1:
            middle = len(part) // 2
            parts[:0] = [part[:middle], part[middle:]]
            continue
        yield compressed(made)
        known = last
