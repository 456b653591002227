"""Replicas move between nodes that are processes of their own, under a real controller: runs see them through."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError
from kafka.structs import TopicPartition
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from ops.kafka.tools import run as run_tool
from tests.activities.cluster import Cluster, running, until
from tests.support.programs.binary import ensure_temporal
from tests.support.programs.kafka import require_kafka
from tests.support.programs.temporal import TemporalServer
from workflows.model import names

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("reassignments")
    settings = {"replica.lag.time.max.ms": "3000"}
    with running(temporal_server, f"c-{folder.name}", folder, nodes=3, settings=settings) as it:
        yield it


def create(cluster: Cluster, topic: str, *assignment: Sequence[int]) -> None:
    """A topic with these replicas."""
    new = NewTopic(topic, len(assignment), replica_assignment=[list(each) for each in assignment])
    admin = cluster.admin()
    admin.create_topics([new], operation_timeout=20, request_timeout=25)[topic].result(30)


def reassign(cluster: Cluster, topic: str, *targets: Sequence[int] | None, client: str = "someone") -> None:
    """AlterPartitionReassignments of a client id for the topic's first partitions; raises what the cluster refuses."""
    wanted = {TopicPartition(topic, at): None if one is None else list(one) for at, one in enumerate(targets)}

    def asked() -> bool:
        """A client may ask a node that was just killed, and gives up then."""
        alive = [f"127.0.0.1:{port}" for node, port in cluster.ports.items() if f"node-{node}" in cluster.processes]
        try:
            admin = KafkaAdminClient(bootstrap_servers=alive, client_id=client)
            try:
                admin.alter_partition_reassignments(wanted)
            finally:
                admin.close()
        except KafkaConnectionError:
            return False
        return True

    until("the cluster takes the reassignment", asked)


def partition(cluster: Cluster, topic: str, index: int = 0) -> dict[str, Any]:
    """A partition as the controller has it."""
    state = cluster.query(cluster.name, "state")
    row = next(each for each in state["topics"] if each[0] == topic)[3][index]
    return {"replicas": row[1], "adding": row[2], "removing": row[3], "isr": row[7], "leader": row[8]}


def run_id(cluster: Cluster, topic: str, count: int = 1) -> str:
    """The id of the run that the controller started, once the server lists it."""
    base = f"{names.reassign_id(cluster.name, topic, 0, count)}/"

    async def listed(client: Client) -> list[str]:
        query = f'TaskQueue="{cluster.name}" AND WorkflowType="PartitionReassignment"'
        return [each.id async for each in client.list_workflows(query) if each.id.startswith(base)]

    (found,) = until(f"a run {base}", lambda: cluster.run(listed) or None)
    return found


def by_hand(cluster: Cluster, workflow_id: str, parameter: Any) -> None:
    async def start(client: Client) -> None:
        await client.start_workflow(names.PARTITION_REASSIGNMENT, parameter, id=workflow_id, task_queue=cluster.name)

    cluster.run(start)


def ended(cluster: Cluster, workflow_id: str) -> dict[int, dict[str, Any]]:
    """The rows of a run that completed."""
    return {row["partition"]: row for row in cluster.result(workflow_id, 60)["rows"]}


@pytest.mark.feature("455-20")
def test_reassignment_moves_the_replica_and_returns_its_costs(cluster: Cluster) -> None:
    create(cluster, "t", [1], [1])
    count = cluster.produce("t", 8)
    cluster.produce("t", 1, partition=1)
    reassign(cluster, "t", [3], [2, 3], client="somebody")
    rows = ended(cluster, run_id(cluster, "t", 2))
    assert [rows[at]["outcome"] for at in (0, 1)] == ["done", "done"]
    assert [rows[at]["by"] for at in (0, 1)] == ["somebody at 127.0.0.1"] * 2, "who asked for it"
    assert partition(cluster, "t") == {"replicas": [3], "adding": [], "removing": [], "isr": [3], "leader": 3}
    assert rows[0]["bytes_copied"] > 8_000_000 and rows[0]["bytes_copied"] == rows[0]["bytes_total"]
    assert rows[0]["seconds_catching_up"] > 0 and rows[0]["seconds_deleting"] >= 0, "it may be gone at the first look"
    assert [node["node"] for node in rows[0]["nodes"]] == [1, 3]
    # The run has waited until the data was gone.
    assert cluster.where("t", 0, 1) == [] and cluster.where("t", 1, 1) == []
    assert partition(cluster, "t", 1)["replicas"] == [2, 3]
    assert len(cluster.where("t", 0, 3)) == 1
    assert cluster.read_numbers("t", count) == list(range(count))


