"""Small writers for the envelopes that are packed by hand."""

from __future__ import annotations


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
