"""`rehome plan generate`, `rehome drain` and `rehome throttles` on real clusters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.kafka_admin.admin import KafkaAdmin
from ops.cli import main as cli
from ops.docs.searching import QUERIES
from ops.stack.errors import ExitCode
from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import where as directory_of
from tests.conformance.plan_runs.conftest import throttles
from tests.conformance.plan_runs.orchestrator import Orchestrator
from tests.conformance.plan_runs.test_plans import SLOW, filled, other
from tests.support.programs.temporal import TemporalServer
from workflows.model import names
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

Rehome = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rehome(
    cluster: Cluster,
    orchestrator: Orchestrator,
    temporal_server: TemporalServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Rehome:
    """Run a command on the cluster; return its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REHOME_BOOTSTRAP_SERVER", cluster.bootstrap)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("REHOME_CLUSTER", orchestrator.name)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_generated_plan_is_one_that_the_cluster_can_carry_out(cluster: Cluster, rehome: Rehome) -> None:
    topic = filled(cluster, 3, megabytes=0)
    path = directory_of(cluster, 3, topic)
    code, out, err = rehome("plan", "generate", "--drain", f"3:{path}", "--keep-free", "0", "--output", "plan.json")
    assert code == 0 and "written to plan.json" in out, err
    code, out, err = rehome("plan", "check", "plan.json", "--json")
    assert code == 0 and json.loads(out)["moves"] >= 1, err
    code, out, err = rehome("plan", "generate", "--drain", "3:/not/one/of/them")
    assert (code, out) == (ExitCode.REFUSED, "") and "'/not/one/of/them' is not one of the log.dirs of broker 3" in err


def test_drained_directory_is_safe_to_pull(cluster: Cluster, orchestrator: Orchestrator, rehome: Rehome) -> None:
    topic = filled(cluster, 3)
    path = directory_of(cluster, 3, topic)
    assert path is not None
    code, out, err = rehome("drain", "3", path, "--throttle-between-directories", "400kB")
    assert code == 0 and f"wait for its end with: rehome drain 3 {path} --wait" in out, err
    # The second call finds the open run and waits for it.
    code, out, err = rehome("drain", "3", path, "--wait", "--throttle-between-brokers", "1MB")
    assert code == 0, err
    assert "an evacuation of the directory is open already" in err and "those of this call are not applied" in err
    assert f"safe to pull: log directory {path} of broker 3 is empty" in out
    certificate = Path(out.split("certificate: ")[1].splitlines()[0])
    assert json.loads(certificate.read_text())["safe_to_pull"]
    assert directory_of(cluster, 3, topic) not in (None, path)
    code, out, err = rehome("drain", "3", path, "--wait", "--json")
    assert code == 0 and json.loads(out)["empty"], err
    code, out, err = rehome("drain", "3", "/not/one/of/them")
    assert (code, out) == (ExitCode.REFUSED, "") and err.count("error: ") == 1
    assert "failed (PlanRefused): '/not/one/of/them' is not one of the log.dirs of broker 3" in err


