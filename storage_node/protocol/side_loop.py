"""Event loops beside the listener's, for requests that would hold it up.

Handlers of changes to the metadata, of descriptions and of large requests go through as many elements as a client names
or the cluster has. On a loop of their own they delay one another, and no produce, fetch or heartbeat. What these
handlers share with the listener's loop is thread-safe: images never change, partitions have locks, and the controller's
port has a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

#: Seconds that `stop` waits for the callback that is running.
STOP = 5.0


class SideLoop:
    """An event loop on a thread of its own, from the beginning until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs there; cancelling this cancels it."""
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
        """Cancel what runs there and end the thread; called by another one."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP)
