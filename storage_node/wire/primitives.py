"""Encode the primitives of the envelopes that are packed without kio."""

from __future__ import annotations

from typing import Final

#: The most characters of an error message. A message may repeat a client's input, and clients reject a response with
#: a string of more than 32,767 bytes as malformed.
LONGEST_MESSAGE: Final = 1000


def short_message(text: str) -> str:
    """Return an error message for a response, truncated to LONGEST_MESSAGE."""
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str, flexible: bool) -> bytes:
    """Encode a string as a compact or an older one."""
    if not flexible:
        data = text.encode()[:32767]
        return len(data).to_bytes(2, "big") + data
    data = text.encode()
    return varint(len(data) + 1) + data


def array(count: int, flexible: bool) -> bytes:
    """Encode the length of an array, compact or not."""
    return varint(count + 1) if flexible else count.to_bytes(4, "big", signed=True)
