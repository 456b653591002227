"""What changes in the partitions of a fetch: noted while it waits, and in a session between its fetches too.

Each item is registered with its partition once, and not at every fetch. An append, a high watermark, a log start offset
or a role that changes puts the item into a queue; a fetch looks at the queue's items and at no others. An item is put
there once, however much happens to it, and is taken out before it is looked at: what happens afterwards queues it
again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from storage_node.protocol.fetch_call import NEVER, Item

if TYPE_CHECKING:
    from storage_node.partition import Partition


class Watch:
    """All but `told` is called on the loop."""

    def __init__(self, follower: int) -> None:
        """`follower`: the node that fetches, -1 for a consumer."""
        self.follower = follower
        self.fetched_at = NEVER
        """When the session's last fetch came (see `replication.leading`)."""
        self._queue: deque[Item] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._wanted = self._seen = 0

    def add(self, item: Item, partition: Partition) -> None:
        """Note what changes in the item's partition from now on."""
        if item.watched is partition:
            return
        self.drop(item)
        item.watch, item.watched = self, partition
        if self.follower >= 0:
            partition.add_waiter(item.appended, to_end=True)
            # A follower is not woken for it, but its next response tells it.
            partition.add_waiter(item.stirred)
        else:
            partition.add_waiter(item.appended)

    def drop(self, item: Item) -> None:
        """Note nothing more for an item."""
        partition, item.watched = item.watched, None
        if partition is None:
            return
        partition.remove_waiter(item.appended)
        if self.follower >= 0:
            partition.remove_waiter(item.stirred)
            state = partition.leading
            if state is not None:
                state.release(self.follower, item)
        item.watch = None

    def told(self, item: Item, size: int) -> None:
        """So many bytes are new in an item's partition, 0 if nobody need be woken; on any thread."""
        if not item.queued:
            item.queued = True
            self._queue.append(item)
        if size:
            with self._lock:
                self._seen += size
                future = self._future
                if future is None or self._seen < self._wanted:
                    return
                self._future = None
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_settle, future)

    def arm(self) -> None:
        """Count bytes from now on; called before the queue is taken, so that nothing is missed before the wait."""
        with self._lock:
            self._seen = 0

    def take(self) -> list[Item]:
        """Return the items to which something has happened."""
        found: list[Item] = []
        queue = self._queue
        while queue:
            item = queue.popleft()
            item.queued = False
            if item.watch is self:
                found.append(item)
        return found

    async def wait(self, wanted: int, seconds: float) -> None:
        """Until `wanted` bytes have come since `arm`, the state of a partition has changed, or `seconds` are over."""
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._wanted = max(wanted, 1)
            if self._seen >= self._wanted:
                return
            self._future = future
        timer = loop.call_later(seconds, _settle, future)
        try:
            await future
        finally:
            timer.cancel()
            with self._lock:
                self._future = None

    def end_wait(self) -> None:
        """Let a fetch that waits go on."""
        with self._lock:
            future, self._future = self._future, None
        if future is not None:
            _settle(future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
