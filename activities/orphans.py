"""Finding `.move`s that no run is at work on, and asking what became of their runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activities.errors import classify_name
from activities.starter import MoveStarter, Orphan
from storage_node.ports import PlannedMove
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.move.status import MoveStatus

LOOK = 1.0  # seconds between two looks
GRACE = 5.0  # seconds a `.move` may be without an activity before its run is asked for
LONGEST_GRACE = 60.0  # what the grace grows to while the answer stays the same (a paused run)

#: States of a move that has a `.move` on disk for which somebody ought to care.
OPEN = frozenset({"queued", "copying", "throttled", "caught_up", "stopped"})


@dataclass(slots=True)
class _Seen:
    since: float | None
    grace: float


class OrphanWatch:
    """Which `.move`s have been without an activity for too long.

    The grace of a replica grows with every question, whatever the answers were, so that nothing is asked or begun again
    and again; it is forgotten with the `.move`.
    """

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, _Seen] = {}

    def due(
        self, statuses: Iterable[MoveStatus], attached: Callable[[TopicPartition], bool], now: float
    ) -> list[MoveStatus]:
        """The moves to ask about now; `now` in seconds of any clock that only goes forward."""
        found: list[MoveStatus] = []
        present: set[TopicPartition] = set()
        for status in statuses:
            tp = status.tp
            present.add(tp)
            seen = self._seen.setdefault(tp, _Seen(None, GRACE))
            if not is_open(status) or attached(tp):
                seen.since = None
            elif seen.since is None:
                seen.since = now
            elif now - seen.since >= seen.grace:
                seen.since, seen.grace = now, min(LONGEST_GRACE, seen.grace * 2)
                found.append(status)
        for tp in self._seen.keys() - present:
            del self._seen[tp]
        return found


def is_open(status: MoveStatus) -> bool:
    """Whether a run could go on with it; one whose directory is offline is left for the next start to judge."""
    if str(status.state) == "failed":
        return classify_name(status.error, status.message).retryable
    return str(status.state) in OPEN


def orphan(status: MoveStatus) -> Orphan:
    """What a new run has to be told of a move that is under way already, and who was at work on it."""
    move = PlannedMove(status.tp, status.source, status.directory, status.claim, status.generation, status.bytes_total)
    return Orphan(move, status.owner, status.run_id, status.throttle)


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
        starter.adopt([orphan(status) for status in orphans.due(statuses(), cared_for, time.monotonic())])
