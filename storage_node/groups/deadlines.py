"""The deadlines of a group's members, in a heap."""

from __future__ import annotations

import heapq
from typing import Final

__all__ = ["Deadlines"]

_SLACK: Final = 64  # stale entries of the heap before it is rebuilt


class Deadlines:
    """Deadlines by id, in seconds of any clock.

    A heartbeat extends a deadline without moving its entry in the heap: the entry is moved once it is the earliest. So
    each id has an entry that is not later than its deadline.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        """The valid entry of each id; the others in the heap are stale."""
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, id_: str, when: float) -> None:
        """Set the deadline of an id."""
        self._due[id_] = when
        queued = self._queued.get(id_)
        if queued is None or when < queued:
            self._queued[id_] = when
            heapq.heappush(self._heap, (when, id_))
            if len(self._heap) > 2 * len(self._due) + _SLACK:
                self._rebuild()

    def clear(self, id_: str) -> None:
        """Remove the deadline of an id."""
        self._due.pop(id_, None)

    def earliest(self) -> float | None:
        """Return the earliest deadline; None without any."""
        heap = self._heap
        while heap:
            when, id_ = heap[0]
            due = self._due.get(id_)
            if self._queued.get(id_) != when:
                heapq.heappop(heap)
            elif due is None:
                heapq.heappop(heap)
                del self._queued[id_]
            elif due > when:
                self._queued[id_] = due
                heapq.heapreplace(heap, (due, id_))
            else:
                return when
        return None

    def take_due(self, now: float) -> list[str]:
        """Remove and return the ids whose deadline has passed, the earliest first."""
        found: list[str] = []
        while (when := self.earliest()) is not None and when <= now:
            id_ = self._heap[0][1]
            self.clear(id_)
            found.append(id_)
        return found

    def _rebuild(self) -> None:
        self._queued = dict(self._due)
        self._heap = [(when, id_) for id_, when in self._due.items()]
        heapq.heapify(self._heap)
