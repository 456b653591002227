"""The parts of Temporal's SDK that are not its public interface, and on which workflows/runner.py relies.

They were read in the version below. When one of these tests fails after an upgrade, read what they say of the new
version before anything else: without them a worker decides in an order that no replay repeats, or fails tasks where a
machine is short of processors.
"""

from __future__ import annotations

import asyncio
import threading
from importlib.metadata import version
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker import _workflow_instance as inside

import workflows
from tests.support.programs.temporal import TemporalServer
from tests.workflows.driven import NOTICE
from tests.workflows.fakes import until_true
from workflows.runner import DEADLOCK, Runner, deciding_as_replays, workflow_runner

READ = "1.35.0"
FLAG = 2
SDK_DETECTOR = 2  # seconds
SLOWER = 3.0  # seconds
TIMER = EventType.EVENT_TYPE_TIMER_STARTED
COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


def test_sdk_is_the_version_whose_private_api_is_used() -> None:
    assert version("temporalio") == READ, (
        "temporalio was changed. Run the tests of this file, look in its release notes for the flag "
        "PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH and for the eviction of cached runs, record the golden "
        "histories again if commands differ, then name the new version here."
    )


def test_flag_is_still_the_one_of_the_single_batch_and_not_yet_the_default() -> None:
    flags = getattr(inside, "_WorkflowLogicFlag", None)
    assert flags is not None, "the SDK has no _WorkflowLogicFlag any more: find out how it orders a task's jobs now"
    flag = flags.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH
    assert flag == FLAG, f"the SDK has given the flag another number: histories carry {FLAG}, it means {int(flag)}"
    assert flag not in inside._DEFAULT_ENABLED_WORKFLOW_LOGIC_FLAGS, (
        "the SDK makes one batch of a task's jobs by default now: take the call of _set_default_workflow_logic_flag "
        "out of workflows/runner.py"
    )


@workflow.defn(name="Slow")
class Slow:
    """Takes longer for an activation than the SDK's own detector of deadlocks waits."""

    @workflow.run
    async def run(self) -> None:
        """Take as long as a machine without a processor to spare lets it."""
        threading.Event().wait(SLOWER)


@pytest.mark.temporal
def test_activation_may_take_as_long_as_a_starved_machine_needs(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene() -> None:
        client: Client = await temporal_server.client()
        runner = workflow_runner()
        worker = Worker(client, task_queue=task_queue, workflows=[Slow], workflow_runner=runner)
        decider = worker._workflow_worker
        assert decider is not None, "a worker has its part for workflows later now: set its detector where it has it"
        assert getattr(decider, "_deadlock_timeout_seconds", None) == SDK_DETECTOR, "the detector is set otherwise now"
        async with deciding_as_replays(worker, runner):
            assert decider._deadlock_timeout_seconds == DEADLOCK
            handle = await client.start_workflow("Slow", id=task_queue, task_queue=task_queue)
            await handle.result()
            kinds = [event.event_type async for event in handle.fetch_history_events()]
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds, "the SDK's detector ended an activation"

    asyncio.run(scene())


class _Counting(Runner):
    """Counts how often a run is built from its history."""

    built = 0

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self.built += 1
        return super().create_instance(det)


@pytest.mark.temporal
def test_production_settings_work_on_a_server(temporal_server: TemporalServer, task_queue: str) -> None:
    """Every task is completed under the flag, and a run is rebuilt after a direct query."""

    async def scene() -> None:
        client: Client = await temporal_server.client()
        runner = _Counting()
        worker = Worker(client, task_queue=task_queue, workflows=workflows.ALL, workflow_runner=runner)
        async with deciding_as_replays(worker, runner):
            prepared = runner.built
            handle = await client.start_workflow("DirectoryFailure", NOTICE, id=task_queue, task_queue=task_queue)

            async def waiting() -> bool:
                return any([event.event_type == TIMER async for event in handle.fetch_history_events()])

            await until_true(waiting)  # a query beside a task would get its response with that
            assert runner.built == prepared + 1
            assert (await handle.query("progress"))["phase"] == "recording"
            answer: dict[str, Any] = {"outcome": "recorded", "version": 1, "value": 1, "offline": []}
            await handle.signal("recorded", answer)
            await handle.result()
            assert runner.built == prepared + 2, (
                "a run was not evicted after a direct query: what it decided from events that no task had"
                " brought stays, and no replay agrees with it"
            )
            events = [event async for event in handle.fetch_history_events()]
        completed = [
            event.workflow_task_completed_event_attributes for event in events if event.event_type == COMPLETED
        ]
        assert list(completed[0].sdk_metadata.lang_used_flags) == [FLAG], (
            f"the first task does not carry flag {FLAG}: its jobs were not one batch"
        )

    assert isinstance(workflow_runner(), Runner)
    asyncio.run(scene())
