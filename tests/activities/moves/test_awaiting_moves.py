"""The activity `await_moves`: which copies it waits for, and which not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.moves import awaiting_moves
from activities.moves.awaiting_moves import AwaitMoves
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState, MoveStatus
from workflows.model.calls import AwaitMovesCall

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def waited(states: dict[TopicPartition, MoveState | None], seconds: float = 0.5) -> bool:
    """Whether it goes on waiting for these replicas."""

    def status(tp: TopicPartition) -> MoveStatus | None:
        state = states[tp]
        return None if state is None else MoveStatus(tp, state)

    node: Any = SimpleNamespace(engine=SimpleNamespace(status=status))

    async def main() -> bool:
        call = AwaitMovesCall(1, [[tp.topic, tp.partition] for tp in states])
        work = ActivityEnvironment().run(AwaitMoves(cast(Any, node)).await_moves, call)
        try:
            await asyncio.wait_for(work, seconds)
        except TimeoutError:
            return True
        return False

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (None, False),
        (MoveState.QUEUED, True),
        (MoveState.COPYING, True),
        (MoveState.THROTTLED, True),
        (MoveState.CAUGHT_UP, True),
        (MoveState.STOPPED, True),
        (MoveState.SWAPPING, True),
        (MoveState.FAILED, True),
        (MoveState.SUSPENDED, True),
        (MoveState.SWAPPED, False),
        (MoveState.CANCELLED, False),
        (MoveState.IN_PLACE, False),
    ],
)
def test_await_moves_waits_for_open_copies(state: MoveState | None, waits: bool) -> None:
    assert waited({T0: None, T1: state}) == waits


@pytest.mark.parametrize("state", [MoveState.FAILED, MoveState.SUSPENDED, MoveState.STOPPED])
def test_await_moves_gives_up_a_failed_copy(state: MoveState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting_moves, "GIVEN_UP", 0.3)
    # One that an operator has stopped goes on under the same throttle.
    assert waited({T0: state}, 3.0) == (state is MoveState.STOPPED)
