"""Requests about very many things: the loop serves others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from storage_node.protocol.off_loop import ELEMENTS

T = TypeVar("T")
R = TypeVar("R")

#: So many are begun before others have their turn.
TURN = 100


async def in_turns(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in the order of `work`, as `asyncio.gather` has them, of which only a few are under way at once."""
    found: list[T] = []
    left = iter(work)
    while few := list(islice(left, TURN)):
        found += await asyncio.gather(*few)
    return found


async def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    """The results of `work` for slices of `items`, joined; after each slice others have their turn."""
    found: list[R] = []
    for first in range(0, len(items), ELEMENTS):
        if first:
            await asyncio.sleep(0)
        found += work(items[first : first + ELEMENTS])
    return found
