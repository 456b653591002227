"""Requests about very many things: the loop serves others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: So many are begun before others have their turn.
TURN = 100


async def in_turns(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in the order of `work`, as `asyncio.gather` has them, of which only a few are under way at once."""
    found: list[T] = []
    left = iter(work)
    while few := list(islice(left, TURN)):
        found += await asyncio.gather(*few)
    return found
