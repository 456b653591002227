"""Cluster images: what nodes are told of the metadata, whole or as a delta, compressed and cut so that no message gets
too large.

The format (JSON, zlib, base64): {"v", "cluster", "generation", "version", "from", "topics", "partitions", "gone",
"nodes", "configs", "controller"}; rows as in state.py. `from` 0 is a whole image, else a delta for a receiver of the
same generation at or above `from`. "partitions", which only deltas have, holds [topic, [partition rows]] of topics of
which nothing else has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.model import image_check
from workflows.model.assignment import Assignment
from workflows.model.state import (
    FORMAT,
    ClusterState,
    Configs,
    Gone,
    Node,
    Partition,
    Topic,
    compact,
    compressed,
    pack,
    unpack,
)

#: No image is longer than this before it is compressed. Temporal takes 2 MB per event, which base64 of so many bytes
#: stays below even where they cannot be compressed. The compressed length decides nothing: another zlib, at which a
#: replay may run, arrives at another one.
MAX_BYTES = 1_400_000

_Row = tuple[int, str, list[Any]]


def _rows_since(state: ClusterState, version: int) -> list[_Row]:
    """All rows changed after `version`, in an order in which they may be cut anywhere.

    Each is placed at the first version after `version` at which it changed in that way. So a receiver of all rows up to
    a later one has each topic that came before, and a delta from there brings what has changed since. Placed at its
    last change, a topic would be missing where that delta has but one of its partitions; and of several partitions
    those that changed before would be missed for good.
    """
    rows: list[_Row] = []
    for topic in state.topics.values():
        if topic.changed > version:
            partitions = topic.changed_since(version)
            if partitions is None:
                shaped = topic.shaped if topic.shaped > version else topic.changed
                rows.append((shaped, "topics", topic.row()))
            else:
                first = min(stamp for stamp in topic.stamps if stamp > version)
                rows.append((first, "partitions", [topic.name, [each.row() for each in partitions]]))
    rows += [(each.changed, "gone", [each.name, each.id]) for each in state.gone if each.changed > version]
    rows += [(each.changed, "nodes", each.row()) for each in state.nodes.values() if each.changed > version]
    rows += [
        (each.changed, "configs", [each.kind, each.name, dict(each.values)])
        for each in state.configs.values()
        if each.changed > version
    ]
    return sorted(rows, key=lambda row: row[0])


def _image(state: ClusterState, since: int, version: int, rows: list[_Row]) -> bytes:
    content: dict[str, Any] = {
        "v": FORMAT,
        "cluster": state.cluster,
        "generation": state.generation,
        "version": version,
        "from": since,
        "topics": [],
        "gone": [],
        "nodes": [],
        "configs": [],
        "controller": state.controller,
    }
    for _, kind, row in rows:
        content.setdefault(kind, []).append(row)
    return compact(content)


def weight(state: ClusterState, generation: int, version: int) -> int:
    """How many partitions an image for a receiver at (generation, version) holds."""
    known, count = version if generation == state.generation else 0, 0
    for topic in state.topics.values():
        if topic.changed > known:
            partitions = topic.changed_since(known)
            count += len(topic.partitions if partitions is None else partitions)
    return count


def since(state: ClusterState, generation: int, version: int, limit: int = MAX_BYTES) -> list[str]:
    """What a receiver at (generation, version) lacks: nothing, one image or several, oldest first, none longer than
    `limit` before it is compressed.

    A receiver of another generation, or without an image (version 0), gets a whole one. The parts of a cut image are
    deltas on one another, and each leaves a receiver at a version of its own, from which the next delta takes it on.
    One row alone may be longer.
    """
    known = version if generation == state.generation else 0
    rows = _rows_since(state, known)
    return list(_cut(state, known, state.version, rows, limit)) if rows else []


def whole(state: ClusterState, limit: int = MAX_BYTES) -> list[str]:
    """The whole image, in parts if it is too long."""
    return list(_cut(state, 0, state.version, _rows_since(state, 0), limit))


def _cut(state: ClusterState, known: int, version: int, rows: list[_Row], limit: int) -> Iterator[str]:
    # The common case first: one image.
    parts = [rows]
    while parts:
        part = parts.pop(0)
        last = version if not parts else part[-1][0]
        made = _image(state, known, last, part)
        if len(made) > limit and len(part) > 1:
            middle = len(part) // 2
            parts[:0] = [part[:middle], part[middle:]]
            continue
        yield compressed(made)
        known = last


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded image; `partitions` are those that changed in topics of which nothing else did."""

    cluster: str
    generation: int
    version: int
    since: int
    topics: Mapping[str, Topic]
    gone: tuple[Gone, ...]
    nodes: Mapping[int, Node]
    configs: Mapping[tuple[str, str], Configs]
    partitions: Mapping[str, tuple[Partition, ...]] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[int, int]:
        """What orders two images: (generation, version)."""
        return self.generation, self.version


def cluster_of(text: str) -> str:
    """The cluster that an image is of. Raises ValueError as `decode` does."""
    return str(_content(text).get("cluster"))


def _content(text: str) -> dict[str, Any]:
    content = unpack(text)
    if not isinstance(content, dict) or content.get("v") != FORMAT:
        raise ValueError("not a cluster image of a format this program reads")
    return content


class Reader:
    """Reads several images of one cluster, which have most rows in common: it reuses a topic whose row is known."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[list[Any], Topic]] = {}
        self._assignments: dict[Any, Assignment] = {}

    def topic(self, row: list[Any]) -> Topic:
        """The topic of a row."""
        known = self._topics.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        made = Topic.of(row[:4], self._assignments)
        self._topics[row[0]] = row, made
        return made


def decode(text: str, reader: Reader | None = None) -> Image:
    """Read an image. Raises ValueError for one that is damaged, of another format or lacks fields."""
    content = _content(text)
    reader = reader or Reader()
    try:
        found = Image(
            content["cluster"],
            content["generation"],
            content["version"],
            content["from"],
            {row[0]: reader.topic(row) for row in content["topics"]},
            tuple(Gone(*row) for row in content["gone"]),
            {row[0]: Node.of(row) for row in content["nodes"]},
            {(row[0], row[1]): Configs(*row) for row in content["configs"]},
            {name: tuple([Partition.of(row) for row in rows]) for name, rows in content.get("partitions", ())},
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, IndexError) as problem:
        raise ValueError(f"a cluster image with a damaged row: {problem!r}") from problem
    image_check.check(content)
    return found


def of_state(state: ClusterState) -> Image:
    """The state as if it had been read from an image; the controller's own memory when images are merged."""
    return Image(
        state.cluster, state.generation, state.version, 0, state.topics, state.gone, state.nodes, state.configs
    )


def text_of(content: Mapping[str, Any]) -> str:
    """An image from its plain content, for tests and for files."""
    return pack(json.loads(json.dumps(content)))
