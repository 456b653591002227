"""How many bytes of requests a listener holds at once (queued.max.request.bytes), and who waits until there are fewer.

At the limit nothing is refused: a connection that has the head of another request to read is no longer read from, and
stands in line. Nothing can stand still for ever:

- what is held is given back as soon as it is answered;
- the first in line may go on beyond the limit, one connection at a time and until its request is answered, so that
  requests that are all half read never wait for each other;
- small requests do not stand in line unless there are very many of them, so that a client of a disk that works, or an
  operator, does not wait for large requests to one that hangs;
- when the line has not moved for a while, because peers stopped in the middle of a request or do not take their
  answers, whoever holds most is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Protocol

log = logging.getLogger(__name__)

#: Room for the next one in line: a connection reads so much at most before it is asked again.
STEP = 64 * 1024
#: Requests up to this size are small.
SMALL = 64 * 1024
#: So much may small requests hold beyond the limit and the two large requests that go beyond it without them: one that
#: was begun below the limit and ends above it, and the first in line.
RESERVE = 16 * 1024 * 1024
#: How often the line is looked at while there is one.
LOOK = 0.05
#: The line has not moved for so long: somebody only holds.
STALLED = 10.0


class Holder(Protocol):
    """A connection as far as this module goes."""

    @property
    def peer(self) -> str:
        """Who it is, for the log."""

    @property
    def held(self) -> int:
        """Bytes that its requests hold."""

    @property
    def ends_by_itself(self) -> bool:
        """Whether what it holds is certain to be given back soon, and is not given back earlier by closing it."""

    def read_again(self) -> None:
        """Its turn has come."""

    def cut(self, why: str) -> None:
        """Close it at once."""


class RequestMemory:
    """The bytes held by the requests of one listener. Used on its loop only."""

    def __init__(self, limit: int | None, largest: int) -> None:
        self.limit = limit
        """Bytes; None for no limit."""
        self._largest = largest
        self.held = 0
        self.highest = 0
        """The most that was held so far."""
        self._line: dict[Holder, None] = {}
        self.first: Holder | None = None
        """Who reads a request beyond the limit."""
        self._timer: asyncio.TimerHandle | None = None
        self._moved = 0.0
        self._holders: dict[Holder, None] = {}

    @property
    def full(self) -> bool:
        """Whether nothing large is begun but by the first in line."""
        return self.limit is not None and self.held >= self.limit

    @property
    def waiting(self) -> int:
        """How many connections stand in line."""
        return len(self._line)

    def enter(self, holder: Holder) -> None:
        """A connection that may hold something from now on."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """A connection that holds nothing any more; it leaves the line as well."""
        self._holders.pop(holder, None)
        self._line.pop(holder, None)
        if self.first is holder:
            self.first = None

    def wait_no_more(self, holder: Holder) -> None:
        """A connection that reads no further leaves the line."""
        self._line.pop(holder, None)

    def take(self, size: int) -> None:
        """So many bytes more are held; what was begun is never refused."""
        self.held += size
        if self.held > self.highest:
            self.highest = self.held

    def give(self, size: int) -> None:
        """So many bytes are free again."""
        self.held -= size
        if self._line:
            self._admit()

    def may_begin(self, holder: Holder, size: int) -> bool:
        """Whether a connection may begin to read a request. If not it stands in line until `read_again`."""
        if not self.full or self.limit is None:
            return True
        small = size <= SMALL and self.held < self.limit + 2 * self._largest + RESERVE
        return small or self._line_up(holder)

    def may_grow(self, holder: Holder) -> bool:
        """The same for a request that has come in part."""
        return not self.full or holder is self.first or self._line_up(holder)

    def _line_up(self, holder: Holder) -> bool:
        if not self._line:
            self._moved = asyncio.get_running_loop().time()
        self._line[holder] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)
        return False

    def answered(self, holder: Holder) -> None:
        """The request that `first` read beyond the limit is done with; its bytes are given back next."""
        if self.first is holder:
            self.first = None

    def _admit(self) -> None:
        """Let go on whom there is room for; beyond the limit the first alone."""
        if not self._line:
            return
        room = 1 if self.limit is None else (self.limit - self.held) // STEP + (not self.full)
        if room <= 0 and self.first is None:
            room, self.first = 1, next(iter(self._line))
        for holder in list(itertools.islice(self._line, max(room, 0))):
            self._line.pop(holder, None)
            self._moved = asyncio.get_running_loop().time()
            holder.read_again()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._admit()
        if self._line and loop.time() - self._moved > STALLED:
            self._moved = loop.time()
            self._cut_most()
        if self._line and self._timer is None:
            self._timer = loop.call_later(LOOK, self._look)

    def _cut_most(self) -> None:
        """Close who holds most of those who may hold it for ever."""
        candidates = [holder for holder in self._holders if holder.held and not holder.ends_by_itself]
        most = max(candidates, key=lambda holder: holder.held, default=None)
        if most is not None:
            most.cut(f"its requests held {most.held} bytes while {len(self._line)} connections waited for room")
