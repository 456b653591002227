"""The digest of the metadata, as the controller computes it (workflows/model/digest.py explains of what and why).

The two are separate code, as the codecs of images are; tests/golden holds digests that both must compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

#: The format of digests that this program computes; digests of another format cannot be compared.
FORMAT = 1
_MASK = (1 << 128) - 1


def of_row(row: tuple[object, ...]) -> int:
    """The digest of one row: nested tuples of strings and integers (flags as 0 and 1)."""
    return int.from_bytes(blake2b(ascii(row).encode("ascii"), digest_size=16).digest(), "big")


def of_items(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Configs as a row has them, in one order."""
    return tuple(sorted(values.items()))


def total(digests: Iterable[int]) -> int:
    """The digest of rows in any order."""
    return sum(digests) & _MASK


def text(digest: int) -> str:
    """A digest as it travels: format and 32 hexadecimal digits."""
    return f"{FORMAT}:{digest:032x}"


def comparable(digest: str) -> bool:
    """Whether a digest that came from the controller is of the format computed here."""
    return digest.startswith(f"{FORMAT}:")
