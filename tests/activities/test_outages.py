"""Processes are killed, and go on where the disk says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from storage_node.model.error_types import ErrorType
from tests.activities.cluster import Cluster, move, running, until
from tests.support.programs.temporal import TemporalServer

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

SLOW = 1_000_000  # bytes per second
QUICK = 12.0  # seconds for a stop that waits for nothing: it takes one or two, and what it may wait for, many more


@pytest.fixture(scope="module")
def shared(temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("outages")
    with running(temporal_server, f"c-{folder.name}", folder, environment={"REHOME_TEST_PATIENCE": "2"}) as it:
        yield it


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """A cluster whose processes tests stop and kill; here all of them run."""
    if "controller" not in shared.processes:
        shared.start_controller()
    if "node-1" not in shared.processes:
        shared.start_node(1)
    shared.wait_registered()
    return shared


@pytest.mark.feature("113-21")
def test_killed_node_resumes_its_copy(temporal_server: TemporalServer, task_queue: str, tmp_path: Path) -> None:
    limit = {"replica.alter.log.dirs.io.max.bytes.per.second": str(SLOW)}
    with running(temporal_server, task_queue, tmp_path / "cluster", settings=limit) as cluster:
        cluster.create_topic("t")
        count = cluster.produce("t", 6)
        target = cluster.other_disk("t")
        cluster.start_move("m", move("t", 0, 1, target))
        cluster.wait_copying("t", at_least=1_500_000)
        told = until("the run has heard of it", lambda: cluster.progress("m")["bytes_copied"])
        cluster.set_move_rate(SLOW // 10)  # it lasts until the next attempt was seen, however long a start takes
        cluster.kill("node-1")
        found = cluster.progress("m")["replicas"][0]
        assert found["bytes_copied"] >= told and found["report_age"] > 0, "what was heard last stands"
        cluster.start_node(1)
        cluster.wait_serving()
        until("it goes on with what is there", lambda: cluster.moves()["t-0"]["bytes_resumed"] > 1_000_000)

        def second_attempt() -> Any:
            async def look(handle: WorkflowHandle[Any, Any]) -> Any:
                pending = (await handle.describe()).raw_description.pending_activities
                return next((each for each in pending if each.activity_type.name == "copy" and each.attempt > 1), None)

            return cluster.with_handle("m", look)

        ended_by = until("the next attempt is at work", second_attempt).last_failure.application_failure_info
        assert ended_by.type == ErrorType.NODE_RESTARTED, "the dead attempt is ended by the node, not by its timeout"
        assert cluster.progress("m")["bytes_copied"] >= told
        cluster.set_move_rate(None)
        (row,) = cluster.result("m")["rows"]
        assert row["outcome"] == "deleted" and row["bytes_resumed"] > 1_000_000
        assert row["attempts"] >= 2 and row["bytes_copied"] == row["bytes_total"]
        until("only the replica is left", lambda: cluster.where("t") == [f"{target.name}/t-0"])
        assert cluster.read_numbers("t", count) == list(range(count))


def test_cancel_waits_for_an_unavailable_node(cluster: Cluster) -> None:
    cluster.create_topic("away")
    cluster.produce("away", 3)
    source = cluster.disk_of("away")
    cluster.start_move("move-away", move("away", 0, 1, cluster.other_disk("away"), throttle=SLOW))
    cluster.wait_copying("away")
    cluster.kill("node-1")
    cluster.with_handle("move-away", lambda handle: handle.cancel())
    cluster.start_node(1)
    until("it is cancelled", lambda: cluster.status("move-away") == WorkflowExecutionStatus.CANCELED)
    until("nothing of it is left", lambda: cluster.where("away") == [f"{source.name}/away-0"])


def test_changes_without_a_controller_time_out_unchanged(cluster: Cluster) -> None:
    cluster.create_topic("late")
    count = cluster.produce("late", 1)
    cluster.kill("controller")
    assert cluster.alter_log_dirs(("late", 0, 1, cluster.other_disk("late"))) == ["RequestTimedOutError"]
    assert len(cluster.where("late")) == 1
    assert cluster.read_numbers("late", count) == list(range(count))
    cluster.start_controller()

    def created() -> bool:
        try:
            cluster.create_topic("after")
        except KafkaException as error:
            return "TOPIC_ALREADY_EXISTS" in str(error)
        return True

    until("the controller serves again", created)
    target = cluster.other_disk("late")
    cluster.start_move("move-late", move("late", 0, 1, target))
    assert cluster.result("move-late")["rows"][0]["outcome"] == "deleted" and cluster.disk_of("late") == target


@pytest.mark.timeout(400)
def test_terminated_controller_is_recovered_from_the_nodes(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", nodes=2) as cluster:
        cluster.create_topic("t", 4)
        before = {node: int(cluster.ask("incarnation", node)["generation"]) for node in (1, 2)}
        cluster.with_handle(cluster.name, lambda handle: handle.terminate())
        for node in (1, 2):
            cluster.wait_generation(before[node] + 1, node)
        described = cluster.query(cluster.name, "describe")
        assert described["phase"] == "serving" and described["partitions"] == 4
        cluster.create_topic("another")


def test_clean_stop_fences_the_node_at_once(cluster: Cluster) -> None:
    cluster.create_topic("clean")
    cluster.produce("clean", 3)
    cluster.start_move("move-clean", move("clean", 0, 1, cluster.other_disk("clean"), throttle=SLOW))
    cluster.wait_copying("clean")
    began = time.monotonic()
    assert cluster.stop("node-1") == 0
    assert time.monotonic() - began < QUICK
    described = cluster.query(cluster.name, "describe")
    assert described["nodes"][0]["fenced"]
    cluster.start_node(1)
    cluster.unlimited("move-clean")
    assert cluster.result("move-clean")["rows"][0]["outcome"] == "deleted"
    began = time.monotonic()
    assert cluster.stop("controller") == 0
    assert time.monotonic() - began < QUICK


def test_copies_and_clients_continue_during_a_temporal_outage(
    own_temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(own_temporal_server, task_queue, tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        count = cluster.produce("t", 8)
        target = cluster.other_disk("t")
        cluster.start_move("m", move("t", 0, 1, target, throttle=SLOW))
        at_first = cluster.wait_copying("t")["bytes_copied"]
        own_temporal_server.kill()
        until("it copies on", lambda: cluster.moves()["t-0"]["bytes_copied"] > at_first + 1_000_000)
        assert cluster.read_numbers("t", count) == list(range(count))
        own_temporal_server.start()
        cluster.unlimited("m")
        (row,) = cluster.result("m", 60)["rows"]
        assert row["outcome"] == "deleted" and cluster.disk_of("t") == target


def test_node_serves_before_temporal_is_available(
    own_temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(own_temporal_server, task_queue, tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        count = cluster.produce("t", 1)
        own_temporal_server.kill()
        cluster.kill("node-1")
        cluster.start_node(1)
        cluster.wait_serving()
        assert cluster.read_numbers("t", count) == list(range(count))
        assert cluster.stop("node-1") == 0
        cluster.start_node(1)
        cluster.wait_serving()
        own_temporal_server.start()
        cluster.wait_registered()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["node", "--config", "/nowhere/server.properties"], 1, "cannot be read"),
        (["node"], 2, "--config"),
        (["controller"], 2, "--cluster"),
        (["--help"], 0, "orchestrator"),
    ],
)
def test_bad_usage_is_one_clear_error(arguments: list[str], code: int, says: str) -> None:
    import subprocess
    import sys

    from tests.activities.cluster import ROOT

    done = subprocess.run(
        [sys.executable, str(ROOT / "worker.py"), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert says in (done.stdout if code == 0 else done.stderr) and "Traceback" not in done.stderr
