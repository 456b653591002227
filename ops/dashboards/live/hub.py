"""One poller for all viewers: a thread for each source reads while the dashboard is viewed, and every viewer gets the
newest board. A slow viewer misses boards; nothing is queued for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ops.dashboards.live.board import STALE_SECONDS, Board, Freshness, Source

#: Seconds between two boards, and between two reads of a source.
SECONDS = 1.0
#: Viewers at a time: each costs a connection.
MOST_VIEWERS = 100
#: The sources are read for so many seconds after the last request.
WATCHED_SECONDS = 10.0

_log = logging.getLogger(__name__)


class SourceFailed(Exception):
    """A source did not respond; the text is one sentence."""


class Reader(Protocol):
    """Reads one source, on a thread of its own."""

    def read(self) -> Any:
        """Return what the source reports now. Raises SourceFailed."""

    def close(self) -> None:
        """Release what `read` holds, on the same thread."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The last value of a source and when it was read; `problem` is why the last read failed, "" if it succeeded."""

    value: Any = None
    as_of: float | None = None
    problem: str = ""

    def source(self, name: str, now: float) -> Source:
        """Return the state of the source: it is stale when a read fails, or takes too long."""
        late = self.as_of is not None and now - self.as_of > STALE_SECONDS
        if self.problem or late:
            return Source(name, Freshness.STALE, self.as_of, self.problem or f"{name} has not responded in time")
        return Source(name, Freshness.READING if self.as_of is None else Freshness.FRESH, self.as_of)


Compose = Callable[[Mapping[str, Reading], float], Board]


class Hub:
    """Reads the sources and hands boards to viewers. `compose` makes a board of the last reading of each source."""

    def __init__(self, readers: Mapping[str, Reader], compose: Compose, clock: Callable[[], float] = time.time) -> None:
        self._readers, self._compose, self._clock = readers, compose, clock
        self._readings = {name: Reading() for name in readers}
        self._stopped = threading.Event()
        self._watched = threading.Event()
        self._watched_until = float("-inf")
        self._published = asyncio.Condition()
        self._text, self._number = "", 0
        self.viewers = 0

    def start(self) -> None:
        """Start the threads."""
        for name, reader in self._readers.items():
            threading.Thread(target=self._follow, args=(name, reader), name=f"dashboard-{name}", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end when their reads do."""
        self._stopped.set()
        self._watched.set()

    def _follow(self, name: str, reader: Reader) -> None:
        try:
            while not self._stopped.is_set():
                self._watched.wait()
                if self._stopped.is_set():
                    return
                self._readings[name] = self._read(name, reader)
                self._stopped.wait(SECONDS)
        finally:
            reader.close()

    def _read(self, name: str, reader: Reader) -> Reading:
        try:
            return Reading(reader.read(), self._clock())
        except SourceFailed as error:
            return replace(self._readings[name], problem=str(error))
        except Exception as error:  # A defect must not end the thread: the page would show old facts as fresh ones.
            _log.exception("cannot read %s", name)
            return replace(self._readings[name], problem=f"{name}: {type(error).__name__}: {error}")

    def last(self, name: str) -> Any:
        """Return the last value of a source; None if it is unknown or was never read."""
        return self._readings.get(name, Reading()).value

    def board(self) -> dict[str, Any]:
        """Return the board of this moment, and let the sources be read for a while."""
        self.watch()
        return self._compose(dict(self._readings), self._clock()).as_json()

    def watch(self) -> None:
        """Note that the dashboard is viewed."""
        self._watched_until = time.monotonic() + WATCHED_SECONDS
        self._watched.set()

    async def publish(self) -> None:
        """Publish a board every second while the dashboard is viewed; runs until it is cancelled."""
        while True:
            if self.viewers:
                self.watch()
                await self._publish()
            elif time.monotonic() > self._watched_until:
                self._watched.clear()
            await asyncio.sleep(SECONDS)

    async def _publish(self) -> None:
        try:
            text = json.dumps(self.board(), separators=(",", ":"))
        except Exception:  # The next board may be composed; the page notices that none came.
            _log.exception("cannot compose a board")
            return
        async with self._published:
            self._text, self._number = text, self._number + 1
            self._published.notify_all()

    async def boards(self) -> AsyncIterator[str]:
        """Yield the newest board as JSON, again and again, until the viewer leaves."""
        self.viewers += 1
        try:
            seen = self._number
            await self._publish()
            while True:
                async with self._published:
                    while self._number <= seen:
                        await self._published.wait()
                    text, seen = self._text, self._number
                yield text
        finally:
            self.viewers -= 1
