"""When each member of a group is due, in a heap: the earliest is known at once, however many there are."""

from __future__ import annotations

import heapq
from typing import Final

__all__ = ["Deadlines"]

_SLACK: Final = 64  # entries of a heap that may be stale before it is built anew


class Deadlines:
    """Deadlines by id, in seconds of any clock.

    A deadline that is put off, as heartbeats do all the time, leaves its entry where it is: only when that comes up the
    new time is looked at. So each id has an entry that is not later than its deadline.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        """The entry of each id that counts; the others in the heap are stale."""
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, id_: str, when: float) -> None:
        """The id is due then."""
        self._due[id_] = when
        queued = self._queued.get(id_)
        if queued is None or when < queued:
            self._queued[id_] = when
            heapq.heappush(self._heap, (when, id_))
            if len(self._heap) > 2 * len(self._due) + _SLACK:
                self._rebuild()

    def clear(self, id_: str) -> None:
        """The id is not due any more."""
        self._due.pop(id_, None)

    def earliest(self) -> float | None:
        """When the next id is due; None while none is."""
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
        """The ids whose deadline has passed, the earliest first; they have none any more."""
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
