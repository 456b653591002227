"""The topics of a consumer's metadata: the fields with which all versions of ConsumerProtocolSubscription begin."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["topics_of"]

_MOST: Final = 100_000


def topics_of(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics to which members subscribe; None if a member's metadata is not a consumer's."""
    found: set[str] = set()
    try:
        for one in metadata:
            found |= _topics(one)
    except (struct.error, ValueError):
        return None
    return frozenset(found)


def _topics(data: bytes) -> set[str]:
    version, count = struct.unpack_from(">hi", data)
    if version < 0 or not 0 <= count <= _MOST:
        raise ValueError("not a subscription")
    position, topics = 6, set()
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, position)
        text = data[position + 2 : position + 2 + size]
        if size < 0 or len(text) != size:
            raise ValueError("a topic's name is cut off")
        topics.add(text.decode())
        position += 2 + size
    return topics
