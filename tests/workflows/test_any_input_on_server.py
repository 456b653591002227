"""The same on a real server, which looks at every command as well: no workflow task of any run fails or times out."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from tests.support.programs.temporal import TemporalServer
from tests.support.runs.hand_activations import plain
from tests.workflows import nasty
from tests.workflows.driven import ALL, EXAMPLES, MADE, MOVES, NOTICE, RUN
from tests.workflows.fakes import FakeMember, FakeProber, orchestrator

pytestmark = pytest.mark.temporal

FAILED = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
#: Ids in the form of another server's, another run's, or none.
SENDERS: tuple[dict[str, Any], ...] = (
    {},
    {"workflow_id": None, "run_id": None},
    {"workflow_id": "", "run_id": ""},
    {"workflow_id": "unknown", "run_id": "nowhere"},
    {"workflow_id": "w" * 1_001, "run_id": RUN["run_id"]},
    RUN,
)

SIGNALS = {name for kind in ALL for name in workflow._Definition.must_from_class(kind).signals}

Handle = WorkflowHandle[Any, Any]


async def _mistype(handle: Handle, kind: str) -> None:
    """Every signal of a run, mistyped in many ways."""
    for name, example in EXAMPLES.items():
        owner, _, signal = name.partition(".")
        if owner != kind or signal not in SIGNALS:
            continue
        given = list(nasty.arguments(example))
        wrong = given[:: max(1, len(given) // 30)]
        if isinstance(example, dict):
            wrong += [(plain({**example, **each}),) for each in SENDERS]
        for payloads in wrong:
            try:
                await handle.signal(signal, args=[RawValue(payload) for payload in payloads])
            except RPCError as ended:  # what is nearly right may end a run as it should
                assert ended.status == RPCStatusCode.NOT_FOUND
                return


def _failed(event: HistoryEvent) -> bool:
    """Whether a task failed; one that would end its run while a signal comes in is done again with that signal."""
    cause = event.workflow_task_failed_event_attributes.cause
    return event.event_type in FAILED and cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND


def test_no_signal_fails_a_workflow_task_on_a_server(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene() -> None:
        client = await temporal_server.client()
        member = FakeMember(1)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(orchestrator(client, task_queue, FakeProber(member).probe_node))
            await stack.enter_async_context(member.running(client, task_queue))
            cluster = await client.start_workflow("Cluster", {}, id=task_queue, task_queue=task_queue)
            await member.submit(cluster, member.registration())
            handles = {"Cluster": cluster}
            for kind, parameter in (
                ("MoveReplica", MOVES),
                ("PartitionReassignment", MADE),
                ("DirectoryFailure", {**NOTICE, "node": 9}),
            ):
                handles[kind] = await client.start_workflow(
                    kind, parameter, id=f"{task_queue}/{kind}", task_queue=task_queue
                )
            for kind, handle in handles.items():
                await _mistype(handle, kind)
            assert (await cluster.query("describe"))["phase"] == "serving"
            made = {"do": "create_topics", "topics": [{"name": "after", "partitions": 1}], "validate_only": False}
            (result,) = (await member.submit(cluster, made))["results"]
            assert "error" not in result[0], result
            for kind, handle in handles.items():
                events = [event async for event in handle.fetch_history_events()]
                assert [event for event in events if _failed(event)] == [], kind

    asyncio.run(scene())