@pytest.mark.feature("113-56")
def test_reassignment_with_log_dirs_ends_in_the_directory(cluster: Cluster) -> None:
    create(cluster, "combined", [1])
    cluster.produce("combined", 2)
    there = cluster.dirs(2)
    by_hand(cluster, "combined", {"topic": "combined", "partition": 0, "replicas": [2], "log_dirs": [str(there[1])]})
    row = ended(cluster, "combined")[0]
    assert row["directories"] == [[2, str(there[1]), True]]
    assert cluster.where("combined", 0, 2) == [f"{there[1].name}/combined-0"]
    # And with a node that holds it already: only the directory changes, by a move.
    by_hand(cluster, "again", {"topic": "combined", "partition": 0, "replicas": [2], "log_dirs": [str(there[0])]})
    row = ended(cluster, "again")[0]
    assert row["outcome"] == "done" and row["directories"] == [[2, str(there[0]), True]]
    until("only the replica is left", lambda: cluster.where("combined", 0, 2) == [f"{there[0].name}/combined-0"])


def test_directory_is_reached_after_its_node_was_unavailable(cluster: Cluster) -> None:
    create(cluster, "away", [1], [1])
    for index in (0, 1):
        cluster.produce("away", 1, partition=index)
    there = [str(path) for path in cluster.dirs(2)]
    cluster.kill("node-2")
    try:
        plan = [{"topic": "away", "partition": at, "replicas": [2], "log_dirs": [there[1 - at]]} for at in (0, 1)]
        by_hand(cluster, "away", plan)
        until("the metadata has it", lambda: partition(cluster, "away")["adding"] == [2])
    finally:
        cluster.start_node(2)
        cluster.wait_registered(2)
    # Wherever the node has put them by itself.
    rows = ended(cluster, "away")
    assert [rows[at]["directories"] for at in (0, 1)] == [[[2, there[1 - at], True]] for at in (0, 1)]
    assert [cluster.disk_of("away", at, 2).name for at in (0, 1)] == [Path(there[1 - at]).name for at in (0, 1)]


