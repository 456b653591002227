"""The format of entries in a file: length and CRC-32C (4 bytes each, big-endian), then a number (8 bytes) and JSON.

The numbers of a store's entries rise over its life; a reader of the tail skips those up to the snapshot's number.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from crc32c import crc32c

__all__ = ["HEAD", "Checked", "Scan", "check", "frame", "scan"]

HEAD: Final = struct.Struct(">II")
_NUMBER: Final = struct.Struct(">Q")


def frame(number: int, entry: Any) -> bytes:
    """Return an entry's bytes."""
    body = _NUMBER.pack(number) + json.dumps(entry, separators=(",", ":")).encode()
    return HEAD.pack(len(body), crc32c(body)) + body


@dataclass(slots=True)
class Scan:
    """The content of a file: the entries with their numbers, the end of the last valid one, the damaged ones' count."""

    entries: list[tuple[int, Any]] = field(default_factory=list)
    end: int = 0
    damaged: int = 0


@dataclass(slots=True)
class Checked:
    """A file by its checksums alone: how many frames are valid, the highest number, the end and body of the last valid
    one, and how many frames before it are damaged.
    """

    count: int = 0
    number: int = 0
    end: int = 0
    last: bytes = b""
    damaged: int = 0


def scan(data: bytes, start: int = 0) -> Scan:
    """Read entries up to the end, or up to a torn entry.

    A damaged entry before a valid one is not torn, since entries are appended: it is skipped.
    """
    found = Scan(end=start)
    skipped = 0
    for end, body in _frames(data, start):
        entry = _entry(body) if body is not None else None
        if entry is None:
            skipped += 1
            continue
        found.entries.append(entry)
        found.end = end
        found.damaged += skipped
        skipped = 0
    return found


def check(data: bytes, start: int = 0) -> Checked:
    """Check a file as `scan` reads it, without the cost of parsing its entries."""
    found = Checked(end=start)
    skipped = 0
    for end, body in _frames(data, start):
        if body is None:
            skipped += 1
            continue
        found.count += 1
        found.number = max(found.number, _NUMBER.unpack_from(body)[0])
        found.end, found.last = end, body[_NUMBER.size :]
        found.damaged += skipped
        skipped = 0
    return found


def _frames(data: bytes, position: int) -> Iterator[tuple[int, bytes | None]]:
    """Return the end and the body of each frame, None for one with a wrong checksum, up to where none can be."""
    while (size := _size(data, position)) is not None:
        begin = position + HEAD.size
        body = data[begin : begin + size]
        valid = HEAD.unpack_from(data, position)[1] == crc32c(body)
        position = begin + size
        yield position, body if valid else None


def _size(data: bytes, position: int) -> int | None:
    """Return the length of the entry at `position`; None if no entry can be there."""
    if position + HEAD.size > len(data):
        return None
    size, _ = HEAD.unpack_from(data, position)
    return size if _NUMBER.size < size <= len(data) - position - HEAD.size else None


def _entry(body: bytes) -> tuple[int, Any] | None:
    try:
        return _NUMBER.unpack_from(body)[0], json.loads(body[_NUMBER.size :])
    except ValueError:
        return None
