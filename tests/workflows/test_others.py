"""The small workflows, the words between workflows, and what people type into Temporal's own command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.support.programs.temporal import TemporalServer
from tests.support.steps import SHORT, limit
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import FakeExporter, FakeMember, FakeNode, FakeProber, orchestrator, until, until_true
from workflows import options
from workflows.model import calls, names

pytestmark = pytest.mark.temporal

MOVE = {"topic": "t", "partition": 0, "node": 1, "directory": "/b"}


async def _cluster(stack: AsyncExitStack, client: Client, name: str, *members: FakeMember) -> None:
    await stack.enter_async_context(orchestrator(client, name, FakeProber(*members).probe_node))
    handle = await client.start_workflow("Cluster", {}, id=name, task_queue=name)
    for member in members:
        await member.submit(handle, member.registration())


def test_move_on_an_unknown_node_fails_with_its_name(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, *SHORT, pick_up=timedelta(milliseconds=300))

    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            await _cluster(stack, client, task_queue, FakeMember(1))
            id_ = f"{task_queue}/move"
            with pytest.raises(WorkflowFailureError) as caught:
                await client.execute_workflow("MoveReplica", MOVE | {"node": 9}, id=id_, task_queue=task_queue)
            failure = caught.value.cause
            assert isinstance(failure, ApplicationError)
            assert failure.type == "UnknownNode" and "Node 9" in failure.message
            await recorded("move-unknown-node", client, id_)
            # A cancel of such a run ends as well: there is nothing to undo on a node that never was.
            handle = await client.start_workflow(
                "MoveReplica", MOVE | {"node": 9}, id=f"{id_}-2", task_queue=task_queue
            )
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(handle.result(), 20)

    asyncio.run(main())


def test_move_on_an_unavailable_node_waits_for_it(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, *SHORT, pick_up=timedelta(milliseconds=300))
    monkeypatch.setattr(options, "LOCATE_TIMEOUT", timedelta(milliseconds=300))

    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            await _cluster(stack, client, task_queue, FakeMember(2))
            handle = await client.start_workflow(
                "MoveReplica", MOVE | {"node": 2}, id=f"{task_queue}/move", task_queue=task_queue
            )

            async def asked() -> bool:
                history = await handle.fetch_history()
                return sum("locate" in str(event) for event in history.events) > 0

            await until_true(asked)
            await stack.enter_async_context(FakeNode(2).running(client, task_queue))
            assert (await asyncio.wait_for(handle.result(), 40))["rows"][0]["outcome"] == "deleted"

    asyncio.run(main())


def test_accepted_move_waits_for_its_node_without_locating_it(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has accepted a thousand moves takes its time; that they ask the controller would delay all else."""
    limit(monkeypatch, *SHORT, pick_up=timedelta(hours=1))
    limit(monkeypatch, *SHORT, accepted_pick_up=timedelta(milliseconds=300))
    monkeypatch.setattr(options, "REQUEST_REASON_AFTER", (timedelta(hours=1),))

    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            await _cluster(stack, client, task_queue, FakeMember(2))
            handle = await client.start_workflow(
                "MoveReplica", MOVE | {"node": 2, "claim": 4}, id=f"{task_queue}/move", task_queue=task_queue
            )

            async def events() -> list[str]:
                return [str(event) for event in (await handle.fetch_history()).events]

            async def asked_again() -> bool:
                return sum("ACTIVITY_TASK_SCHEDULED" in event for event in await events()) > 1

            await until_true(asked_again)
            assert not any("locate" in event for event in await events())
            await stack.enter_async_context(FakeNode(2).running(client, task_queue))
            assert (await asyncio.wait_for(handle.result(), 40))["rows"][0]["outcome"] == "deleted"
            await recorded("move-accepted", client, handle.id)

    asyncio.run(main())