def cancel(cluster: Cluster, topic: str, way: str, folder: Path) -> None:
    """Cancel the reassignment of the topic's partition, as its ways are: by Kafka's protocol, by Kafka's tool, or by
    cancelling the run through Temporal's SDK or its command line.
    """
    if way == "api":
        reassign(cluster, topic, None)
    elif way == "temporal":
        cluster.with_handle(run_id(cluster, topic), lambda handle: handle.cancel())
    elif way == "cli":
        command = [ensure_temporal(), "workflow", "cancel", "--workflow-id", run_id(cluster, topic)]
        command += ["--address", cluster.server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        plan = folder / "plan.json"
        partition = {"topic": topic, "partition": 0, "replicas": [2, 3]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        which = ("--cancel", "--reassignment-json-file", str(plan), "--preserve-throttles")
        alive = f"127.0.0.1:{cluster.ports[1]},127.0.0.1:{cluster.ports[2]}"
        code, out, err = run_tool("kafka-reassign-partitions", *which, bootstrap=alive)
        assert code == 0 and f"Successfully cancelled partition reassignment for: {topic}-0" in out, out + err


@pytest.mark.parametrize("way", ["api", "temporal", "cli", "tool"])
@pytest.mark.feature("455-28")
def test_cancel_deletes_the_added_replicas(cluster: Cluster, way: str, tmp_path: Path) -> None:
    if way == "tool":
        require_kafka()
    topic = f"cancel-{way}"
    create(cluster, topic, [1])
    cluster.produce(topic, 2)
    cluster.kill("node-3")
    try:
        reassign(cluster, topic, [2, 3], client="somebody")
        until("node 2 has caught up", lambda: partition(cluster, topic)["isr"] == [1, 2])
        cancel(cluster, topic, way, tmp_path)
        until("the metadata is as before", lambda: partition(cluster, topic)["replicas"] == [1])
        assert cluster.status(run_id(cluster, topic)) == WorkflowExecutionStatus.RUNNING, "node 3 may hold data"
    finally:
        cluster.start_node(3)
        cluster.wait_registered(3)
    with pytest.raises(WorkflowFailureError) as caught:
        cluster.result(run_id(cluster, topic))
    assert isinstance(caught.value.cause, CancelledError)
    assert [cluster.where(topic, 0, node) for node in (2, 3)] == [[], []]
    # One and the same, whoever asked for it in whichever way.
    assert cluster.status(run_id(cluster, topic)) == WorkflowExecutionStatus.CANCELED
    assert partition(cluster, topic) == {"replicas": [1], "adding": [], "removing": [], "isr": [1], "leader": 1}
    (row,) = cluster.progress(run_id(cluster, topic))["partitions"]
    told = ("outcome", "by", "original", "target", "adding", "removing", "rate", "eta_seconds", "error", "message")
    assert [row[each] for each in told] == [
        "cancelled",
        "somebody at 127.0.0.1",
        [1],
        [2, 3],
        [2, 3],
        [1],
        0.0,
        None,
        "",
        "",
    ]


@pytest.mark.feature("455-20")
def test_reassignment_continues_after_the_new_node_and_the_controller_are_killed(cluster: Cluster) -> None:
    create(cluster, "killed", [1, 2])
    count = cluster.produce("killed", 4)
    cluster.kill("node-3")
    reassign(cluster, "killed", [2, 3])
    cluster.kill("controller")
    cluster.start_node(3)
    cluster.start_controller()
    row = ended(cluster, run_id(cluster, "killed"))[0]
    assert row["outcome"] == "done" and row["replicas"] == [2, 3]
    assert cluster.read_numbers("killed", count) == list(range(count))


def led_by_others(cluster: Cluster) -> bool:
    """Whether node 1 tells its clients so."""
    topic = next(each for each in cluster.metadata(1).topics if each.name == "led")
    return all(int(each.leader_id) in (1, 2) for each in topic.partitions)


def led_by_the_third(cluster: Cluster) -> bool:
    """Whether all are in sync and led by node 3, which is asked for where they are only in sync."""
    some = [partition(cluster, "led", at) for at in (0, 19)]
    if not all(sorted(each["isr"]) == [1, 2, 3] for each in some):
        return False
    return all(each["leader"] == 3 for each in some) or prefer(cluster)


# (The benchmark of failovers has the figures; here other tests may run beside.)
@pytest.mark.parametrize("end, wanted", [("kill", 12.0), ("terminate", 8.0)])
def test_leaders_change_soon_after_a_kill_and_at_once_after_a_stop(cluster: Cluster, end: str, wanted: float) -> None:
    if end == "kill":
        create(cluster, "led", *([[3, 1, 2]] * 20))
    until("all are in sync and led by node 3", lambda: led_by_the_third(cluster), 60)
    process = cluster.processes.pop("node-3")
    began = time.monotonic()
    getattr(process, end)()
    try:
        until("all partitions have another leader", lambda: led_by_others(cluster), 20)
        took = time.monotonic() - began
    finally:
        process.wait(20)
        cluster.start_node(3)
        cluster.wait_registered(3)
    assert took < wanted, f"{took:.2f} s"


def prefer(cluster: Cluster) -> bool:
    """Elect the preferred leaders; false, since it is to be looked at again."""
    admin = cluster.admin()  # kept: its requests die with it
    admin.elect_leaders(ElectionType.PREFERRED).result(20)
    return False
