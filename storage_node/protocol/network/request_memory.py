"""The memory for the requests of a listener (queued.max.request.bytes), and the queue of connections that wait for it.

At the limit the node rejects no request: it pauses reading from a connection with a further request, and queues the
connection. The queue cannot block for ever:

- a request's memory is released when its response is sent;
- the first connection in the queue may exceed the limit, one connection at a time and until its response is sent, so
  that requests which have all arrived in part never wait for each other;
- small requests are not queued unless there are very many of them, so that clients of a working disk, and operators,
  do not wait for large requests to a hung disk;
- when the queue has not moved for a while, because clients have stopped in the middle of a request or do not read their
  responses, the node closes the connection that holds the most memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Protocol

log = logging.getLogger(__name__)

#: The free memory that admits the next connection in the queue: the most that a connection reads before it checks the
#: limit again.
STEP = 64 * 1024
#: Requests up to this size are small.
SMALL = 64 * 1024
#: The bytes that small requests may hold beyond the limit and the two large requests that may exceed it: one that was
#: begun below the limit, and that of the first connection in the queue.
RESERVE = 16 * 1024 * 1024
#: Seconds between two checks of a queue that is not empty.
LOOK = 0.05
#: Seconds without progress of the queue, after which a connection is closed.
STALLED = 10.0


class Holder(Protocol):
    """A connection, as this module uses it."""

    @property
    def peer(self) -> str:
        """The client's address, for the log."""

    @property
    def held(self) -> int:
        """The bytes that its requests hold."""

    @property
    def ends_by_itself(self) -> bool:
        """Whether the held bytes are released soon anyway, and closing the connection does not release them earlier."""

    def read_again(self) -> None:
        """Resume reading."""

    def cut(self, why: str) -> None:
        """Close the connection at once."""


class RequestMemory:
    """The bytes held by the requests of one listener. Not thread-safe: use it on the listener's loop only."""

    def __init__(self, limit: int | None, largest: int) -> None:
        self.limit = limit
        """Bytes; None for no limit."""
        self._largest = largest
        self.held = 0
        self.highest = 0
        """The highest `held` so far."""
        self._queue: dict[Holder, None] = {}
        self.first: Holder | None = None
        """The connection that receives a request beyond the limit."""
        self._timer: asyncio.TimerHandle | None = None
        self._moved = 0.0
        self._holders: dict[Holder, None] = {}

    @property
    def full(self) -> bool:
        """Whether the limit is reached: only the first connection in the queue may begin a large request."""
        return self.limit is not None and self.held >= self.limit

    @property
    def waiting(self) -> int:
        """The number of queued connections."""
        return len(self._queue)

    def enter(self, holder: Holder) -> None:
        """Register a connection, which may hold memory from now on."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Unregister a connection that holds no memory any more, and remove it from the queue."""
        self._holders.pop(holder, None)
        self._queue.pop(holder, None)
        if self.first is holder:
            self.first = None

    def wait_no_more(self, holder: Holder) -> None:
        """Remove a connection that reads no further from the queue."""
        self._queue.pop(holder, None)

    def take(self, size: int) -> None:
        """Reserve `size` bytes; never fails, since the connection has begun to receive the request."""
        self.held += size
        if self.held > self.highest:
            self.highest = self.held

    def give(self, size: int) -> None:
        """Release `size` bytes, and admit queued connections."""
        self.held -= size
        if self._queue:
            self._admit()

    def may_begin(self, holder: Holder, size: int) -> bool:
        """Return whether a connection may begin to receive a request; if not, it is queued until `read_again`."""
        if not self.full or self.limit is None:
            return True
        small = size <= SMALL and self.held < self.limit + 2 * self._largest + RESERVE
        return small or self._enqueue(holder)

    def may_grow(self, holder: Holder) -> bool:
        """Return the same for a request that has arrived in part."""
        return not self.full or holder is self.first or self._enqueue(holder)

    def _enqueue(self, holder: Holder) -> bool:
        if not self._queue:
            self._moved = asyncio.get_running_loop().time()
        self._queue[holder] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._check)
        return False

    def answered(self, holder: Holder) -> None:
        """Record that the request which `first` received beyond the limit is finished; the caller releases it next."""
        if self.first is holder:
            self.first = None

    def _admit(self) -> None:
        """Resume the queued connections for which there is room; beyond the limit, the first one only."""
        if not self._queue:
            return
        room = 1 if self.limit is None else (self.limit - self.held) // STEP + (not self.full)
        if room <= 0 and self.first is None:
            room, self.first = 1, next(iter(self._queue))
        for holder in list(itertools.islice(self._queue, max(room, 0))):
            self._queue.pop(holder, None)
            self._moved = asyncio.get_running_loop().time()
            holder.read_again()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._admit()
        if self._queue and loop.time() - self._moved > STALLED:
            self._moved = loop.time()
            self._cut_most()
        if self._queue and self._timer is None:
            self._timer = loop.call_later(LOOK, self._check)

    def _cut_most(self) -> None:
        """Close the connection that holds the most memory, of those that might hold it for ever."""
        candidates = [holder for holder in self._holders if holder.held and not holder.ends_by_itself]
        most = max(candidates, key=lambda holder: holder.held, default=None)
        if most is not None:
            most.cut(f"its requests held {most.held} bytes while {len(self._queue)} connections waited for room")
