"""Where a new replica goes. Pure: decisions on values, no look at a disk.

The directory with the fewest bytes gets it, where a replica without data counts as much as it is expected to grow to;
without that, five hundred replicas created in one request would all go to the disk with the fewest bytes now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["MIN_ALLOWANCE", "DirectoryLoad", "assign", "choose", "expected_size"]

MIN_ALLOWANCE: Final = 64 * 1024 * 1024  # bytes that an empty replica counts for at least


@dataclass(frozen=True, slots=True)
class DirectoryLoad:
    """What a directory holds: bytes of data, number of replicas (with copies under way), how many of these are empty.

    `usable` is the free space in bytes, None when it is not known.
    """

    path: str
    bytes: int = 0
    replicas: int = 0
    empty: int = 0
    usable: int | None = None


def expected_size(loads: Sequence[DirectoryLoad]) -> int:
    """What an empty replica is expected to grow to, in bytes: the mean of those with data, at least `MIN_ALLOWANCE`."""
    with_data = sum(load.replicas - load.empty for load in loads)
    return max(MIN_ALLOWANCE, sum(load.bytes for load in loads) // with_data if with_data > 0 else 0)


def choose(loads: Sequence[DirectoryLoad], allowance: int | None = None) -> str:
    """The path that gets the next replica; raises ValueError without any directory.

    Ordered by: not full (room for one allowance), fewest bytes with `allowance` (default: `expected_size`) per empty
    replica, fewest replicas, then the order given.
    """
    if not loads:
        raise ValueError("there is no directory to place a replica in")
    each = expected_size(loads) if allowance is None else allowance

    def rank(load: DirectoryLoad) -> tuple[bool, int, int]:
        full = load.usable is not None and load.usable < each
        return full, load.bytes + each * load.empty, load.replicas

    return min(loads, key=rank).path


def assign(loads: Sequence[DirectoryLoad], count: int, allowance: int | None = None) -> list[str]:
    """The paths for `count` new, empty replicas, each choice counted before the next one."""
    current = {load.path: load for load in loads}
    each = expected_size(loads) if allowance is None else allowance
    chosen: list[str] = []
    for _ in range(count):
        path = choose(list(current.values()), each)
        load = current[path]
        current[path] = replace(load, replicas=load.replicas + 1, empty=load.empty + 1)
        chosen.append(path)
    return chosen
