"""When `rehome reassign` and `rehome move --file` submit a plan, and their sentence where they cannot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.plan import file_plan, submitting
from ops.cli.plan import kafka as plan_kafka
from ops.cli.plan import runs as plan_runs
from ops.cli.plan.file_plan import Served, decide
from ops.stack.errors import ExitCode, OpsError
from tests.ops.cli.serving import unnamed
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.programs.temporal import TemporalServer, task_queue, temporal_server
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import BEFORE, PLAN, Scene
from workflows.model import names
from workflows.model.plans import document

__all__ = ["task_queue", "temporal_server", "unnamed"]

NOBODY = "no worker serves the cluster's plans; start one with: worker.py orchestrator --command-config FILE"


@pytest.mark.parametrize(
    ("asked", "served", "plan", "why_not"),
    [
        (None, Served(plans=True, controller=False), True, ""),
        (None, Served(plans=True, controller=True), False, ""),
        (None, Served(plans=False, controller=True), False, ""),
        (None, Served(plans=False, controller=False), False, NOBODY),
        (None, "no Temporal is known", False, "no Temporal is known"),
        (True, Served(plans=True, controller=True), True, ""),
        (False, Served(plans=True, controller=False), False, ""),
    ],
)
def test_plan_is_submitted_where_a_worker_serves_it(
    asked: bool | None, served: Served | str, plan: bool, why_not: str
) -> None:
    found = decide(asked, served)
    assert found.plan is plan
    assert found.why_not == (f"this is not a plan that outlives the command: {why_not}" if why_not else "")


@pytest.mark.parametrize("served", [Served(plans=False, controller=True), Served(plans=False, controller=False), "x"])
def test_plan_that_was_asked_for_and_cannot_be_submitted_is_an_error(served: Served | str) -> None:
    with pytest.raises(OpsError, match="no plan was submitted"):
        decide(True, served)


def test_name_is_that_of_the_partitions() -> None:
    first = document.read({"version": 1, "partitions": PLAN})
    slow = document.read({"version": 1, "partitions": PLAN, "options": {"slots_per_disk": 3}})
    other = document.read({"version": 1, "partitions": PLAN[:1]})
    found = [file_plan.name_of(Path("/x/july.json"), each) for each in (first, slow, other)]
    assert found[0] == found[1] != found[2] and found[0].startswith("july-")


def test_plan_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["move", "orders-0", "--node", "1", "--to", "/d", "--plan"]) == ExitCode.USAGE
    assert "--plan and --no-plan require --file FILE" in capsys.readouterr().err


@pytest.mark.temporal
def test_file_is_a_plan_and_the_same_call_finds_it_again(
    temporal_server: TemporalServer,
    task_queue: str,
    unnamed: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_kafka, "AdminPool", lambda _: KafkaInMemory(BEFORE))
    file = tmp_path / "july.json"
    file.write_text(json.dumps({"version": 1, "partitions": PLAN, "options": {"lane_moves": 1, "slots_per_disk": 2}}))

    async def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert await asyncio.to_thread(cli.run, [*arguments, *unnamed, "--json"]) == code
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else shown.err

    async def unserved(it: Scene) -> None:
        """An open plan that waits: no call goes past it to the brokers, which would begin at once."""
        workflow_id = names.plan_id(task_queue, file_plan.name_of(file, submitting.read(file)))
        queue = names.plans_queue(task_queue)
        waits = await it.client.start_workflow(names.REASSIGNMENT_PLAN, {}, id=workflow_id, task_queue=queue)
        with monkeypatch.context() as patience:
            patience.setattr(plan_runs, "QUERY_SECONDS", 1.0)
            patience.setattr(plan_runs, "UPDATE_SECONDS", 1.0)
            assert f"no worker responds for {workflow_id}" in await run("reassign", str(file), code=ExitCode.TIMEOUT)
            with_cancel = await run("reassign", str(file), "--cancel", code=ExitCode.TIMEOUT)
        assert "no response to cancel within 1 s; does a worker serve the plan?" in with_cancel
        await waits.terminate()

    async def scene() -> None:
        it = Scene(await temporal_server.client(), task_queue, KafkaInMemory(BEFORE))
        assert await file_plan.served_by(it.client, task_queue, task_queue) == Served(plans=False, controller=False)
        assert NOBODY in await run("reassign", str(file), "--plan", code=ExitCode.FAILED)
        await unserved(it)
        it.kafka.held = True

        async def served() -> bool:
            return (await file_plan.served_by(it.client, task_queue, task_queue)).plans

        async with it.worker():
            await until_true(served)
            stale = await run("move", "--file", str(file), code=ExitCode.REFUSED)
            assert "t-1: the plan has the replicas 2, the cluster 1, and this plan changes directories alone" in stale
            assert "or submit it without the option (rehome reassign FILE, rehome plan submit FILE)" in stale
            late = await run("move", "--file", str(file), "--timeout", "5", code=ExitCode.USAGE)
            assert "--timeout cannot be combined with a plan" in late
            assert await plan_runs.listed(it.client, task_queue, every=False) == []
            begun = await run("reassign", str(file), "--throttle", "1MB")
            plan = it.client.get_workflow_handle(begun["workflow_id"])
            assert begun["name"].startswith("july-")
            await it.running(plan, 2)
            again = await run("move", "--file", str(file), "--throttle", "2MB")
            assert again["workflow_id"] == begun["workflow_id"]
            options = (await plan.query("progress"))["options"]
            assert (options["throttle_between_brokers"], options["throttle_between_directories"]) == (
                1_000_000,
                2_000_000,
            )
            assert (await run("reassign", str(file), "--cancel"))["cancelling"] is True
            assert (await plan.result())["outcomes"] == {"cancelled": 2}
            assert it.kafka.placed == BEFORE

    asyncio.run(scene())
