"""The exporter against a real Temporal dev server."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.api.export.v1 import WorkflowExecutions
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.history import HistoryActivities, read_manifests
from tests.support.programs.temporal import TemporalServer
from workflows.export_history import ExportHistory
from workflows.model.calls import ExportResult
from workflows.model.names import EXPORT_HISTORY, history_queue

pytestmark = pytest.mark.temporal


@activity.defn(name="echo")
async def echo(value: int) -> int:
    if value == 2:
        raise ApplicationError("two", {"rows": [{"topic": "t"}]}, type="Two", non_retryable=True)
    return value


@activity.defn(name="hold")
async def hold() -> None:
    activity.heartbeat({"rows": [{"topic": "orders", "partition": 3}]})
    await asyncio.Event().wait()


@workflow.defn(name="Echoes")
class Echoes:
    """`count` activities one after the other; -1 holds one for ever."""

    @workflow.run
    async def run(self, count: int) -> int:
        short = timedelta(seconds=30)
        if count < 0:
            await workflow.execute_activity(hold, start_to_close_timeout=timedelta(hours=1), heartbeat_timeout=short)
        for number in range(count):
            await workflow.execute_activity(echo, number, start_to_close_timeout=short)
        return count


async def listed(client: Client, queue: str, count: int) -> None:
    """Until the visibility store has caught up."""
    deadline = time.monotonic() + 30
    while (await client.count_workflows(f'TaskQueue = "{queue}" AND WorkflowType = "Echoes"')).count < count:
        assert time.monotonic() < deadline, "the runs never became visible"
        await asyncio.sleep(0.1)


async def closed(client: Client, queue: str, count: int) -> None:
    deadline = time.monotonic() + 30
    query = f'TaskQueue = "{queue}" AND WorkflowType = "Echoes" AND CloseTime IS NOT NULL'
    while (await client.count_workflows(query)).count < count:
        assert time.monotonic() < deadline, "the runs never became visible as closed"
        await asyncio.sleep(0.1)


def test_closed_and_open_runs_are_exported_as_the_server_has_them(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    asyncio.run(scenario(temporal_server, task_queue, tmp_path))


async def scenario(server: TemporalServer, queue: str, tmp_path: Path) -> None:
    client = await server.client()
    exports = HistoryActivities(client, "default", queue)
    runner = UnsandboxedWorkflowRunner()
    workflows = Worker(
        client, task_queue=queue, workflows=[Echoes, ExportHistory], activities=[echo, hold], workflow_runner=runner,
        graceful_shutdown_timeout=timedelta(0),
    )  # fmt: skip
    elsewhere = Worker(
        client, task_queue=f"{queue}-elsewhere", workflows=[Echoes], activities=[echo], workflow_runner=runner
    )
    history = Worker(client, task_queue=history_queue(queue), activities=[exports.export_histories])
    async with workflows, elsewhere, history:
        await client.execute_workflow(Echoes.run, 2, id=f"{queue}/good", task_queue=queue)
        long = await client.start_workflow(Echoes.run, 0, id=f"{queue}/foreign", task_queue=f"{queue}-elsewhere")
        await long.result()
        with pytest.raises(WorkflowFailureError):
            await client.execute_workflow(Echoes.run, 3, id=f"{queue}/bad", task_queue=queue)
        held = await client.start_workflow(Echoes.run, -1, id=f"{queue}/held", task_queue=queue)
        deadline = time.monotonic() + 30
        while not (await held.describe()).raw_description.pending_activities[:1] or not (
            (await held.describe()).raw_description.pending_activities[0].heartbeat_details.payloads
        ):
            assert time.monotonic() < deadline, "no heartbeat was seen"
            await asyncio.sleep(0.1)
        await listed(client, queue, 3)
        await closed(client, queue, 2)
        folder = str(tmp_path / "export")

        async def export(number: int) -> ExportResult:
            result: ExportResult = await client.execute_workflow(
                EXPORT_HISTORY,
                {"directory": folder},
                id=f"{queue}/x{number}",
                task_queue=queue,
                result_type=ExportResult,
            )
            return result

        first = await export(1)
        assert (first.closed, first.open) == (2, 1)
        (manifest,) = read_manifests(Path(folder))
        files = {Path(entry.name).name: entry for entry in manifest.files}
        part = WorkflowExecutions.FromString((Path(folder) / files["part-00000.pb"].name).read_bytes())
        for run, item in zip(files["part-00000.pb"].runs, part.items, strict=True):
            handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
            assert list(item.history.events) == list((await handle.fetch_history()).events)
        assert {run.workflow_id for run in files["part-00000.pb"].runs} == {f"{queue}/good", f"{queue}/bad"}
        assert [run.workflow_id for run in files["open-00000.pb"].runs] == [f"{queue}/held"]
        text = (Path(folder) / files["open-00000.json"].name).read_text()
        assert '"heartbeatDetails"' in text and '"attempt": 1' in text

        second = await export(2)
        assert (second.closed, second.open, second.events) == (0, 0, 0)
        assert second.manifest == first.manifest

        await held.terminate("enough")
        await closed(client, queue, 3)
        third = await export(3)
        assert third.open == 0 and third.closed >= 1
        newest = read_manifests(Path(folder))[-1]
        assert f"{queue}/held" in {run.workflow_id for entry in newest.files for run in entry.runs}

        with pytest.raises(WorkflowFailureError) as refused:
            await client.execute_workflow(
                EXPORT_HISTORY, {"directory": "relative/folder"}, id=f"{queue}/x4", task_queue=queue
            )
        cause = refused.value.cause.__cause__
        assert isinstance(cause, ApplicationError) and cause.type == "InvalidPlan" and "directory" in cause.message
