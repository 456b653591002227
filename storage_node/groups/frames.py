"""How entries stand in a file: length and CRC-32C (4 bytes each, big-endian), then a number (8 bytes) and JSON.

The number counts entries over the life of the store, so that what a snapshot already holds is known in the tail.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from crc32c import crc32c

__all__ = ["HEAD", "Scan", "frame", "scan"]

HEAD: Final = struct.Struct(">II")
_NUMBER: Final = struct.Struct(">Q")


def frame(number: int, entry: Any) -> bytes:
    """One entry's bytes."""
    body = _NUMBER.pack(number) + json.dumps(entry, separators=(",", ":")).encode()
    return HEAD.pack(len(body), crc32c(body)) + body


@dataclass(slots=True)
class Scan:
    """What a file holds: the entries with their numbers, how far it is whole, how many damaged ones were left out."""

    entries: list[tuple[int, Any]] = field(default_factory=list)
    end: int = 0
    damaged: int = 0


def scan(data: bytes, start: int = 0) -> Scan:
    """Read entries up to the end, or to what is torn.

    A damaged entry that is followed by a good one was written whole once, and later ones are not given up for it.
    """
    found, position = Scan(end=start), start
    skipped = 0
    while (size := _size(data, position)) is not None:
        entry = _entry(data, position, size)
        position += HEAD.size + size
        if entry is None:
            skipped += 1
            continue
        found.entries.append(entry)
        found.end = position
        found.damaged += skipped
        skipped = 0
    return found


def _size(data: bytes, position: int) -> int | None:
    """The length of the entry there; None where none can be."""
    if position + HEAD.size > len(data):
        return None
    size, _ = HEAD.unpack_from(data, position)
    return size if _NUMBER.size < size <= len(data) - position - HEAD.size else None


def _entry(data: bytes, position: int, size: int) -> tuple[int, Any] | None:
    begin = position + HEAD.size
    body = data[begin : begin + size]
    if HEAD.unpack_from(data, position)[1] != crc32c(body):
        return None
    try:
        return _NUMBER.unpack_from(body)[0], json.loads(body[_NUMBER.size :])
    except ValueError:
        return None
