"""Placement of new replicas. Pure: decides on values, without I/O.

A replica is placed in the directory with the fewest bytes, where an empty replica counts as the size it is expected to
reach; otherwise five hundred replicas created by one request would all be placed on the presently emptiest disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["MIN_ALLOWANCE", "DirectoryLoad", "assign", "choose", "expected_size"]

MIN_ALLOWANCE: Final = 64 * 1024 * 1024  # bytes; the minimum that an empty replica counts for


@dataclass(frozen=True, slots=True)
class DirectoryLoad:
    """A directory's load: bytes of data, number of replicas (including moving copies), how many of these are empty.

    `usable` is the free space in bytes, None if it is unknown.
    """

    path: str
    bytes: int = 0
    replicas: int = 0
    empty: int = 0
    usable: int | None = None


def expected_size(loads: Sequence[DirectoryLoad]) -> int:
    """Return the expected size of an empty replica: the mean of the non-empty ones, at least `MIN_ALLOWANCE` bytes."""
    with_data = sum(load.replicas - load.empty for load in loads)
    return max(MIN_ALLOWANCE, sum(load.bytes for load in loads) // with_data if with_data > 0 else 0)


def choose(loads: Sequence[DirectoryLoad], allowance: int | None = None) -> str:
    """Return the path for the next replica; raises ValueError if there is no directory.

    Ordered by: not full (room for one allowance), fewest bytes with `allowance` (default: `expected_size`) per empty
    replica, fewest replicas, then the given order.
    """
    if not loads:
        raise ValueError("no directory is available to place a replica")
    each = expected_size(loads) if allowance is None else allowance

    def rank(load: DirectoryLoad) -> tuple[bool, int, int]:
        full = load.usable is not None and load.usable < each
        return full, load.bytes + each * load.empty, load.replicas

    return min(loads, key=rank).path


def assign(loads: Sequence[DirectoryLoad], count: int, allowance: int | None = None) -> list[str]:
    """Return the paths for `count` new, empty replicas; each choice counts for the next one."""
    current = {load.path: load for load in loads}
    each = expected_size(loads) if allowance is None else allowance
    chosen: list[str] = []
    for _ in range(count):
        path = choose(list(current.values()), each)
        load = current[path]
        current[path] = replace(load, replicas=load.replicas + 1, empty=load.empty + 1)
        chosen.append(path)
    return chosen
