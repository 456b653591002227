"""Workers that are run side by side: one that does not shut down is left behind, and another one takes its place."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.temporal.serving import WorkerHangs, serve
from tests.support.programs.temporal import TemporalServer
from workflows import options

pytestmark = pytest.mark.temporal

#: What holds up `Stuck`, beyond the reach of the SDK: its thread waits in C code, as one that gets no processor does.
RELEASED = threading.Event()
HELD = threading.Event()


@workflow.defn(name="Stuck")
class Stuck:
    """Holds up its thread until released."""

    @workflow.run
    async def run(self) -> None:
        """Hold up the thread."""
        HELD.set()
        while not RELEASED.is_set():
            try:
                RELEASED.wait()
            except BaseException:  # the detector's interruption, which may come at any line
                continue


@workflow.defn(name="Prompt")
class Prompt:
    """Ends at once."""

    @workflow.run
    async def run(self) -> str:
        """Answer."""
        return "done"


def _worker(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Stuck, Prompt], workflow_runner=UnsandboxedWorkflowRunner())


def test_worker_that_does_not_shut_down_is_abandoned_and_replaced(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene() -> None:
        client = await temporal_server.client()
        reason = asyncio.Event()
        serving = asyncio.create_task(serve([_worker(client, task_queue)], _set(reason), shutdown=3))
        try:
            await client.start_workflow("Stuck", id=f"{task_queue}-stuck", task_queue=task_queue)
            assert await asyncio.to_thread(HELD.wait, 30)
            reason.set()
            began = time.monotonic()
            with pytest.raises(WorkerHangs, match=f"{task_queue} did not shut down within 3 s"):
                await serving
            assert 2.5 < time.monotonic() - began < 15

            again = asyncio.Event()
            next_one = asyncio.create_task(serve([_worker(client, task_queue)], _set(again)))
            answer = client.execute_workflow("Prompt", id=f"{task_queue}-prompt", task_queue=task_queue)
            assert await asyncio.wait_for(answer, 30) == "done"
            again.set()
        finally:
            RELEASED.set()
        await asyncio.wait_for(next_one, 30)

    asyncio.run(scene())


def test_workers_that_shut_down_in_time_end_without_an_error(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene() -> None:
        client = await temporal_server.client()
        reason = asyncio.Event()
        serving = asyncio.create_task(serve([_worker(client, task_queue)], _set(reason)))
        answer = client.execute_workflow("Prompt", id=task_queue, task_queue=task_queue)
        assert await asyncio.wait_for(answer, 30) == "done"
        reason.set()
        await asyncio.wait_for(serving, 30)

    asyncio.run(scene())


def test_controllers_tasks_come_before_those_of_other_runs(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene() -> None:
        client = await temporal_server.client()
        ids = [f"{task_queue}-{number}" for number in range(80)]
        for each in ids:
            await client.start_workflow("Prompt", id=each, task_queue=task_queue, priority=options.RUN_PRIORITY)
        first = f"{task_queue}-controller"
        await client.start_workflow("Prompt", id=first, task_queue=task_queue, priority=options.CLUSTER_PRIORITY)
        worker = Worker(
            client,
            task_queue=task_queue,
            workflows=[Prompt],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_workflow_tasks=2,
        )
        # The server accepts a start before its task is in the queue: the last one's must not come late.
        await asyncio.sleep(1)
        async with worker:
            done = [(await client.get_workflow_handle(each).result(), each) for each in (*ids, first)]
        ended = [(await client.get_workflow_handle(each).describe()).close_time for _, each in done]
        before = sum(1 for each in ended if each is not None and ended[-1] is not None and each < ended[-1])
        # What was on its way to the worker, and what other partitions of the queue gave it; without priorities all are.
        assert before <= len(ids) // 4

    asyncio.run(scene())


async def _set(event: asyncio.Event) -> None:
    await event.wait()
