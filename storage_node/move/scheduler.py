"""Choose the next move to copy.

Moves are ordered by source directory and target directory (all moves from one disk to another come before the next
pair), then by topic and partition. With several movers, a move whose two disks no other move uses comes first.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from storage_node.model.ids import TopicPartition
from storage_node.move.stall import NAMED, Ahead


@dataclass(frozen=True, order=True, slots=True)
class QueuedMove:
    """A move that waits for a mover; sorts in the order in which moves are taken."""

    source: str
    target: str
    tp: TopicPartition


def choose(waiting: Iterable[QueuedMove], running: Iterable[QueuedMove], slots: int) -> QueuedMove | None:
    """Return the next move to start, or None when all slots are taken or no move waits."""
    busy = list(running)
    if len(busy) >= slots:
        return None
    load: dict[str, int] = {}
    for move in busy:
        load[move.source] = load.get(move.source, 0) + 1
        load[move.target] = load.get(move.target, 0) + 1
    return min(
        waiting,
        key=lambda move: (load.get(move.source, 0) + load.get(move.target, 0), move),
        default=None,
    )


_Key = tuple[int, str, str, str, int]


@dataclass(frozen=True, slots=True)
class _Order:
    """The queue in its current order, shared by all queries until it changes: thousands of moves query their places."""

    running: tuple[tuple[TopicPartition, str, str], ...]
    load: dict[str, int]
    keys: list[_Key] = field(default_factory=list)
    waiting: tuple[TopicPartition, ...] = ()  # the first of them

    def key(self, move: QueuedMove) -> _Key:
        load = self.load.get(move.source, 0) + self.load.get(move.target, 0)
        return load, move.source, move.target, move.tp.topic, move.tp.partition


class MoveScheduler:
    """The queue in front of the movers: at most `slots` copies at a time. Thread-safe."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError("at least one mover is needed")
        self.slots = slots
        self._waiting: set[QueuedMove] = set()
        self._running: set[QueuedMove] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._order: _Order | None = None

    def add(self, move: QueuedMove) -> None:
        """Queue a move; one that waits already keeps its place."""
        with self._changed:
            self._waiting.add(move)
            self._order = None
            self._changed.notify()

    def remove(self, move: QueuedMove) -> None:
        """Remove a move from the queue; one that runs continues until its mover calls `done`."""
        with self._changed:
            self._waiting.discard(move)
            self._order = None

    def take(self) -> QueuedMove | None:
        """Wait for the next move and take it; return None once closed. Call `done` with it afterwards."""
        with self._changed:
            while not self._closed:
                # A partition that is being copied is not taken a second time, however often it is queued.
                running = {move.tp for move in self._running}
                chosen = choose((m for m in self._waiting if m.tp not in running), self._running, self.slots)
                if chosen is not None:
                    self._waiting.remove(chosen)
                    self._running.add(chosen)
                    self._order = None
                    return chosen
                self._changed.wait()
            return None

    def done(self, move: QueuedMove) -> None:
        """Free the slot."""
        with self._changed:
            self._running.discard(move)
            self._order = None
            self._changed.notify_all()

    def waiting(self) -> list[QueuedMove]:
        """Return the waiting moves in plain order (the choice also depends on which disks are busy then)."""
        with self._changed:
            return sorted(self._waiting)

    @property
    def running(self) -> int:
        """The number of copies in progress."""
        return len(self._running)

    def ahead(self, move: QueuedMove) -> Ahead:
        """Return what precedes a waiting move; with several movers only as of now, since it depends on which one ends
        first.
        """
        with self._changed:
            order = self._order
            if order is None:
                order = self._order = self._in_order()
        count = bisect_left(order.keys, order.key(move))
        return Ahead(order.running, order.waiting[: min(count, NAMED)], self.slots, max(0, count - NAMED))

    def _in_order(self) -> _Order:
        """Return the waiting moves in the order in which they will be taken."""
        running = sorted(self._running)
        load: dict[str, int] = {}
        if self.slots > 1:
            for busy in running:
                load[busy.source] = load.get(busy.source, 0) + 1
                load[busy.target] = load.get(busy.target, 0) + 1
        order = _Order(tuple((busy.tp, busy.source, busy.target) for busy in running), load)
        order.keys.extend(sorted(map(order.key, self._waiting)))
        return replace(order, waiting=tuple(TopicPartition(key[3], key[4]) for key in order.keys[:NAMED]))

    def close(self) -> None:
        """Release every waiting mover."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
