"""How much of large frames the connections of a listener receive in one turn of its loop."""

from __future__ import annotations

#: Bytes of large frames that all connections together receive in one turn of the loop, and one of them at least. libuv
#: alone would read 8 MB of each: a few clients that send without a pause would delay the others by tens of milliseconds
#: each time.
LARGEST_READ, LEAST_READ = 256 * 1024, 16 * 1024


class Turns:
    """The share of one connection, from how many had theirs in the turn before. On the listener's loop."""

    def __init__(self) -> None:
        self.share = LARGEST_READ
        """Bytes."""
        self._resting = 0

    def rests(self) -> None:
        """A connection has had its share of this turn."""
        self._resting += 1

    def begins(self) -> None:
        """The next turn; each connection that has rested calls it."""
        if self._resting:
            self.share = max(LEAST_READ, LARGEST_READ // self._resting)
            self._resting = 0
