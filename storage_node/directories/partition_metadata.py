"""`partition.metadata`: the topic id of the partition in whose directory it lies, in Kafka's format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from storage_node.directories import atomic
from storage_node.directories.errors import MalformedPartitionMetadata

__all__ = ["FILE", "decode", "encode", "read", "write"]

FILE: Final = "partition.metadata"

_LIMIT: Final = 4096
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_POINTS: Final = atomic.points("partition_metadata")


def encode(topic_id: str) -> bytes:
    """Return the file's content; raises ValueError for an id that is not 22 characters of URL-safe base64."""
    if not _TOPIC_ID.fullmatch(topic_id):
        raise ValueError(f"not a topic id: {topic_id!r}")
    return f"version: 0\ntopic_id: {topic_id}\n".encode("ascii")


def decode(data: bytes, path: Path | str = FILE) -> str:
    """Return the topic id in the file's content; raises MalformedPartitionMetadata."""
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, colon, value = line.partition(":")
        if not colon or key.strip() in fields:
            raise MalformedPartitionMetadata(path, f"not 'key: value' with a new key: {line[:80]!r}")
        fields[key.strip()] = value.strip()
    if fields.get("version") != "0":
        raise MalformedPartitionMetadata(path, f"unknown version {fields.get('version')!r}")
    topic_id = fields.get("topic_id", "")
    if not _TOPIC_ID.fullmatch(topic_id):
        raise MalformedPartitionMetadata(path, f"not a topic id: {topic_id[:40]!r}")
    return topic_id


def read(partition_directory: Path, *, directory: Path | str) -> str | None:
    """Return the topic id; None if the file does not exist or is empty, as after a crash during the creation.

    `directory` is the log directory that errors name. Raises MalformedPartitionMetadata, MetadataIOError.
    """
    path = partition_directory / FILE
    with atomic.io_errors(directory, f"reading {path}"):
        try:
            data = atomic.read_bytes(path, _LIMIT)
        except FileNotFoundError:
            return None
    return decode(data, path) if data else None


def write(partition_directory: Path, topic_id: str, *, directory: Path | str, name: bool = True) -> None:
    """Write the file durably, before the first record is appended. Raises MetadataIOError.

    Without `name` the caller flushes the partition's directory.
    """
    path = partition_directory / FILE
    with atomic.io_errors(directory, f"writing {path}"):
        atomic.write_atomic(path, encode(topic_id), _POINTS, name=name)
