"""Run work whose size a client chooses outside of the listener's loop.

A callback of the loop delays all connections. Its duration depends on the number of elements more than on the number
of bytes: 100 KB hold thousands of partitions. A thread therefore runs any function over many elements.

The threads are few, since they share the interpreter's lock with the loop: the loop waits for one thread at a time, not
for one per large request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

#: The most array elements (partitions, topics, groups ...) that one callback of the loop handles. At 20 microseconds
#: each, the most that any of them costs, this is 10 ms.
ELEMENTS: Final = 500
THREADS: Final = 2

_POOL = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="large-requests")


async def off_loop(function: Callable[[], T]) -> T:
    """Return `function()`, called by a thread for large requests."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, function)


async def off_loop_when(elements: int, function: Callable[[], T]) -> T:
    """Return `function()`: called by this thread for at most ELEMENTS elements, else by one for large requests.

    `function` must not access state that the loop may change meanwhile.
    """
    return function() if elements <= ELEMENTS else await off_loop(function)
