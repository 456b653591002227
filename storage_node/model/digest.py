"""The digest of the metadata, by which a node notices that the controller has other metadata at the same version.

A value per row (a partition, a topic, a node, a broker's configs), and their sum modulo 2^128 for the whole: rows count
in any order, whichever images brought them. Values are immutable, and each keeps its own digest once it was computed,
so that after a change only what has changed is hashed, and no digest can drift away from what it describes.

It covers what images convey, but for the deleted topics: the controller forgets them without sending an image
(`ClusterState.forget_deletions`), and a topic that one side still has changes the digest by itself. A row is hashed as
Python's ASCII form of nested tuples of strings and whole numbers, which no version of Python and no hash seed changes.
tests/golden holds digests that every version of the program must compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

#: Of what rows are hashed, and how. A receiver that knows another format compares nothing.
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
