"""`rehome drain` takes the options of plans, reads them before it starts a run, and hands them to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.plan import runs
from ops.stack.errors import ExitCode
from tests.ops.cli.serving import temporal
from tests.support.no_cluster import no_cluster_around
from tests.support.programs.temporal import TemporalServer, task_queue, temporal_server
from workflows.model import names
from workflows.model.plans.running.evacuation import parse

__all__ = ["task_queue", "temporal", "temporal_server"]

OPTIONS = (
    *("--throttle-between-directories", "20MB", "--throttle-between-brokers", "1MB", "--slots-per-disk", "2"),
    *("--window", "22:00-06:00 UTC", "--deadline", "2030-01-02T03:04:05Z", "--priority", "70", "--alerts", "oncall"),
)


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cluster_around(monkeypatch, tmp_path)
    monkeypatch.setattr(runs, "WORKER_PATIENCE", 0.2)


async def parameter(server: TemporalServer, workflow_id: str) -> Any:
    """What the run was started with; it is terminated."""
    client = await server.client()
    handle = client.get_workflow_handle(workflow_id)
    first = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
    await handle.terminate()
    return (await client.data_converter.decode(first.input.payloads))[0]


@pytest.mark.temporal
def test_run_has_the_options(
    temporal: tuple[str, ...], temporal_server: TemporalServer, task_queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["drain", "3", "/disks/b", *OPTIONS, *temporal]) == ExitCode.RUNNING
    assert "no worker serves it" in capsys.readouterr().err
    workflow_id = names.evacuation_id(task_queue, 3, "/disks/b")
    assert cli.run(["drain", "3", "/disks/b", "--priority", "1", *temporal]) == ExitCode.RUNNING
    assert "it keeps its own options" in capsys.readouterr().err
    request = parse(asyncio.run(parameter(temporal_server, workflow_id)))
    found = request.options
    assert (request.broker, request.directory) == (3, "/disks/b")
    assert (found.throttle_between_directories, found.throttle_between_brokers) == (20_000_000, 1_000_000)
    assert (found.slots_per_disk, found.priority, found.alerts) == (2, 70, "oncall")
    assert found.window and found.deadline is not None


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--window", "Mon-Foo", "window"), ("--deadline", "tomorrow", "deadline"), ("--priority", "101", "priority"),
        ("--throttle-between-brokers", "fast", "throttle_between_brokers"),
    ],
)  # fmt: skip
def test_bad_option_starts_nothing(option: str, value: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--cluster", "c", "--temporal-address", "127.0.0.1:1")
    assert cli.run(["drain", "3", "/disks/b", option, value, *where]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == "" and why in shown.err and "Traceback" not in shown.err
