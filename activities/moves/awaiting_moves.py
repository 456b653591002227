"""The activity `await_moves`: waits until replicas are no longer copied between this node's directories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from temporalio import activity

from activities.errors import expected, given_up
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveStatus
from workflows.model import calls
from workflows.model.calls import AwaitMovesCall

if TYPE_CHECKING:
    from storage_node.node import Node

HEARTBEAT = 4.0  # seconds between two heartbeats
QUICKEST_LOOK, SLOWEST_LOOK = 0.1, 1.0  # seconds between two checks; grows with the time the moves take
#: Seconds to wait for a copy that has failed, or whose directory is offline: after that its run has ended, or retries.
GIVEN_UP = 30.0


class AwaitMoves:
    """The activity of one running node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @activity.defn(name=calls.AWAIT_MOVES)
    async def await_moves(self, call: AwaitMovesCall) -> None:
        """Return once none of these replicas is copied; a paused or stopped copy is still waited for."""
        waiting = {TopicPartition(str(topic), int(partition)): 0.0 for topic, partition in call.replicas}
        started = beaten = time.monotonic()
        activity.heartbeat()
        try:
            while waiting := self._left(waiting):
                now = time.monotonic()
                if now - beaten >= HEARTBEAT:
                    beaten = now
                    activity.heartbeat()
                if activity.is_worker_shutdown():
                    raise expected("the node stops", ErrorType.NODE_RESTARTED)
                await asyncio.sleep(min(SLOWEST_LOOK, max(QUICKEST_LOOK, (now - started) / 20)))
        except asyncio.CancelledError:
            if (error := given_up()) is not None:
                raise error from None
            raise

    def _left(self, waiting: dict[TopicPartition, float]) -> dict[TopicPartition, float]:
        """Return the replicas that are still copied, each with the time when its copy halted (0: it has not)."""
        found = ((tp, since, self._node.engine.status(tp)) for tp, since in waiting.items())
        return dict(_still(found, time.monotonic()))


def _still(
    found: Iterable[tuple[TopicPartition, float, MoveStatus | None]], now: float
) -> Iterable[tuple[TopicPartition, float]]:
    for tp, since, status in found:
        if status is None or status.state.ended:
            continue
        halted = (since or now) if status.state.given_up else 0.0
        if not halted or now - halted < GIVEN_UP:
            yield tp, halted
