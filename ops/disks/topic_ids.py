"""The topic ids in the metadata that lies on a stopped broker's own disks.

Apache Kafka's broker has the metadata log of its cluster (`__cluster_metadata-0`: a snapshot, and the batches after
it), a storage node the newest cluster image. Either may be behind the controller's: an id that differs is a hint for
the operator, and never the reason to change anything. Read-only.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

from ops.disks.found import DirectoryFound, FolderKind
from ops.disks.reading import open_log
from storage_node.directories import atomic, image_store
from storage_node.directories.errors import MalformedFile
from storage_node.log.batches.batch import CRC_START, HEADER_SIZE, checksum
from storage_node.log.batches.unpacking import NONE
from storage_node.log.recovery import scan
from storage_node.model.image import decode_whole

__all__ = ["known"]

_TOPIC, _REMOVE_TOPIC = 2, 9
"""The keys of TopicRecord and RemoveTopicRecord in Apache Kafka's metadata (KIP-631)."""
_SNAPSHOT = ".checkpoint"
_IMAGE_LIMIT = 256 << 20
_UUID = 16


def known(found: Iterable[DirectoryFound]) -> dict[str, str]:
    """Return the id of each topic by its name; empty where no directory has readable metadata."""
    directories = list(found)
    for directory in directories:
        if any(folder.kind is FolderKind.METADATA for folder in directory.folders):
            try:
                return _of_log(Path(directory.path) / "__cluster_metadata-0")
            except (OSError, ValueError):
                return {}
    return _of_image(directories)


def _of_image(directories: Iterable[DirectoryFound]) -> dict[str, str]:
    images = []
    for directory in directories:
        path = Path(directory.path) / image_store.FILE
        try:
            images.append(image_store.decode(atomic.read_bytes(path, _IMAGE_LIMIT), path))
        except (OSError, MalformedFile):
            continue
    if not images:
        return {}
    try:
        image = decode_whole(max(images, key=lambda each: each.order).image)
    except ValueError:
        return {}
    return {name: topic.id for name, topic in image.topics.items()}


def _of_log(folder: Path) -> dict[str, str]:
    """Read the newest snapshot, and the log after it. Raises OSError, ValueError."""
    names = sorted(path.name for path in folder.iterdir())
    snapshots = [name for name in names if name.endswith(_SNAPSHOT)]
    files = [*snapshots[-1:], *(name for name in names if name.endswith(".log"))]
    after = int(snapshots[-1].split("-")[0]) if snapshots else 0
    topics: dict[str, str] = {}
    for name in files:
        for offset, value in _values(folder / name):
            if name.endswith(_SNAPSHOT) or offset >= after:
                _apply(value, topics)
    return {name: id for id, name in topics.items()}


def _apply(value: memoryview, topics: dict[str, str]) -> None:
    """Apply a metadata record to the names by id; records of other kinds change nothing."""
    _, at = _unsigned(value, 0)  # the version of the frame
    key, at = _unsigned(value, at)
    _, at = _unsigned(value, at)
    if key == _TOPIC:
        length, at = _unsigned(value, at)
        name = bytes(value[at : at + length - 1]).decode()
        topics[_id(value, at + length - 1)] = name
    elif key == _REMOVE_TOPIC:
        topics.pop(_id(value, at), None)


def _id(value: memoryview, at: int) -> str:
    raw = bytes(value[at : at + _UUID])
    if len(raw) != _UUID:
        raise ValueError("a metadata record ends within an id")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _values(path: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and value of every record in the file's valid batches. Raises OSError, ValueError."""
    for _, header, data in scan(open_log(path), 0):
        if checksum(data[CRC_START:]) != header.crc:
            return
        if header.is_control or header.compression != NONE:
            continue
        at = HEADER_SIZE
        for _ in range(header.count):
            length, at = _signed(data, at)
            _, body = _signed(data, at + 1)
            delta, body = _signed(data, body)
            key, body = _signed(data, body)
            size, body = _signed(data, body + max(0, key))
            if length < 0 or at + length > len(data):
                raise ValueError("a metadata record reaches beyond its batch")
            if size > 0:
                yield header.base_offset + delta, data[body : body + size]
            at += length


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
    """Return a varint and the position behind it. Raises ValueError."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("a metadata record ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number in a metadata record is too long")


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
