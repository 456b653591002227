"""`meta.properties`: the cluster, node and directory id of a log directory (KIP-858, version 2; 0 and 1 are read too).

A Java properties file. Version 0 has `broker.id`, version 1 `cluster.id` and `node.id`, version 2 also `directory.id`
(this directory's) and `directory.ids` (those of all the node's directories, in every file).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

from storage_node.directories import atomic
from storage_node.directories.errors import MalformedMetaProperties

__all__ = [
    "FILE",
    "LOST",
    "MIGRATING",
    "UNASSIGNED",
    "VERSION",
    "MetaProperties",
    "decode",
    "encode",
    "fresh_directory_id",
    "in_order",
    "is_directory_id",
    "is_reserved",
    "random_directory_id",
    "read",
    "upgrade",
    "write",
]

FILE: Final = "meta.properties"
VERSION: Final = 2

# KIP-858's reserved ids: the first half zero, the second below 100.
MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
LOST: Final = "AAAAAAAAAAAAAAAAAAAAAg"

_RESERVED_BELOW: Final = 100
_LIMIT: Final = 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_POINTS: Final = atomic.points("meta_properties")
_KEYS: Final = ("version", "cluster.id", "node.id", "broker.id", "directory.id", "directory.ids")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """A file's content. Unknown keys are kept in `others` and written back."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None = None
    directory_ids: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def random_directory_id() -> str:
    """Return 16 random bytes as 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode("ascii")


def is_directory_id(text: str) -> bool:
    """Return whether the text is 22 characters of URL-safe base64, reserved or not."""
    return _ID.fullmatch(text) is not None


def is_reserved(directory_id: str) -> bool:
    """Return whether the id is reserved by KIP-858 (UNASSIGNED, LOST, MIGRATING and 97 more)."""
    value = int.from_bytes(base64.urlsafe_b64decode(directory_id + "=="), "big")
    return value < _RESERVED_BELOW


def fresh_directory_id(used: Collection[str], draw: Callable[[], str] = random_directory_id) -> str:
    """Draw an id that is neither used nor reserved and does not start with '-', as a command line option does."""
    while True:
        drawn = draw()
        if not drawn.startswith("-") and not is_reserved(drawn) and drawn not in used:
            return drawn


def in_order(known: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the known ids with those of `order`, which are the directories' in the order of log.dirs, in that order.

    The ids of directories that are missing keep their place, so that a disk that returns finds itself where it was.
    """
    there, rest = set(order), iter(order)
    placed = [next(rest) if each in there else each for each in known]
    return (*placed, *rest)


def upgrade(
    old: MetaProperties | None,
    *,
    version: int = VERSION,
    cluster_id: str,
    node_id: int,
    directory_id: str,
    directory_ids: tuple[str, ...],
) -> MetaProperties:
    """Return the content that replaces `old`: of version 2, or of version 1 for a return to Apache Kafka.

    Kafka reads no version above 1, and ignores directory.ids, which it does not know.
    """
    return MetaProperties(version, cluster_id, node_id, directory_id, directory_ids, old.others if old else ())


def encode(properties: MetaProperties) -> bytes:
    """Return the file's content, keys sorted."""
    values = dict(properties.others)
    values["version"] = str(properties.version)
    if properties.cluster_id is not None:
        values["cluster.id"] = properties.cluster_id
    if properties.node_id is not None:
        values["broker.id" if properties.version == 0 else "node.id"] = str(properties.node_id)
    if properties.directory_id is not None:
        values["directory.id"] = properties.directory_id
    if properties.directory_ids:
        values["directory.ids"] = ",".join(properties.directory_ids)
    text: str = javaproperties.dumps(values, timestamp=False, sort_keys=True)
    return text.encode("latin-1")


def decode(data: bytes, path: Path | str = FILE) -> MetaProperties:
    """Parse a file's content; raises MalformedMetaProperties with the path and the reason."""
    try:
        values: dict[str, str] = dict(javaproperties.loads(data.decode("latin-1")))
    except ValueError as exc:
        raise MalformedMetaProperties(path, str(exc)) from None
    if not values:
        raise MalformedMetaProperties(path, "it is empty")
    version = _integer(path, values, "version", required=False) or 0
    if version not in (0, 1, VERSION):
        raise MalformedMetaProperties(path, f"unknown version {version}")
    required = version > 0
    node_id = _integer(path, values, "node.id" if version else "broker.id", required=required)
    cluster_id = values.get("cluster.id")
    if required and not cluster_id:
        raise MalformedMetaProperties(path, "cluster.id is missing")
    directory_id = values.get("directory.id")
    directory_ids = tuple(id.strip() for id in values.get("directory.ids", "").split(",") if id.strip())
    for id in ((directory_id,) if directory_id is not None else ()) + directory_ids:
        if not is_directory_id(id):
            raise MalformedMetaProperties(path, f"not a directory id: {id[:40]!r}")
    others = tuple(sorted((key, value) for key, value in values.items() if key not in _KEYS))
    return MetaProperties(version, cluster_id or None, node_id, directory_id, directory_ids, others)


def _integer(path: Path | str, values: dict[str, str], key: str, *, required: bool) -> int | None:
    text = values.get(key)
    if text is None:
        if required:
            raise MalformedMetaProperties(path, f"{key} is missing")
        return None
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()):
        raise MalformedMetaProperties(path, f"{key} is not a number: {text[:40]!r}")
    return int(text)


def read(directory: Path | str) -> MetaProperties | None:
    """Return a log directory's file, None if it does not exist; raises MalformedMetaProperties, MetadataIOError."""
    path = Path(directory) / FILE
    with atomic.io_errors(directory, f"reading {FILE}"):
        try:
            data = atomic.read_bytes(path, _LIMIT)
        except FileNotFoundError:
            return None
    return decode(data, path)


def write(directory: Path | str, properties: MetaProperties) -> None:
    """Write a log directory's file durably; raises MetadataIOError."""
    with atomic.io_errors(directory, f"writing {FILE}"):
        atomic.write_atomic(Path(directory) / FILE, encode(properties), _POINTS)
