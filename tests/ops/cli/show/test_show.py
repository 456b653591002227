"""`rehome show` on a real Temporal server, with a plan that a worker serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.dashboard.readers import TemporalReader
from ops.cli.moves.view import NodeMoves
from ops.cli.target import resolve
from ops.stack.errors import ExitCode
from tests.ops.cli.serving import served, temporal, unnamed
from tests.support.no_cluster import no_cluster_around
from tests.support.programs.temporal import task_queue, temporal_server
from tests.workflows.plans.scene import Scene
from workflows.model import names

__all__ = ["served", "task_queue", "temporal", "temporal_server", "unnamed"]


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cluster_around(monkeypatch, tmp_path)


@pytest.mark.temporal
def test_run_and_partition_are_shown(
    served: Scene, temporal: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: str, code: int = 0) -> str:
        capsys.readouterr()
        assert cli.run([*command, *temporal]) == code
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.err

    def shown(what: str) -> Any:
        return json.loads(run("show", what, "--json"))

    run("plan", "pause", "p")
    plan = shown("p")
    assert (plan["version"], plan["type"], plan["outcome"], plan["ended"]) == (1, "ReassignmentPlan", "", None)
    assert plan["now"].startswith("paused; waits for run PlanLane")
    assert [row["state"] for row in plan["rows"] if row["kind"] == "run"] == ["open", "open"]
    (pause,) = [row for row in plan["rows"] if row["kind"] == "update"]
    assert (pause["name"], pause["state"], json.loads(pause["about"])) == ("pause", "done", {"mode": "finish"})

    partition = shown("t-1")
    assert (partition["partition"], partition["complete"]) == ("t-1", True)
    (lane,) = partition["runs"]
    assert (lane["type"], lane["status"], lane["closed"]) == ("PlanLane", "open", None)
    open_lane = shown(lane["id"])
    assert open_lane["started_by"] == f"the run {plan['workflow_id']}"
    assert [each["name"] for each in open_lane["phases"]][-1] in ("requesting", "following")

    run("plan", "cancel", "p")
    run("plan", "watch", "p", code=1)
    assert [each["name"] for each in shown("p")["phases"]][-1] == "cancelling"
    told = run("show", lane["id"])
    assert told.startswith(f"{lane['id']}: PlanLane, ") and "cancel_moves" in told
    assert shown("t-1")["runs"][0]["closed"] is not None
    message = run("show", "nothing-7", code=ExitCode.FAILED)
    assert "the run nothing-7 does not exist, and no run of the partition nothing-7 was found" in message


@pytest.mark.temporal
def test_plan_of_a_cluster_without_a_name_is_found_by_kafkas_id(
    served: Scene, unnamed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = names.plan_id(served.name, "p")
    for what in ("p", plan):
        assert cli.run(["show", what, *unnamed, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["workflow_id"] == plan
    assert cli.run(["show", "t-1", *unnamed, "--json"]) == 0
    (lane,) = json.loads(capsys.readouterr().out)["runs"]
    assert lane["type"] == "PlanLane" and lane["id"].startswith(plan)
    assert cli.run(["cancel", "t-1", *unnamed]) == ExitCode.REFUSED
    assert f"it is a lane of the plan {plan}; use: rehome plan cancel {plan}" in capsys.readouterr().err
    reader = TemporalReader(resolve(None, unnamed[1], unnamed[3]), NodeMoves)
    try:
        assert [each.workflow_id for each in reader.read().plans] == [plan]
    finally:
        reader.close()
