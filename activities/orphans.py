"""Finding `.move`s that no run is at work on, and asking what became of their runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activities.starter import MoveStarter
from storage_node.ports import PlannedMove
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.move.status import MoveStatus

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks
GRACE = 5.0  # seconds a `.move` may be without an activity before its run is asked for
LONGEST_GRACE = 60.0  # what the grace grows to while the answer stays the same (a paused run)

#: States of a move that has a `.move` on disk for which somebody ought to care.
OPEN = frozenset({"queued", "copying", "throttled", "caught_up", "stopped", "failed"})


@dataclass(slots=True)
class _Seen:
    since: float
    grace: float
    owner: str


class OrphanWatch:
    """Which `.move`s have been without an activity for too long. `due` is pure but for what it remembers."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, _Seen] = {}

    def due(
        self, statuses: Iterable[MoveStatus], attached: Callable[[TopicPartition], bool], now: float
    ) -> list[MoveStatus]:
        """The moves to ask about now; `now` in seconds of any clock that only goes forward."""
        found: list[MoveStatus] = []
        alone: set[TopicPartition] = set()
        for status in statuses:
            tp = status.tp
            if str(status.state) not in OPEN or attached(tp):
                continue
            alone.add(tp)
            seen = self._seen.get(tp)
            if seen is None or seen.owner != status.owner:
                self._seen[tp] = _Seen(now, GRACE, status.owner)
            elif now - seen.since >= seen.grace:
                seen.since, seen.grace = now, min(LONGEST_GRACE, seen.grace * 2)
                found.append(status)
        for tp in self._seen.keys() - alone:
            del self._seen[tp]
        return found


def planned(status: MoveStatus) -> PlannedMove:
    """What a new run has to be told of a move that is under way already."""
    return PlannedMove(status.tp, status.source, status.directory, status.claim, status.generation, status.bytes_total)


async def watch(
    statuses: Callable[[], Iterable[MoveStatus]],
    attached: Callable[[TopicPartition], bool],
    starter: MoveStarter,
) -> None:
    """Look for moves without a run until cancelled."""
    orphans = OrphanWatch()

    def cared_for(tp: TopicPartition) -> bool:
        return starter.has(tp) or attached(tp)

    while True:
        await asyncio.sleep(LOOK)
        try:
            lone = orphans.due(statuses(), cared_for, time.monotonic())
        except Exception:
            log.exception("looking for moves without a run failed")
            continue
        for status in lone:
            starter.adopt(status.owner, status.run_id, planned(status), status.throttle)
