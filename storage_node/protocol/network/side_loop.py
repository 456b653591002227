"""Event loops beside the listener's, for requests that would block it.

The handlers of metadata changes, descriptions and large requests iterate over as many elements as the request has or
the cluster. On a separate loop they delay one another, but no produce, fetch or heartbeat. All state that these
handlers share with the listener's loop is thread-safe: images are immutable, partitions have locks, and the
controller's port has its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

#: Seconds that `stop` waits for the running callback.
STOP = 5.0


class SideLoop:
    """An event loop on its own thread, which runs from the construction until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the side loop and return its result; cancelling the caller cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=STOP))
        finally:
            self._loop.close()

    def stop(self) -> None:
        """Cancel the loop's tasks and end its thread; another thread must call it."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP)
