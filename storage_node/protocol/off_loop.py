"""Work of a size that a client chooses, away from the listener's loop.

A callback of the loop holds up all connections. How long one takes depends on the number of elements more than on the
number of bytes: 100 KB hold thousands of partitions. So whatever goes through elements is handed to a thread when they
are many.

The threads are few, since they share the interpreter's lock with the loop: it waits for one of them at a time, not
for as many as there are large requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

#: Array elements (partitions, topics, groups ...) that the loop goes through in one callback. At 20 microseconds for
#: each, the most that any of them costs, this is 10 ms.
ELEMENTS: Final = 500
THREADS: Final = 2

_POOL = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="large-requests")


async def off_loop(function: Callable[[], T]) -> T:
    """Return `function()`, called by one of the threads for large requests."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, function)


async def off_loop_when(elements: int, function: Callable[[], T]) -> T:
    """Return `function()`: called here when it goes through at most ELEMENTS elements, else by a thread.

    `function` must touch nothing that changes on the loop meanwhile.
    """
    return function() if elements <= ELEMENTS else await off_loop(function)