def test_throttles_are_shown_with_their_holder_and_leftovers_are_removed(
    cluster: Cluster, orchestrator: Orchestrator, rehome: Rehome
) -> None:
    topic, moving = filled(cluster, 2, megabytes=0), filled(cluster, 1)
    with KafkaAdmin(cluster.bootstrap) as admin:
        admin.change_configs("broker", {"2": {RATES[0]: ("SET", "77777")}})
        admin.change_configs("topic", {topic: {LISTS[0]: ("SET", "0:2")}})
    # A broker responds before it has applied the change to itself.
    set_before = {"2": {RATES[0]: "77777"}}, {topic: {LISTS[0]: "0:2"}}
    cluster.eventually(lambda: tuple(throttles(cluster).values()) == set_before, "the leftovers are there")
    before = throttles(cluster)
    plan = orchestrator.submit((moving, 0, [1], [other(cluster, moving, 1)]), options=SLOW)
    plan.wait_running(f"{moving}-0@1")
    cluster.eventually(lambda: MOVE_RATE in throttles(cluster)["nodes"].get("1", {}), "the throttle is held")
    code, out, err = rehome("throttles", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["keeper"] == names.throttle_keeper_id(orchestrator.name)
    rate = next(row for row in found["rates"] if (row["broker"], row["config"]) == (1, MOVE_RATE))
    assert (rate["before"], rate["value"], rate["holders"]) == (None, "200000", [plan.id])
    left: list[Any] = [(row["kind"], row["name"], row["key"], row["value"]) for row in found["leftovers"]]
    assert left == [("broker", "2", RATES[0], "77777"), ("topic", topic, LISTS[0], "0:2")]
    code, out, err = rehome("throttles", "--repair")
    assert code == 2 and "--yes is required without a terminal" in err and "77777" in out and plan.id in out
    assert throttles(cluster)["nodes"]["2"] == before["nodes"]["2"]
    code, out, err = rehome("throttles", "--repair", "--yes")
    assert code == 0 and "removed 2 leftovers" in out, err
    cluster.eventually(lambda: "2" not in throttles(cluster)["nodes"], "the leftover is gone")
    assert throttles(cluster)["nodes"]["1"][MOVE_RATE] == "200000", "what is held stays"
    plan.update("cancel")
    assert plan.result()["outcome"] == "cancelled"


def test_server_finds_plans_and_lanes_by_what_they_move(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1)
    values = {"topic": topic, "node": "1", "cluster": orchestrator.name, "now": datetime.now(UTC).isoformat()}

    async def list_(client: Client, name: str) -> set[str]:
        return {run.id async for run in client.list_workflows(QUERIES[name].of(**values))}

    def found(name: str) -> set[str]:
        """The runs of this cluster that the page's query finds."""
        runs: set[str] = orchestrator.ask(lambda client: list_(client, name))
        return {each for each in runs if each.startswith(orchestrator.name)}

    def finds(name: str, *expected: str) -> None:
        cluster.eventually(lambda: found(name) == set(expected), f"{name}: {expected}")

    options = {**SLOW, "deadline": "2026-01-01T00:00:00+01:00", "approval": "required"}
    plan = orchestrator.submit((topic, 0, [1], [other(cluster, topic, 1)]), options=options)
    lane = names.plan_lane_id(plan.id, 0)
    finds("approval", plan.id)
    finds("late", plan.id)
    plan.update("approve", {"by": "ada"})
    plan.wait_running(f"{topic}-0@1")
    finds("topic_now", lane)
    finds("node_now", lane)
    finds("approval")
    plan.update("set_options", {"deadline": "2999-01-01T00:00:00Z"})
    plan.update("pause")
    finds("paused", plan.id)
    finds("late")
    plan.update("cancel")
    assert plan.result()["outcome"] == "cancelled"
    cluster.eventually(lambda: plan.id in found("back"), "it is found by its outcome")
    finds("topic_now")
    finds("topic_ever", lane)
    assert plan.id not in found("missed")
    assert {plan.id, lane} <= found("of_cluster")


def test_plan_that_has_ended_is_verified_and_taken_back(cluster: Cluster, rehome: Rehome) -> None:
    topic = filled(cluster, 1, megabytes=0)
    source = directory_of(cluster, 1, topic)
    rows = [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [other(cluster, topic, 1)]}]
    Path("there.json").write_text(json.dumps({"version": 1, "partitions": rows}))
    code, out, err = rehome("plan", "verify", "there.json")
    assert code == 1 and f"its replica on broker 1 is in {source}" in err
    code, out, err = rehome("plan", "submit", "there.json", "--name", topic, "--wait")
    assert code == 0, err
    code, out, err = rehome("plan", "verify", "there.json")
    assert code == 0 and "1 partitions compared" in out, err
    code, out, err = rehome("plan", "rollback", topic)
    assert code == 0 and f"rehome plan watch {topic}-rollback" in out, err
    code, out, err = rehome("plan", "watch", f"{topic}-rollback")
    assert code == 0 and directory_of(cluster, 1, topic) == source, err