def test_update_together_with_the_copys_result_does_not_end_the_run(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    """The controller's worker is away when the copy ends, and hears of both in one task."""

    async def main() -> None:
        client = await temporal_server.client()
        node = FakeNode(1)
        node.hold.clear()
        async with node.running(client, task_queue):
            async with orchestrator(client, task_queue):
                handle = await client.start_workflow("MoveReplica", MOVE, id=task_queue, task_queue=task_queue)
                await until(lambda: calls.COPY in node.order)
            node.hold.set()

            async def answered() -> bool:
                return not (await handle.describe()).raw_description.pending_activities

            await until_true(answered)
            asked = asyncio.create_task(handle.execute_update("set_throttle", {"rate": "5MB"}))
            await asyncio.sleep(0.2)  # whoever comes first, the run has to go on
            async with orchestrator(client, task_queue):
                await asked
                result = await asyncio.wait_for(handle.result(), 40)
        assert result["rows"][0]["outcome"] == "deleted"

    asyncio.run(main())


def test_export_runs_for_a_client_and_from_a_schedule(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def main() -> None:
        client = await temporal_server.client()
        exporter = FakeExporter()
        async with (
            orchestrator(client, task_queue),
            Worker(client, task_queue=names.history_queue(task_queue), activities=[exporter.export]),
        ):
            id_ = names.export_id(task_queue)
            result = await client.execute_workflow(
                "ExportHistory", {"directory": "/exports", "query": "x"}, id=id_, task_queue=task_queue
            )
            assert result["manifest"] == "/exports/manifest.json" and result["closed"] == 3
            assert exporter.seen == [calls.ExportCall("/exports", "x", "")]
            await recorded("export", client, id_)
            for wrong in ({}, {"directory": ""}, {"directory": "/e", "colour": 1}, None):
                with pytest.raises(WorkflowFailureError) as caught:
                    await client.execute_workflow("ExportHistory", wrong, id=f"{id_}-wrong", task_queue=task_queue)
                assert isinstance(caught.value.cause, ApplicationError) and caught.value.cause.type == "InvalidPlan"
            action = ScheduleActionStartWorkflow(
                "ExportHistory", {"directory": "/scheduled"}, id=f"{id_}-scheduled", task_queue=task_queue
            )
            schedule = await client.create_schedule(task_queue, Schedule(action=action, spec=ScheduleSpec()))
            await schedule.trigger()
            await until(lambda: exporter.seen[-1].directory == "/scheduled")
            await schedule.delete()

    asyncio.run(main())


def test_temporals_own_command_line(temporal_server: TemporalServer, task_queue: str) -> None:
    server = temporal_server

    def temporal(*words: str) -> Any:
        command = [str(server.program), "workflow", *words, "--address", server.address, "--output", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, (json.loads(done.stdout) if done.stdout.strip() else {}), done.stderr

    async def main() -> None:
        client = await server.client()
        node = FakeNode(1)
        node.hold.clear()
        async with orchestrator(client, task_queue), node.running(client, task_queue):
            id_ = f"{task_queue}/typed"
            start = ("start", "--type", "MoveReplica", "--task-queue", task_queue, "--workflow-id", id_)
            code, _, problem = await asyncio.to_thread(temporal, *start, "--input", json.dumps([MOVE]))
            assert code == 0, problem
            await until(lambda: calls.COPY in node.order)
            code, found, problem = await asyncio.to_thread(
                temporal, "query", "--workflow-id", id_, "--type", "progress"
            )
            assert code == 0, problem
            assert "copying" in json.dumps(found)
            code, _, problem = await asyncio.to_thread(
                temporal,
                "update",
                "execute",
                "--workflow-id",
                id_,
                "--name",
                "set_throttle",
                "--input",
                '{"rate": "1MB"}',
            )
            assert code == 0, problem
            code, _, problem = await asyncio.to_thread(temporal, "cancel", "--workflow-id", id_)
            assert code == 0, problem
            with pytest.raises(WorkflowFailureError):
                await client.get_workflow_handle(id_).result()
            assert node.order[-1] == calls.CANCEL_MOVE

    asyncio.run(main())
