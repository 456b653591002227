"""Whose a `.move` is, and what becomes of it by what became of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.client import WorkflowExecutionStatus as Status

from activities.starter import Fate, MoveStarter, RunFacts, decide
from storage_node.ports import PlannedMove
from storage_node.types import TopicPartition


def run(run_id: str, status: Status, first: str = "") -> RunFacts:
    return RunFacts(run_id, first or run_id, status)


@pytest.mark.feature("113-21")
@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (Status.RUNNING, Fate.LEAVE),
        (Status.CANCELED, Fate.CANCEL),
        (Status.TERMINATED, Fate.CANCEL),
        (Status.FAILED, Fate.ADOPT),
        (Status.COMPLETED, Fate.ADOPT),
        (Status.TIMED_OUT, Fate.ADOPT),
    ],
)
def test_by_status(status: Status, fate: Fate) -> None:
    assert decide(run("r", status), run("r", status)) is fate


def test_an_unknown_run_is_adopted() -> None:
    assert decide(None, None) is Fate.ADOPT
    assert decide(None, run("another", Status.RUNNING)) is Fate.ADOPT


def test_a_later_run_of_the_same_id_counts_only_if_it_continues_the_first() -> None:
    terminated = run("a", Status.TERMINATED)
    assert decide(terminated, run("b", Status.RUNNING)) is Fate.CANCEL
    assert decide(terminated, run("b", Status.RUNNING, first="a")) is Fate.LEAVE


TP = TopicPartition("t", 0)
PLANNED = PlannedMove(TP, "/a", "/b", 7, 3, 100)


class Server:
    """A client that takes starts and knows what runs they made; `fate` is the status of all of them."""

    def __init__(self, status: Status = Status.RUNNING) -> None:
        self.status = status
        self.started: list[tuple[str, object]] = []
        self.asked: list[str] = []

    async def start_workflow(self, workflow: str, parameter: object, *, id: str, **more: object) -> None:
        self.started.append((id, parameter))

    def get_workflow_handle(self, workflow_id: str, **more: object) -> SimpleNamespace:
        async def describe() -> SimpleNamespace:
            self.asked.append(workflow_id)
            raw = SimpleNamespace(workflow_execution_info=SimpleNamespace(first_run_id="r"))
            return SimpleNamespace(run_id="r", status=self.status, raw_description=raw)

        return SimpleNamespace(describe=describe)


def play(server: Server, scene: Callable[[MoveStarter], Coroutine[Any, Any, None]]) -> list[int]:
    """Run a scene with a starter; answers the claims whose moves it cancelled."""
    cancelled: list[int] = []

    async def client() -> Client:
        return cast(Client, server)

    async def cancel(tp: TopicPartition, claim: int, reason: str) -> None:
        cancelled.append(claim)

    async def next_claim(tp: TopicPartition) -> int:
        return 8

    async def main() -> None:
        starter = MoveStarter("c", 1, client, cancel, next_claim)
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


def test_a_run_that_was_started_here_is_asked_for_before_its_move_is_given_to_another() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.start([PLANNED], None)
        await settled(starter)
        starter.adopt("", "", PLANNED)

    server = Server()
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == server.asked == ["c/move/1/t-0/7"]


def test_a_move_that_no_run_was_started_for_is_adopted_under_a_new_claim() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.start([replace(PLANNED, claim=6)], None)
        await settled(starter)
        starter.adopt("", "", PLANNED)

    server = Server()
    assert play(server, scene) == []
    assert [id for id, _ in server.started] == ["c/move/1/t-0/6", "c/move/1/t-0/8"] and server.asked == []


def test_the_copy_of_a_terminated_run_is_removed() -> None:
    async def scene(starter: MoveStarter) -> None:
        starter.adopt("somebody's", "r", PLANNED)

    server = Server(Status.TERMINATED)
    assert play(server, scene) == [7] and server.started == []
