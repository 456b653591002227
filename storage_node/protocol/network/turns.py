"""Slices of requests with very many elements, between which the loop runs other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from storage_node.protocol.network.off_loop import ELEMENTS

T = TypeVar("T")
R = TypeVar("R")

#: How many awaitables run concurrently.
TURN = 100


async def in_turns(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results in the order of `work`, like `asyncio.gather`, with at most TURN under way at once."""
    found: list[T] = []
    left = iter(work)
    while few := list(islice(left, TURN)):
        found += await asyncio.gather(*few)
    return found


async def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    """Return the joined results of `work` for slices of `items`; the loop runs other tasks between the slices."""
    found: list[R] = []
    for first in range(0, len(items), ELEMENTS):
        if first:
            await asyncio.sleep(0)
        found += work(items[first : first + ELEMENTS])
    return found
