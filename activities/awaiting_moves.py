"""The activity `await_moves`: wait until replicas are not being copied between this node's directories any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from temporalio import activity

from activities.errors import disowned, expected
from storage_node.move.status import MoveState, MoveStatus
from storage_node.types import TopicPartition
from workflows import errors as types
from workflows.model import calls
from workflows.model.calls import AwaitMovesCall

if TYPE_CHECKING:
    from storage_node.node import Node

HEARTBEAT = 4.0  # seconds between two heartbeats
QUICKEST_LOOK, SLOWEST_LOOK = 0.1, 1.0  # seconds between two looks; grows with the time the moves take
#: Seconds after which a copy that has failed, or whose directory is gone, is not waited for: by then its run has ended,
#: or tries again.
GIVEN_UP = 30.0

_OVER = (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)
_HALTED = (MoveState.FAILED, MoveState.SUSPENDED)


class AwaitMoves:
    """Bound to one running node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @activity.defn(name=calls.AWAIT_MOVES)
    async def await_moves(self, call: AwaitMovesCall) -> None:
        """Return once nothing of these replicas is being copied; a copy that is paused or stopped is waited for."""
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
                    raise expected("the node stops", types.NODE_RESTARTED)
                await asyncio.sleep(min(SLOWEST_LOOK, max(QUICKEST_LOOK, (now - started) / 20)))
        except asyncio.CancelledError:
            if (error := disowned()) is not None:
                raise error from None
            raise

    def _left(self, waiting: dict[TopicPartition, float]) -> dict[TopicPartition, float]:
        """The replicas that are still being copied, each with the time since when its copy is halted (0: it is not)."""
        found = ((tp, since, self._node.engine.status(tp)) for tp, since in waiting.items())
        return dict(_still(found, time.monotonic()))


def _still(
    found: Iterable[tuple[TopicPartition, float, MoveStatus | None]], now: float
) -> Iterable[tuple[TopicPartition, float]]:
    for tp, since, status in found:
        if status is None or status.state in _OVER:
            continue
        halted = (since or now) if status.state in _HALTED else 0.0
        if not halted or now - halted < GIVEN_UP:
            yield tp, halted
