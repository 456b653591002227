"""A controller's worker that has nothing in memory: every task begins with a replay of all before it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Replayer

import workflows
from tests.support.programs.temporal import TemporalServer
from tests.workflows.controller.small_worker import SLEEP, Sleeper
from tests.workflows.controller.test_cluster import Scene, run, topic
from tests.workflows.fakes import FakeMember, orchestrator
from workflows.runner import workflow_runner

pytestmark = pytest.mark.temporal

STARTS = 5
QUIET = 0.5  # seconds until the last answer to a push has been taken in, and has led to nothing
FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


def test_cold_worker_produces_the_commands_of_the_first_worker(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    """An update right after a task that led to nothing (the last answer to a push) is handled after it, as before."""

    async def scene(it: Scene) -> None:
        it.workers[0] = await it._enter(orchestrator(it.client, it.name, it.prober.probe_node, cached=0))
        handle = await it.up()
        for number in range(STARTS):
            await it.members[0].submit(handle, topic(f"t{number}"))
            await asyncio.sleep(QUIET)
            again = FakeMember(3, f"start {number}")
            it.members[2] = it.prober.members[3] = again
            await again.submit(handle, again.registration(""))
            await asyncio.sleep(QUIET)
        events = [event async for event in handle.fetch_history_events()]
        assert [event.event_id for event in events if event.event_type == FAILED] == []
        history = await handle.fetch_history()
        await Replayer(workflows=workflows.ALL, workflow_runner=workflow_runner()).replay_workflow(history)

    run(temporal_server, task_queue, scene)


@contextmanager
def worker_process(server: TemporalServer, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.workflows.controller.small_worker", server.address, queue]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_direct_query_to_a_cold_worker_changes_no_command(temporal_server: TemporalServer, task_queue: str) -> None:
    """It is answered with all events there are; what followed from them would come before an update that a replay
    handles first.
    """

    async def scene() -> None:
        client = await Client.connect(temporal_server.address)
        handle = await client.start_workflow(Sleeper.run, id=task_queue, task_queue=task_queue)
        with worker_process(temporal_server, task_queue):
            assert await handle.query(Sleeper.count) == 0
        # Nobody is there: the query waits for the killed worker, then for another one; meanwhile the timer fires.
        asked = asyncio.create_task(handle.query(Sleeper.count))
        with worker_process(temporal_server, task_queue):
            await asyncio.sleep(SLEEP + 0.2)
            assert await asked == 0
            assert await handle.execute_update(Sleeper.submit) == 1
            assert await handle.execute_update(Sleeper.submit) == 2
            assert await handle.result() == 2
        await Replayer(workflows=[Sleeper], workflow_runner=workflow_runner()).replay_workflow(
            await handle.fetch_history()
        )

    asyncio.run(scene())
