"""How large values travel and are kept: compact JSON, zlib, base64."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

#: Decompressed, no value of ours is larger than so many bytes.
MAX_BYTES: Final = 512 * 1024 * 1024
#: zlib's levels: for what many receivers get, and for what one program writes often and reads seldom.
SMALL: Final = 6
FAST: Final = 1


def pack(value: Any, level: int = SMALL) -> str:
    """Return the value, which JSON can express, as text."""
    return compressed(compact(value), level)


def compact(value: Any) -> bytes:
    """Compact JSON.

    JSON's own escape takes the place of half of a surrogate pair, which UTF-8 cannot carry.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def compressed(text: bytes, level: int = SMALL) -> str:
    """Compact JSON as it travels."""
    return base64.b64encode(zlib.compress(text, level)).decode("ascii")


def unpack(text: str) -> Any:
    """What `pack` packed. Raises ValueError for anything else, and for what is larger than `MAX_BYTES`."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
        if unzip.unconsumed_tail or not unzip.eof:
            raise ValueError("it is cut off, or larger than any that is ours")
        return json.loads(data)
    except (ValueError, zlib.error, RecursionError, TypeError) as problem:
        raise ValueError(f"not a packed value: {problem}") from problem
