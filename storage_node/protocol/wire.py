"""Small writers for the envelopes that are packed by hand."""

from __future__ import annotations

from typing import Final

#: Characters of an error's message. It may repeat a client's input, and no client reads a string of more than 32,767
#: bytes: it rejects the whole response as malformed.
LONGEST_MESSAGE: Final = 1000


def short_message(text: str) -> str:
    """An error's message as it goes into a response: cut if it is too long for clients to read."""
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str, flexible: bool) -> bytes:
    """A string in either encoding."""
    if not flexible:
        data = text.encode()[:32767]
        return len(data).to_bytes(2, "big") + data
    data = text.encode()
    return varint(len(data) + 1) + data


def array(count: int, flexible: bool) -> bytes:
    """The length of an array in either encoding."""
    return varint(count + 1) if flexible else count.to_bytes(4, "big", signed=True)
