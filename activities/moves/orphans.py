"""Finds `.move`s without a running activity, so that the state of their runs is requested."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activities.errors import classify_name
from activities.moves.starter import MoveStarter, Orphan
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.ports import PlannedMove

if TYPE_CHECKING:
    from storage_node.move.status import MoveStatus

LOOK = 1.0  # seconds between two checks
GRACE = 5.0  # seconds a `.move` may be without an activity before its run's state is requested
LONGEST_GRACE = 60.0  # the maximum grace, which doubles with every request (a run may be paused)


@dataclass(slots=True)
class _Seen:
    since: float | None
    grace: float


class OrphanWatch:
    """Observes how long `.move`s have been without an activity.

    The grace of a replica grows with every request, whatever the response, so that requests and new runs become rare;
    it is forgotten with the `.move`.
    """

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, _Seen] = {}

    def due(
        self, statuses: Iterable[MoveStatus], attached: Callable[[TopicPartition], bool], now: float
    ) -> list[MoveStatus]:
        """Return the moves whose runs' state to request now; `now` is in seconds of a monotonic clock."""
        found: list[MoveStatus] = []
        present: set[TopicPartition] = set()
        for status in statuses:
            tp = status.tp
            present.add(tp)
            seen = self._seen.setdefault(tp, _Seen(None, GRACE))
            if not needs_run(status) or attached(tp):
                seen.since = None
            elif seen.since is None:
                seen.since = now
            elif now - seen.since >= seen.grace:
                seen.since, seen.grace = now, min(LONGEST_GRACE, seen.grace * 2)
                found.append(status)
        for tp in self._seen.keys() - present:
            del self._seen[tp]
        return found


def needs_run(status: MoveStatus) -> bool:
    """Return whether a run could continue the move; one whose directory is offline is left to the next start."""
    if status.state is MoveState.FAILED:
        return classify_name(status.error, status.message).retryable
    return status.state.open


def orphan(status: MoveStatus) -> Orphan:
    """Return the move of this status for a new run, with its last run."""
    move = PlannedMove(status.tp, status.source, status.directory, status.claim, status.generation, status.bytes_total)
    return Orphan(move, status.owner, status.run_id, status.throttle)


async def watch(
    statuses: Callable[[], Iterable[MoveStatus]],
    attached: Callable[[TopicPartition], bool],
    starter: MoveStarter,
) -> None:
    """Find moves without a run, and have them adopted, until cancelled."""
    orphans = OrphanWatch()

    def has_run(tp: TopicPartition) -> bool:
        return starter.has(tp) or attached(tp)

    while True:
        await asyncio.sleep(LOOK)
        starter.adopt([orphan(status) for status in orphans.due(statuses(), has_run, time.monotonic())])
