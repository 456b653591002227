"""Limits the bytes of large frames that the connections of a listener receive in one iteration of its loop."""

from __future__ import annotations

#: Bytes of large frames that all connections together receive in one iteration of the loop, and the least for each.
#: libuv alone would read 8 MB of each: a few clients that send without a pause would delay the others by tens of
#: milliseconds in each iteration.
LARGEST_READ, LEAST_READ = 256 * 1024, 16 * 1024


class Turns:
    """Computes a connection's share from the number of connections that used theirs in the previous iteration.

    If more connections send than in the previous iteration, those that come last receive `LEAST_READ`. Used on the
    listener's loop only.
    """

    def __init__(self) -> None:
        self._share = LARGEST_READ
        self._received = 0
        """The bytes of large frames that all connections received in this iteration."""
        self._resting = 0

    @property
    def share(self) -> int:
        """Return the bytes that a connection may receive in this iteration."""
        return max(LEAST_READ, min(self._share, LARGEST_READ - self._received))

    def received(self, nbytes: int) -> None:
        """Record the bytes of a large frame that a connection received."""
        self._received += nbytes

    def rests(self) -> None:
        """Record that a connection has used its share of this iteration."""
        self._resting += 1

    def begins(self) -> None:
        """Begin the next iteration; each connection that used its share calls it."""
        if self._resting:
            self._share = LARGEST_READ // self._resting
            self._received = self._resting = 0
