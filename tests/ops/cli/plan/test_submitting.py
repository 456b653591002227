"""How a plan reaches its workers: inline, or by reference to a stored text that they compare with its sha256."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.plan import submitting
from ops.cli.target import Target
from ops.stack.errors import ExitCode, OpsError, UsageError
from ops.stack.layout import StackSpec
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.programs.temporal import TemporalServer, task_queue, temporal_server
from tests.workflows.plans.scene import BEFORE, PLAN, Scene
from workflows.model.plans import document
from workflows.model.plans.document import PlanDocument
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import PlanCheck

__all__ = ["task_queue", "temporal_server"]

FILE = Path("moves.json")
SMALL = document.read({"version": 1, "partitions": PLAN})


def of_partitions(count: int) -> PlanDocument:
    entries = [{"topic": f"topic-{number % 97}", "partition": number, "replicas": [1, 2, 3]} for number in range(count)]
    return document.read({"version": 1, "partitions": entries})


def test_small_plan_travels_with_the_run(tmp_path: Path) -> None:
    assert submitting.handed_over(SMALL, FILE, tmp_path) == {"text": packing.pack(document.to_text(SMALL))}
    assert list(tmp_path.iterdir()) == []


def test_large_plan_is_stored_under_its_sha256(tmp_path: Path) -> None:
    planned = of_partitions(20_000)
    text = document.to_text(planned)
    assert 1_000_000 < len(text) < 1_500_000
    given = submitting.handed_over(planned, FILE, tmp_path)
    assert given == {"plan": document.sha256(text)}
    (stored,) = tmp_path.iterdir()
    assert (stored.name, stored.read_text()) == (given["plan"], text)
    assert "text" in submitting.handed_over(planned, FILE, None), "where no folder is known, as long as it fits"


def test_plan_whose_packed_text_is_large_is_stored_too(tmp_path: Path) -> None:
    random = Random(7)
    entries = [
        {"topic": random.randbytes(60).hex(), "partition": number, "replicas": [1, 2]} for number in range(3_000)
    ]
    planned = document.read({"version": 1, "partitions": entries})
    text = document.to_text(planned)
    assert len(text) < 1_000_000 and len(packing.pack(text)) > 200_000
    assert submitting.handed_over(planned, FILE, tmp_path) == {"plan": document.sha256(text)}
    with pytest.raises(UsageError, match="too large for a run's parameter"):
        submitting.handed_over(planned, FILE, None)


def test_plan_that_cannot_be_stored_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "LARGEST_INLINE", 10)
    with pytest.raises(OpsError, match=f"{tmp_path}/none does not exist; pass --plan-dir DIR"):
        submitting.handed_over(SMALL, FILE, tmp_path / "none")
    full = tmp_path / "full"
    full.mkdir()
    monkeypatch.setattr(submitting.PlanStore, "put", _no_space)
    with pytest.raises(OpsError, match=f"cannot be stored in {full}: No space left on device"):
        submitting.handed_over(SMALL, FILE, full)
    monkeypatch.setattr(submitting, "LARGEST_PARAMETER", 10)
    with pytest.raises(UsageError, match=r"moves.json is too large for a run's parameter \(\d+ bytes packed\); pass"):
        submitting.handed_over(SMALL, FILE, None)


def _no_space(*_: Any) -> str:
    raise OSError(28, "No space left on device")


def test_folder_is_that_of_the_option_the_environment_or_the_stack(tmp_path: Path) -> None:
    spec = StackSpec(data=tmp_path)
    stack, remote = Target("b:1", "t:1", "default", "c", spec), Target("b:1", "t:1", "default", "c")
    environment = {"REHOME_PLAN_DIR": "/env"}
    assert submitting.folder_of(stack, Path("/given"), environment) == Path("/given")
    assert submitting.folder_of(stack, None, environment) == Path("/env")
    assert submitting.folder_of(stack, None, {}) == tmp_path / "plans"
    assert submitting.folder_of(remote, None, {}) is None


@pytest.mark.temporal
def test_worker_reads_a_stored_plan_and_rejects_one_that_was_changed(
    temporal_server: TemporalServer,
    task_queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submitting, "LARGEST_INLINE", 10)
    # The command's own check of the cluster needs brokers; the worker's is real.
    monkeypatch.setattr(submitting, "checked", lambda *_: PlanCheck(""))
    FILE.write_text(json.dumps({"version": 1, "partitions": PLAN}))
    (tmp_path / "plans").mkdir()
    at = ["--cluster", task_queue, "--temporal-address", temporal_server.address, "--bootstrap-server", "127.0.0.1:1"]
    submit = ["plan", "submit", str(FILE), *at, "--plan-dir", "plans", "--json"]

    async def scene() -> None:
        it = Scene(await temporal_server.client(), task_queue, KafkaInMemory(BEFORE))
        async with it.worker():
            assert await asyncio.to_thread(cli.run, [*submit, "--name", "good", "--wait"]) == 0
            assert json.loads(capsys.readouterr().out)["outcomes"] == {"moved": 2}
            handle = it.client.get_workflow_handle(f"{task_queue}/plan/good")
            started = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
            parameter = json.loads(started.input.payloads[0].data)
            assert "text" not in parameter
            it.store.forget_all(it.store.folder)
            stored = tmp_path / "plans" / parameter["plan"]
            stored.write_text(stored.read_text().replace('"t"', '"u"'))
            monkeypatch.setattr(submitting.PlanStore, "put", lambda *_: parameter["plan"])
            assert await asyncio.to_thread(cli.run, [*submit, "--name", "bad"]) == ExitCode.FAILED
            message = json.loads(capsys.readouterr().err.strip().splitlines()[-1])["message"]
            assert "failed (InvalidPlan)" in message and "is damaged" in message
            assert "Submit the plan again, or let all workers share one plan folder" in message

    asyncio.run(scene())
