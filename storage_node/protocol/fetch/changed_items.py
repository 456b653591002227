"""Records which partitions of a fetch change: while the fetch waits, and in a session also between its fetches.

Each item is registered with its partition once, not at every fetch. An append or a change of the high watermark, the
log start offset or the role enqueues the item; a fetch checks only the enqueued items. An item is enqueued at most
once, and dequeued before the check, so that a later change enqueues it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from storage_node.protocol.fetch.call import Item
from storage_node.replication.isr import NEVER

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition


class ChangedItems:
    """The queue of a session's changed items. Any thread may call `enqueue`, only the loop the other methods."""

    def __init__(self, follower: int) -> None:
        """`follower`: the node that fetches, -1 for a consumer."""
        self.follower = follower
        self.fetched_at = NEVER
        """The time of the session's last fetch (see `replication.vouching`)."""
        self._queue: deque[Item] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._wanted = self._seen = 0

    def add(self, item: Item, partition: Partition) -> None:
        """Register an item with its partition."""
        if item.watched is partition:
            return
        self.drop(item)
        item.changed_items, item.watched = self, partition
        if self.follower >= 0:
            partition.add_waiter(item.appended, to_end=True)
            # A change of the high watermark does not wake a follower; its next response has the change.
            partition.add_waiter(item.stirred)
        else:
            partition.add_waiter(item.appended)

    def drop(self, item: Item) -> None:
        """Unregister an item from its partition."""
        partition, item.watched = item.watched, None
        if partition is None:
            return
        partition.remove_waiter(item.appended)
        if self.follower >= 0:
            partition.remove_waiter(item.stirred)
            state = partition.leading
            if state is not None:
                state.release(self.follower, item)
        item.changed_items = None

    def enqueue(self, item: Item, size: int) -> None:
        """Enqueue an item with `size` new bytes (0 does not wake the fetch); any thread may call it."""
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
        """Reset the count of new bytes; to be called before `take`, so that `wait` misses no change."""
        with self._lock:
            self._seen = 0

    def take(self) -> list[Item]:
        """Dequeue and return the changed items."""
        found: list[Item] = []
        queue = self._queue
        while queue:
            item = queue.popleft()
            item.queued = False
            if item.changed_items is self:
                found.append(item)
        return found

    async def wait(self, wanted: int, seconds: float) -> None:
        """Wait at most `seconds` until `wanted` bytes were appended since `arm` or a partition's state has changed."""
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
        """End the wait of a fetch."""
        with self._lock:
            future, self._future = self._future, None
        if future is not None:
            _settle(future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
