"""Who copies next.

Order: by source directory and target directory (a lane of moves from one disk to another is worked through before the
next begins), then topic and partition. Before that comes what keeps disks apart: with several movers, a move whose
two disks nobody else uses goes first.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from storage_node.move.stall import TOLD, Ahead
from storage_node.types import TopicPartition


@dataclass(frozen=True, order=True, slots=True)
class Waiting:
    """A move that wants a mover; sorts in the order in which moves are taken."""

    source: str
    target: str
    tp: TopicPartition


def choose(waiting: Iterable[Waiting], running: Iterable[Waiting], slots: int) -> Waiting | None:
    """The next move to start, or None when all slots are taken or nothing waits."""
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
    """The queue as it is now, for all who ask until it changes: each of thousands that wait wants its place told."""

    running: tuple[tuple[TopicPartition, str, str], ...]
    load: dict[str, int]
    keys: list[_Key] = field(default_factory=list)
    waiting: tuple[TopicPartition, ...] = ()  # the first of them

    def key(self, move: Waiting) -> _Key:
        load = self.load.get(move.source, 0) + self.load.get(move.target, 0)
        return load, move.source, move.target, move.tp.topic, move.tp.partition


class MoveScheduler:
    """The queue in front of the movers: at most `slots` copies at a time. Thread-safe."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError("at least one mover is needed")
        self.slots = slots
        self._waiting: set[Waiting] = set()
        self._running: set[Waiting] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._order: _Order | None = None

    def add(self, move: Waiting) -> None:
        """Queue a move; one that waits already is left where it is."""
        with self._changed:
            self._waiting.add(move)
            self._order = None
            self._changed.notify()

    def remove(self, move: Waiting) -> None:
        """Take a move out of the queue; one that runs goes on until its mover calls `done`."""
        with self._changed:
            self._waiting.discard(move)
            self._order = None

    def take(self) -> Waiting | None:
        """Wait for the next move and take it; None once closed. Call `done` with it afterwards."""
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

    def done(self, move: Waiting) -> None:
        """Give the slot back."""
        with self._changed:
            self._running.discard(move)
            self._order = None
            self._changed.notify_all()

    def waiting(self) -> list[Waiting]:
        """What waits, in plain order (the choice also looks at which disks are busy then)."""
        with self._changed:
            return sorted(self._waiting)

    @property
    def running(self) -> int:
        """How many copies are under way."""
        return len(self._running)

    def ahead(self, move: Waiting) -> Ahead:
        """What a move that waits is behind; with several movers as of now, since it depends on who ends first."""
        with self._changed:
            order = self._order
            if order is None:
                order = self._order = self._in_order()
        count = bisect_left(order.keys, order.key(move))
        return Ahead(order.running, order.waiting[: min(count, TOLD)], self.slots, max(0, count - TOLD))

    def _in_order(self) -> _Order:
        """What waits, in the order in which it will be taken."""
        running = sorted(self._running)
        load: dict[str, int] = {}
        if self.slots > 1:
            for busy in running:
                load[busy.source] = load.get(busy.source, 0) + 1
                load[busy.target] = load.get(busy.target, 0) + 1
        order = _Order(tuple((busy.tp, busy.source, busy.target) for busy in running), load)
        order.keys.extend(sorted(map(order.key, self._waiting)))
        return replace(order, waiting=tuple(TopicPartition(key[3], key[4]) for key in order.keys[:TOLD]))

    def close(self) -> None:
        """Let every waiting mover go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
