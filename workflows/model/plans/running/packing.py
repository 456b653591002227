"""Texts and states of lanes, packed so that a plan of any size fits into the payloads of a run. Pure."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256

from storage_node.model.fields import BadField

#: A packed text of at most this many characters travels with the run; a larger one is only stored. A run carries three:
#: its plan, its lanes, and the plan that goes back.
LARGEST_PACKED = 50_000
#: The maximum bytes of an unpacked text: a few bytes must not unpack to a worker's memory.
LARGEST_TEXT = 256 << 20
LARGEST_LANES = 1_000_000


class LaneState(StrEnum):
    """A lane in its plan."""

    PENDING = "."
    RUNNING = "r"
    DONE = "d"
    """Each of its moves reached what the plan says."""
    FAILED = "f"
    """At least one of its moves did not."""


def digest(text: str) -> str:
    """Return the sha256 that names a stored text."""
    return sha256(text.encode()).hexdigest()


def pack(text: str) -> str:
    """Compress a text to ASCII."""
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def small(text: str) -> str:
    """Return the packed text if it may travel with a run, else ""."""
    packed = pack(text)
    return packed if len(packed) <= LARGEST_PACKED else ""


def unpack(packed: str, largest: int = LARGEST_TEXT) -> str:
    """Return the text of `pack`. Raises BadField."""
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b85decode(packed), largest)
        if reader.unconsumed_tail or not reader.eof:
            raise BadField("$", f"is not complete, or unpacks to more than {largest} bytes")
        return data.decode()
    except (ValueError, zlib.error) as error:
        if isinstance(error, BadField):
            raise
        raise BadField("$", f"is not a packed text: {error}") from error


def pack_states(states: Sequence[LaneState]) -> str:
    """Pack the states of all lanes: long plans are mostly runs of one state."""
    return pack("".join(states))


def unpack_states(packed: str) -> list[LaneState]:
    """Return the states of `pack_states`. Raises BadField."""
    text = unpack(packed, LARGEST_LANES)
    try:
        return [LaneState(one) for one in text]
    except ValueError as error:
        raise BadField("$", f"holds the state of no lane: {error}") from error


def numbers_in(states: Iterable[LaneState], *wanted: LaneState) -> list[int]:
    """Return the numbers of the lanes in one of these states."""
    return [number for number, state in enumerate(states) if state in wanted]
