"""Whose a `.move` is, and what becomes of it by what became of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.client import WorkflowExecutionStatus as Status

from activities.moves import starter as starting
from activities.moves.starter import Fate, MoveStarter, Orphan, RunFacts, decide
from storage_node.errors import StaleClaim
from storage_node.model.ids import TopicPartition
from storage_node.ports import PlannedMove


def run(run_id: str, status: Status | None, first: str = "") -> RunFacts:
    return RunFacts(run_id, first or run_id, status)


@pytest.mark.feature("113-21")
@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (None, Fate.LEAVE),
        (Status.CONTINUED_AS_NEW, Fate.LEAVE),
        (Status.CANCELED, Fate.CANCEL),
        (Status.TERMINATED, Fate.CANCEL),
        (Status.FAILED, Fate.ADOPT),
        (Status.COMPLETED, Fate.ADOPT),
        (Status.TIMED_OUT, Fate.ADOPT),
    ],
)
def test_fate_by_the_runs_status(status: Status | None, fate: Fate) -> None:
    assert decide(run("r", status), run("r", status)) is fate


def test_unknown_run_is_adopted() -> None:
    assert decide(None, None) is Fate.ADOPT
    assert decide(None, run("another", None)) is Fate.ADOPT


def test_later_run_of_the_same_id_counts_only_if_it_continues_the_first() -> None:
    terminated = run("a", Status.TERMINATED)
    assert decide(terminated, run("b", None)) is Fate.CANCEL
    assert decide(terminated, run("b", None, first="a")) is Fate.LEAVE


PAUSED = RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
UNHEARD_OF = 77  # a status of a later server
TP = TopicPartition("t", 0)
PLANNED = PlannedMove(TP, "/a", "/b", 7, 3, 100)


class Server:
    """A client that takes starts and knows what runs they made; `status` is the server's number for that of all of
    them. It raises `errors` first, one per call.
    """

    namespace = "default"

    def __init__(self, status: int = Status.RUNNING, *errors: BaseException) -> None:
        self.status, self.errors = status, list(errors)
        self.started: list[tuple[str, object]] = []
        self.asked: list[str] = []
        self.workflow_service = SimpleNamespace(describe_workflow_execution=self._describe)

    async def start_workflow(self, workflow: str, parameter: object, *, id: str, **more: object) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.started.append((id, parameter))

    async def _describe(
        self, request: DescribeWorkflowExecutionRequest, **more: object
    ) -> DescribeWorkflowExecutionResponse:
        if self.errors:
            raise self.errors.pop(0)
        self.asked.append(request.execution.workflow_id)
        found = DescribeWorkflowExecutionResponse()
        info = found.workflow_execution_info
        info.execution.run_id = info.first_run_id = "r"
        info.status = cast(Any, self.status)
        if self.status not in (Status.RUNNING, PAUSED, UNHEARD_OF):
            info.close_time.FromSeconds(1)
        return found


def play(
    server: Server, scene: Callable[[MoveStarter], Coroutine[Any, Any, None]], stale: int = -1, over: int = -1
) -> list[int]:
    """Run a scene with a starter; answers the claims whose moves it cancelled. `stale`: one that cannot
    be, `over`: one that is over.
    """
    cancelled: list[int] = []

    async def client() -> Client:
        return cast(Client, server)

    async def cancel(tp: TopicPartition, claim: int, reason: str) -> None:
        if claim == stale:
            raise StaleClaim(f"{tp} is being moved under another claim")
        cancelled.append(claim)

    async def claim_orphan(tp: TopicPartition, claim: int) -> int:
        return 0 if claim == over else 8

    async def main() -> None:
        starter = MoveStarter("c", 1, client, cancel, claim_orphan)
        await scene(starter)
        await settled(starter)

    asyncio.run(main())
    return cancelled


async def settled(starter: MoveStarter) -> None:
    for _ in range(1000):
        if not starter.has(TP):
            return
        await asyncio.sleep(0)
    raise AssertionError("it goes on and on")


def test_state_of_a_run_started_here_is_requested_before_adoption() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.start([PLANNED], None)
        await settled(starter)
        starter.adopt([Orphan(PLANNED)])

    server = Server()
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == server.asked == ["c/move/1/t-0/7"]


def test_move_that_no_run_was_started_for_is_adopted_under_a_new_claim() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.start([replace(PLANNED, claim=6)], None)
        await settled(starter)
        starter.adopt([Orphan(PLANNED)])

    server = Server()
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == ["c/move/1/t-0/6", "c/move/1/t-0/8"] and server.asked == []


def test_copy_of_a_terminated_run_is_removed() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(PLANNED, "another", "r")])

    server = Server(Status.TERMINATED)
    assert play(server, scene) == [7] and server.started == []


@pytest.mark.parametrize("status", [PAUSED, UNHEARD_OF], ids=["paused", "of a later server"])
def test_open_run_keeps_its_move_whatever_its_status(status: int) -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(PLANNED, "another", "r")])

    server = Server(status)
    assert play(server, scene) == [] and server.started == [] and server.asked == ["another"]


def test_start_is_retried_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "FIRST_PAUSE", 0.0)

    async def scene(starter: MoveStarter) -> None:
        starter.start([PLANNED], None)

    server = Server(Status.RUNNING, ValueError("odd"), asyncio.CancelledError(), KeyError("odd"))
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == ["c/move/1/t-0/7"]


def test_describe_is_retried_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "FIRST_PAUSE", 0.0)

    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(PLANNED, "another", "r")])

    server = Server(Status.TERMINATED, ValueError("odd"), asyncio.CancelledError())
    assert play(server, scene) == [7] and server.started == []


def others(count: int) -> list[PlannedMove]:
    return [replace(PLANNED, partition=TopicPartition("t", number)) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "runs"),
    [(1, ["c/move/1/t-0/8"]), (50, ["c/move/1/t-0+49/8"]), (60, ["c/move/1/t-0+49/8", "c/move/1/t-50+9/8"])],
)
def test_moves_of_a_killed_node_are_adopted_in_lanes(count: int, runs: list[str]) -> None:
    """A run for each would take the server minutes, and every change of the cluster would wait for it."""

    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(move) for move in others(count)])

    server = Server()
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == runs and server.asked == []


def test_hanging_disk_delays_no_lane_of_another_disk() -> None:
    hangs = others(2)
    goes = [replace(PLANNED, partition=TopicPartition("u", number), source="/c") for number in range(2)]
    server = Server()

    async def claim_orphan(tp: TopicPartition, claim: int) -> int:
        if tp.topic == "t":
            await asyncio.Event().wait()
        return 8

    async def client() -> Client:
        return cast(Client, server)

    async def main() -> None:
        starter = MoveStarter("c", 1, client, cast(Any, None), claim_orphan)
        starter.adopt([Orphan(move) for move in (*hangs, *goes)])
        for _ in range(1000):
            await asyncio.sleep(0)
        assert starter.has(TP) and not starter.has(goes[0].partition)
        await starter.close()

    asyncio.run(main())
    assert [id for id, _ in server.started] == ["c/move/1/u-0+1/8"]


def test_move_cancelled_during_the_request_is_not_adopted() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(move) for move in (PLANNED, replace(others(2)[1], claim=3))])

    server = Server()
    assert play(server, scene, over=3) == []
    assert [id for id, _ in server.started] == ["c/move/1/t-0/8"]


def test_owners_state_is_requested_once() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(move, "another", "r") for move in others(9)])

    server = Server(Status.FAILED)
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == ["c/move/1/t-0+8/8"] and server.asked == ["another"]


def test_failed_cancel_does_not_stop_the_others() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(replace(move, claim=number), "another", "r") for number, move in enumerate(others(3))])

    server = Server(Status.TERMINATED)
    assert play(server, scene, stale=1) == [0, 2] and server.started == []


def test_adopting_runs_have_the_moves_throttle() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt([Orphan(move, "", "", throttle) for move, throttle in zip(others(3), (5, None, 5), strict=True)])

    server = Server()
    assert play(server, scene) == []
    limits = {id: {row.throttle for row in cast(Any, parameter)} for id, parameter in server.started}
    assert limits == {"c/move/1/t-0+1/8": {5}, "c/move/1/t-1/8": {None}}
