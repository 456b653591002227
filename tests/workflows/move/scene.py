"""A node and a controller's worker for one test of MoveReplica, and what the tests ask of a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from tests.support.programs.temporal import TemporalServer
from tests.workflows.fakes import FakeNode, orchestrator, until, until_true
from workflows.model import calls

Handle = WorkflowHandle[Any, Any]
STEPS = [calls.CREATE_MOVE, calls.COPY, calls.SWAP, calls.DELETE_REPLICA]


def one(partition: int = 0, directory: str = "/disk/b", **more: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "node": 1, "directory": directory, **more}


class Scene:
    """A node and a controller's worker for one test."""

    def __init__(self, client: Client, cluster: str, node: FakeNode) -> None:
        self.client, self.cluster, self.node = client, cluster, node
        self.id = f"{cluster}/move"

    async def controller(self) -> Handle:
        """The cluster's controller, without nodes."""
        return await self.client.start_workflow("Cluster", {}, id=self.cluster, task_queue=self.cluster)

    async def start(self, parameter: Any) -> Handle:
        return await self.client.start_workflow("MoveReplica", parameter, id=self.id, task_queue=self.cluster)

    async def phase(self, handle: Handle, phase: str) -> None:
        """Wait until the run is in a phase."""

        async def reached() -> bool:
            return bool((await handle.query("progress"))["phase"] == phase)

        await until_true(reached)

    async def copying(self, parameter: Any, count: int = 1) -> Handle:
        """A run whose copy is under way and stays so."""
        self.node.hold.clear()
        handle = await self.start(parameter)
        await until(lambda: len(self.node.calls_of(calls.COPY)) == count)
        return handle


@pytest.fixture
def play(temporal_server: TemporalServer, task_queue: str) -> Callable[..., None]:
    """Run a test's scene: `play(scene_function, node)`."""

    def run(scene: Callable[[Scene], Coroutine[Any, Any, None]], node: FakeNode | None = None) -> None:
        async def main() -> None:
            client = await temporal_server.client()
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(orchestrator(client, task_queue))
                it = await stack.enter_async_context((node or FakeNode()).running(client, task_queue))
                await asyncio.wait_for(scene(Scene(client, task_queue, it)), 60)

        asyncio.run(main())

    return run


def rows_of(result: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["partition"]: row for row in result["rows"]}


def failure_of(error: WorkflowFailureError) -> ApplicationError:
    assert isinstance(error.cause, ApplicationError)
    return error.cause
