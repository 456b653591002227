"""A bound on the lines of the process's own log that clients can cause.

A client that is rejected ten thousand times a second must not fill the disk with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Each place in the code may log this many lines in this many seconds.
LINES, SECONDS = 100, 10.0
#: Characters of one line: a client chooses the names in it.
LONGEST = 2_000


@dataclass(slots=True)
class _Place:
    """A place in the code that logs: its present window, and its lines there."""

    began: float
    lines: int = 0
    dropped: int = 0


class FloodFilter(logging.Filter):
    """A filter that drops lines of a place in the code that logs too many, and cuts long ones; errors always pass.

    The first line of a place after its window reports how many were dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; it may be cut, or get the number of lines dropped before it."""
        if record.levelno >= logging.ERROR:
            return True
        now = self._clock()
        with self._lock:
            place = self._places.setdefault((record.pathname, record.lineno), _Place(now))
            before = 0
            if now - place.began >= SECONDS:
                place.began, place.lines, before, place.dropped = now, 0, place.dropped, 0
            place.lines += 1
            if place.lines > LINES:
                place.dropped += 1
                return False
        text = record.getMessage()
        if before or len(text) > LONGEST:
            cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
            record.msg, record.args = f"{cut} ({before} lines like this one were dropped)" if before else cut, ()
        return True


def install() -> None:
    """Add a filter to every handler of the process's log."""
    flood = FloodFilter()
    for handler in logging.getLogger().handlers:
        handler.addFilter(flood)
