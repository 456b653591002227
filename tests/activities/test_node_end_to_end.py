"""A node, its activities and the controller, each a real process, against a real Temporal server."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, ScheduleActionStartWorkflow, WorkflowExecutionStatus, WorkflowHandle

from tests.activities.cluster import SLOW, Cluster, failure, move, until
from workflows.model import names

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

#: Seconds in which nobody could append to a replica, at the most, when it was swapped.
SHORT_LOCK = 0.05


@pytest.mark.feature("113-01", "113-15", "113-16")
def test_moved_replica_serves_its_records_from_the_other_disk(cluster: Cluster) -> None:
    cluster.create_topic("whole")
    count = cluster.produce("whole", 3)
    source, target = cluster.disk_of("whole"), cluster.other_disk("whole")
    cluster.start_move("move-whole", move("whole", 0, 1, target))
    (row,) = cluster.result("move-whole")["rows"]
    assert row["outcome"] == "deleted" and row["directory"] == str(target) and row["source"] == str(source)
    assert row["bytes_copied"] == row["bytes_total"] > 3_000_000
    assert row["attempts"] == 1 and row["seconds_locked"] > 0
    until("only the replica is left", lambda: cluster.where("whole") == [f"{target.name}/whole-0"])
    assert cluster.read_numbers("whole", count) == list(range(count))

    def recorded() -> bool:
        state = cluster.query(cluster.name, "describe")
        ids = {path: id_ for id_, path, _ in state["nodes"][0]["directories"]}
        rows = str(cluster.query(cluster.name, "state"))
        return ids[str(target)] in rows

    until("the metadata says where the replica is", recorded)
    # What stalls the machine may fall into the lock of one swap; the next ones are as short as it should have been.
    for number in range(5):
        if row["seconds_locked"] < SHORT_LOCK:
            break
        cluster.start_move(f"move-whole-{number}", move("whole", 0, 1, cluster.other_disk("whole")))
        (row,) = cluster.result(f"move-whole-{number}")["rows"]
    assert row["seconds_locked"] < SHORT_LOCK


def test_small_replica_needs_three_steps(cluster: Cluster) -> None:
    async def steps(handle: WorkflowHandle[Any, Any]) -> list[str]:
        history = await handle.fetch_history()
        found = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
        return [name for name in found if name]

    cluster.create_topic("small")
    count = cluster.produce("small", 0.2)
    # What is small is copied with the first step if that takes no time; on a machine that stalls just then it is not.
    for number in range(5):
        run = f"move-small-{number}"
        source, target = cluster.disk_of("small"), cluster.other_disk("small")
        cluster.start_move(run, move("small", 0, 1, target))
        (row,) = cluster.result(run)["rows"]
        assert (row["outcome"], row["source"]) == ("deleted", str(source))
        assert row["bytes_copied"] == row["bytes_total"] > 200_000 and row["seconds_copying"] > 0
        assert cluster.read_numbers("small", count) == list(range(count))
        taken = cluster.with_handle(run, steps)
        if "copy" not in taken:
            break
    assert taken == ["create_move", "swap", "delete_replica"] and row["attempts"] == 1


@pytest.mark.feature("113-03", "113-04")
def test_small_moves_of_a_client_share_one_run(cluster: Cluster) -> None:
    cluster.create_topic("lane", 4)
    source = cluster.disk_of("lane", 0)
    here = [p for p in range(4) if cluster.disk_of("lane", p) == source]
    target = cluster.other_disk("lane", 0)
    assert cluster.alter_log_dirs(*(("lane", p, 1, target) for p in here)) == ["NoError"] * len(here)
    run = names.move_id(cluster.name, 1, "lane", here[0], len(here), 1)
    rows = until("the run is there", lambda: cluster.result(run))["rows"]
    assert [(row["partition"], row["outcome"]) for row in rows] == [(p, "deleted") for p in here]
    for p in here:
        assert cluster.where("lane", p) == [f"{target.name}/lane-{p}"]


@pytest.mark.feature("113-05")
def test_cancelled_run_leaves_no_copy(cluster: Cluster) -> None:
    cluster.create_topic("cancelled")
    count = cluster.produce("cancelled", 2)
    source, target = cluster.disk_of("cancelled"), cluster.other_disk("cancelled")
    cluster.start_move("move-cancelled", move("cancelled", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("cancelled")
    cluster.with_handle("move-cancelled", lambda handle: handle.cancel())
    until("it is cancelled", lambda: cluster.status("move-cancelled") == WorkflowExecutionStatus.CANCELED)
    assert f"{target.name}/cancelled-0.move" not in cluster.where("cancelled")
    until("nothing of it is left", lambda: cluster.where("cancelled") == [f"{source.name}/cancelled-0"])
    assert cluster.read_numbers("cancelled", count) == list(range(count))


def test_copy_that_is_cancelled_on_the_node_ends_its_run(cluster: Cluster) -> None:
    cluster.create_topic("local")
    cluster.produce("local", 2)
    cluster.start_move("move-local", move("local", 0, 1, cluster.other_disk("local"), throttle=SLOW))
    cluster.wait_copying("local")
    assert cluster.ask("cancel-move", topic="local", partition=0)["cancelled"]
    until("the run ends as well", lambda: cluster.status("move-local") == WorkflowExecutionStatus.CANCELED)
    assert f"{cluster.other_disk('local').name}/local-0.move" not in cluster.where("local")


def test_terminated_run_has_its_copy_removed(cluster: Cluster) -> None:
    cluster.create_topic("terminated")
    cluster.produce("terminated", 4)
    source = cluster.disk_of("terminated")
    cluster.start_move("move-term", move("terminated", 0, 1, cluster.other_disk("terminated"), throttle=SLOW))
    cluster.wait_copying("terminated")
    cluster.with_handle("move-term", lambda handle: handle.terminate())
    until("nothing of it is left", lambda: cluster.where("terminated") == [f"{source.name}/terminated-0"])


@pytest.mark.feature("113-21")
def test_copy_of_an_unknown_run_is_adopted_by_a_new_run(cluster: Cluster) -> None:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

    cluster.create_topic("unknown")
    cluster.produce("unknown", 4)
    target = cluster.other_disk("unknown")
    cluster.start_move("move-unknown", move("unknown", 0, 1, target, throttle=SLOW))
    claim = cluster.wait_copying("unknown")["claim"]

    async def forget(client: Client) -> None:
        request = DeleteWorkflowExecutionRequest(
            namespace="default", workflow_execution=WorkflowExecution(workflow_id="move-unknown")
        )
        await client.workflow_service.delete_workflow_execution(request)

    cluster.run(forget)
    adopted = names.move_id(cluster.name, 1, "unknown", 0, 1, claim + 1)
    until("a new run carries on", lambda: cluster.status(adopted) == WorkflowExecutionStatus.RUNNING)
    assert cluster.progress(adopted)["throttle"] == SLOW, "under the same limit"
    cluster.unlimited(adopted)
    (row,) = until("a new run carries on", lambda: cluster.result(adopted))["rows"]
    assert row["outcome"] == "deleted" and cluster.disk_of("unknown") == target


def test_operator_stops_and_resumes_all_moves_of_a_node(cluster: Cluster) -> None:
    cluster.create_topic("stopped")
    cluster.produce("stopped", 2)
    target = cluster.other_disk("stopped")
    cluster.start_move("move-stopped", move("stopped", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("stopped")
    assert cluster.ask("stop-moves")["stopped"]
    try:
        until("it stands still", lambda: cluster.moves()["stopped-0"]["state"] == "stopped")
        held = cluster.moves()["stopped-0"]["bytes_copied"]
        cluster.query("move-stopped", "progress")
        assert cluster.moves()["stopped-0"]["bytes_copied"] == held
        assert cluster.status("move-stopped") == WorkflowExecutionStatus.RUNNING
    finally:
        cluster.ask("resume-moves")
    cluster.unlimited("move-stopped")
    assert cluster.result("move-stopped")["rows"][0]["outcome"] == "deleted"


def test_paused_copy_stops_and_resumes_from_its_offset(cluster: Cluster) -> None:
    cluster.create_topic("paused")
    cluster.produce("paused", 2)
    target = cluster.other_disk("paused")
    cluster.start_move("move-paused", move("paused", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("paused")
    cluster.with_handle("move-paused", lambda handle: handle.execute_update("pause"))
    held = cluster.moves()["paused-0"]
    assert held["state"] == "stopped" and cluster.moves()["paused-0"]["bytes_copied"] == held["bytes_copied"]
    cluster.unlimited("move-paused")
    cluster.with_handle("move-paused", lambda handle: handle.execute_update("resume"))
    (row,) = cluster.result("move-paused")["rows"]
    assert row["outcome"] == "deleted" and row["directory"] == str(target)
    assert row["bytes_copied"] == row["bytes_total"] and row["attempts"] >= 2


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"topic": "nowhere"}, "UnknownReplica"),
        ({"partition": 7}, "UnknownReplica"),
        ({"directory": "/etc"}, "LogDirNotFound"),
        ({"node": 77}, "UnknownNode"),
    ],
)
def test_invalid_move_fails_with_one_error(cluster: Cluster, wrong: dict[str, object], kind: str) -> None:
    cluster.create_topic(f"wrong-{kind}-{len(str(wrong))}")
    topic = f"wrong-{kind}-{len(str(wrong))}"
    asked = {**move(topic, 0, 1, cluster.other_disk(topic)), **wrong}
    cluster.start_move(f"move-{topic}", asked)
    error = failure(cluster, f"move-{topic}")
    assert error.type == kind and error.message
    assert len(cluster.where(topic)) == 1


def test_second_run_of_a_replica_is_rejected_with_the_firsts_id(cluster: Cluster) -> None:
    cluster.create_topic("busy")
    cluster.produce("busy", 2)
    target = cluster.other_disk("busy")
    cluster.start_move("move-busy", move("busy", 0, 1, target, throttle=SLOW))
    cluster.wait_copying("busy")
    cluster.start_move("move-busy-too", move("busy", 0, 1, target))
    error = failure(cluster, "move-busy-too")
    assert error.type == "ReplicaBusy" and "move-busy" in error.message
    cluster.unlimited("move-busy")
    assert cluster.result("move-busy")["rows"][0]["outcome"] == "deleted"


def test_replica_already_in_place_stays(cluster: Cluster) -> None:
    cluster.create_topic("there")
    here = cluster.disk_of("there")
    cluster.start_move("move-there", move("there", 0, 1, here))
    assert cluster.result("move-there")["rows"][0]["outcome"] == "in_place"


def test_nothing_reaches_standard_output(cluster: Cluster) -> None:
    for name in ("controller", "node-1"):
        assert (cluster.folder / f"{name}.out").read_bytes() == b""


def test_controller_keeps_the_schedule_of_exports_and_the_retention(cluster: Cluster) -> None:
    async def look(client: Client) -> tuple[str, float]:
        described = await client.get_schedule_handle(f"{cluster.name}/export-schedule").describe()
        namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        action = described.schedule.action
        assert isinstance(action, ScheduleActionStartWorkflow)
        return str(action.workflow), namespace.config.workflow_execution_retention_ttl.seconds / 3600

    assert until("the schedule is there", lambda: cluster.run(look)) == ("ExportHistory", 720)
