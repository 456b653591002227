"""A log directory fails while the node runs: the controller hears of it, and the other directories go on."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewTopic
from kafka.admin import KafkaAdminClient
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.controller.failing import FailureStarter
from ops.cli import dirs_history
from ops.cli.target import Target
from storage_node.model.commands import DirectoryFailed
from storage_node.wire.client import private_client
from tests.activities.cluster import Cluster, failure, move, running, until
from tests.support.programs.temporal import TemporalServer
from workflows.model.metadata.state import ClusterState

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC = "spread"
PARTITIONS = 6


def leaders(cluster: Cluster) -> dict[int, int]:
    """The leader of every partition of the topic, as the controller knows it."""
    rows = cluster.query(cluster.name, "state")
    return {each.index: each.leader for each in ClusterState.of(rows).topics[TOPIC].partitions}


def told_leaders(cluster: Cluster) -> dict[int, int]:
    """The same as the node tells its clients."""
    topic = cluster.admin().list_topics(TOPIC, timeout=10).topics[TOPIC]
    return {number: partition.leader for number, partition in topic.partitions.items()}


@pytest.mark.feature("858-08", "858-12")
def test_failed_directory_reports_its_offline_replicas(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", directories=3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        counts = {partition: cluster.produce(TOPIC, 0.2, partition) for partition in range(PARTITIONS)}
        failing = cluster.dirs()[1]
        lost = {partition for partition in counts if cluster.disk_of(TOPIC, partition) == failing}
        assert 0 < len(lost) < PARTITIONS
        expected = {partition: -1 if partition in lost else 1 for partition in counts}
        assert set(leaders(cluster).values()) == {1}
        until("the controller knows where all replicas are", lambda: located(cluster))

        # Its path leads nowhere any more, as that of a disk which was pulled out.
        aside = failing.with_name("pulled-out")
        failing.rename(aside)
        until("the controller has heard of it", lambda: leaders(cluster) == expected)
        until("clients are told so", lambda: told_leaders(cluster) == expected)
        status = cluster.ask("status")
        assert [each["online"] for each in status["directories"]] == [True, False, True]
        for partition, count in counts.items():
            if partition not in lost:
                assert cluster.read_numbers(TOPIC, count, partition) == list(range(count))
                cluster.produce(TOPIC, 0.1, partition)

        # A start without it changes nothing of that, and one with it brings its replicas back.
        cluster.kill("node-1")
        cluster.start_node(1)
        cluster.wait_registered()
        assert leaders(cluster) == expected
        cluster.kill("node-1")
        if failing.exists():
            failing.rename(failing.with_name("empty"))
        aside.rename(failing)
        cluster.start_node(1)
        cluster.wait_registered()
        until("all have a leader again", lambda: set(leaders(cluster).values()) == {1})
        until("clients are told so", lambda: set(told_leaders(cluster).values()) == {1})
        for partition in lost:
            assert cluster.read_numbers(TOPIC, counts[partition], partition) == list(range(counts[partition]))


def located(cluster: Cluster) -> bool:
    """Whether the controller knows the directory of every replica; it is told a moment after the creation."""
    rows = cluster.query(cluster.name, "state")
    return all(all(each.directories) for each in ClusterState.of(rows).topics[TOPIC].partitions)


def failures(cluster: Cluster) -> list[str]:
    """The ids of all runs about failed directories."""

    async def listed(client: Client) -> list[str]:
        query = f"WorkflowType = 'DirectoryFailure' AND TaskQueue = '{cluster.name}'"
        return [one.id async for one in client.list_workflows(query)]

    return cluster.run(listed)


@pytest.mark.feature("858-09", "18-09", "113-17", "113-54")
def test_failed_directory_has_a_run_and_ends_moves_with_a_reason(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", directories=3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            cluster.produce(TOPIC, 1.0, partition)
        until("the controller knows where all replicas are", lambda: located(cluster))
        failing = cluster.dirs()[1]
        lost = sorted(p for p in range(PARTITIONS) if cluster.disk_of(TOPIC, p) == failing)
        moved, other = (p for p in range(PARTITIONS) if cluster.disk_of(TOPIC, p) == cluster.dirs()[2])
        cluster.set_move_rate(100_000)
        cluster.start_move("under-way", move(TOPIC, moved, 1, failing))
        cluster.wait_copying(TOPIC, moved)

        # The next move to that disk meets an I/O error there; the controller's process is away meanwhile.
        cluster.start_move("next", move(TOPIC, other, 1, failing))
        until("the next move waits for its mover", lambda: f"{TOPIC}-{other}" in cluster.moves())
        with cluster.armed({"cancel.after_marker": "raise"}):
            cluster.kill("controller")
            with contextlib.suppress(private_client.PrivateCallFailed):
                cluster.ask("cancel-move", topic=TOPIC, partition=other)
            until("the directory is offline", lambda: cluster.ask("moves")["offline"])
        (offline,) = cluster.ask("moves")["offline"]
        assert offline["path"] == str(failing) and "Input/output error" in offline["reason"]
        for partition in range(PARTITIONS):
            if partition not in lost:
                cluster.produce(TOPIC, 0.05, partition)  # nobody else's clients notice
        cluster.start_controller()

        (run,) = until("there is a run", lambda: failures(cluster))
        assert run.startswith(f"{cluster.name}/directory-failure/1/")
        result = cluster.result(run)
        assert (result["node"], result["directory"], result["outcome"]) == (1, str(failing), "recorded")
        assert result["replicas"] == [{"topic": TOPIC, "partitions": lost}]
        assert str(failing) in result["reason"] and "Input/output error" in result["reason"]
        ended = {row["partition"]: row for row in result["moves"]}
        assert set(ended) >= {moved} and ended[moved]["workflow_id"] == "under-way"
        assert result["noticed"] <= result["recorded"] and result["directory_id"] in run
        expected = {partition: -1 if partition in lost else 1 for partition in range(PARTITIONS)}
        until("the controller has taken their leaders", lambda: leaders(cluster) == expected)
        cause = failure(cluster, "under-way")
        assert cause.type == "LogDirOffline"
        for told in (str(failing), "Input/output error"):
            assert told in cause.message and told in ended[moved]["message"]

        # It is on record: a start with the directory still away tells nobody anew.
        failing.rename(failing.with_name("pulled-out"))
        cluster.kill("node-1")
        cluster.start_node(1)
        cluster.wait_registered()
        assert failures(cluster) == [run]
        where = Target(cluster.bootstrap, temporal_server.address, "default", cluster.name)
        timeline = dirs_history.timeline(where, 1, str(failing))
        (event,) = timeline["events"]
        assert (timeline["state"], event["event"], timeline["problems"]) == ("offline", "failed", [])
        assert event["run"]["workflow_id"] == run and event["run"]["evidence"] == event["evidence"]
        assert (event["evidence"]["verdict"], event["evidence"]["errno"]) == ("disk", "EIO")
        assert event["replicas"] == [[TOPIC, partition] for partition in lost]
        assert set(event["became"]) == {"offline, without another in-sync replica"}
        views = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            (described,) = views.describe_log_dirs(brokers=[1])
            topic = views.describe_topics([TOPIC])[0]
        finally:
            views.close()
        (row,) = [each for each in described["log_dirs"] if each["log_dir"] == str(failing)]
        assert (row["error_code"], row["total_bytes"], row["usable_bytes"]) == (56, -1, -1)
        hidden = {each["partition_index"]: each["offline_replicas"] for each in topic["partitions"]}
        assert hidden == {partition: [1] if partition in lost else [] for partition in range(PARTITIONS)}


def held(cluster: Cluster, topic: str, index: int = 0) -> tuple[int, set[int]]:
    """Leader and ISR of a partition, as the controller has them."""
    found = ClusterState.of(cluster.query(cluster.name, "state")).topics[topic].partitions[index]
    return found.leader, set(found.isr)


def seen_by(cluster: Cluster, node: int, topic: str) -> list[int]:
    """The leaders of a topic's partitions, as one node tells its clients."""
    (found,) = (each for each in cluster.metadata(node).topics if each.name == topic)
    return [int(each.leader_id) for each in sorted(found.partitions, key=lambda each: int(each.partition_index))]


@pytest.mark.feature("18-09", "18-10", "18-16")
def test_failed_directories_of_two_nodes_are_recorded_and_keep_the_last_isr_member(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", 3) as cluster:
        admin = cluster.admin()
        for topic, replicas in (("t", [[1, 2]] * 3), ("behind", [[1, 3]])):
            new = NewTopic(topic, len(replicas), replica_assignment=replicas)
            admin.create_topics([new], operation_timeout=20)[topic].result(30)
        (good1, bad1), (good2, bad2) = cluster.dirs(1), cluster.dirs(2)
        placed = {
            ("t", 0, 1): bad1, ("t", 0, 2): bad2,
            ("t", 1, 1): bad1, ("t", 1, 2): good2,
            ("t", 2, 1): good1, ("t", 2, 2): good2,
            ("behind", 0, 1): bad1,
        }  # fmt: skip
        counts = [cluster.produce("t", 0.2, partition) for partition in range(3)]
        cluster.produce("behind", 0.2)
        assert set(cluster.alter_log_dirs(*((*at, path) for at, path in placed.items()))) == {"NoError"}
        until("all are in place", lambda: all(cluster.where(*at) == [f"{path.name}/{at[0]}-{at[1]}"]
                                              for at, path in placed.items()))  # fmt: skip
        cluster.kill("node-3")
        until("the dead node is out of sync", lambda: held(cluster, "behind") == (1, {1}))

        # Both at once, and no controller to hear of it.
        cluster.kill("controller")
        for bad in (bad1, bad2):
            bad.rename(bad.with_name("pulled-out"))
        for node in (1, 2):
            until("the directory is offline", lambda: cluster.ask("moves", node)["offline"])  # noqa: B023
        cluster.start_controller()
        runs = until("each has a run", lambda: found if len(found := failures(cluster)) == 2 else None)
        told = {row["node"]: row for row in map(cluster.result, runs)}
        assert {node: (row["directory"], row["outcome"]) for node, row in told.items()} == {
            1: (str(bad1), "recorded"),
            2: (str(bad2), "recorded"),
        }
        replicas = {node: {row["topic"]: row["partitions"] for row in told[node]["replicas"]} for node in told}
        assert replicas == {1: {"t": [0, 1], "behind": [0]}, 2: {"t": [0]}}

        # As if the nodes were down, for these replicas alone; the last one in sync is waited for.
        until("the other node leads", lambda: held(cluster, "t", 1) == (2, {2}))
        leader, isr = held(cluster, "t", 0)
        assert leader == -1 and len(isr) == 1, "its last replica in sync is on a failed disk"
        until("replicas elsewhere go on", lambda: held(cluster, "t", 2) in ((1, {1, 2}), (2, {1, 2})))
        assert held(cluster, "behind") == (-1, {1})
        cluster.start_node(3)
        cluster.wait_registered(3)
        for node in (1, 2, 3):
            until("every node has been told", lambda: seen_by(cluster, node, "t")[:2] == [-1, 2])  # noqa: B023
            assert seen_by(cluster, node, "t")[2] in (1, 2)
        assert held(cluster, "behind") == (-1, {1}), "one that is behind does not lead by itself"
        partition = TopicPartition("behind", 0)
        admin = cluster.admin()  # kept: its requests die with it
        assert admin.elect_leaders(ElectionType.UNCLEAN, [partition]).result(30)[partition] is None
        until("one that is behind leads when an operator asks for it", lambda: held(cluster, "behind") == (3, {3}))

        # What is known of a failure goes with it.
        notes = [good / "directory-failures" for good in (good1, good2)]
        assert all(note.exists() for note in notes)
        bad1.with_name("pulled-out").rename(bad1)
        assert cluster.ask("directory-online", 1, path=str(bad1))["outcome"] == "reopened"  # without a restart
        cluster.kill("node-2")
        bad2.with_name("pulled-out").rename(bad2)
        cluster.start_node(2)
        until("the notes are gone", lambda: not any(note.exists() for note in notes))
        until("all are in sync", lambda: all(held(cluster, "t", index)[1] == {1, 2} for index in range(3)))
        assert len(failures(cluster)) == 2
        for index, count in enumerate(counts):
            assert cluster.read_numbers("t", count, index) == list(range(count))


def test_node_serves_without_its_first_directory_and_stops_without_its_last(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", directories=2) as cluster:
        process = cluster.processes["node-1"]
        first, last = cluster.dirs()
        first.rename(first.with_name("pulled-out"))
        until("the failure is in the metadata", lambda: failures(cluster))
        assert process.poll() is None
        cluster.create_topic("t", 1)
        count = cluster.produce("t", 0.1)
        assert cluster.read_numbers("t", count) == list(range(count))
        assert list(last.glob("t-0/*.log"))
        last.rename(last.with_name("pulled-out-too"))
        assert process.wait(60) == 1
        said = [line for line in cluster.log("node-1").splitlines() if line.startswith("node 1 stops: ")]
        assert len(said) == 1 and str(last) in said[0] and "all its log directories are offline" in said[0]


def test_start_is_retried_until_the_server_accepts_it() -> None:
    tried: list[str] = []

    class Server:
        async def start_workflow(self, name: str, parameter: object, **named: object) -> None:
            tried.append(str(named["id"]))
            if len(tried) < 3:
                raise RPCError("tcp connect error", RPCStatusCode.UNAVAILABLE, b"")
            if len(tried) == 3:
                raise WorkflowAlreadyStartedError(str(named["id"]), name)

    async def main() -> None:
        async def client() -> Client:
            return cast(Client, Server())

        taken = asyncio.Event()
        starter = FailureStarter("c", 1, client)
        starter.start(DirectoryFailed("an-id", "/d", "it hangs", 12.5, "i"), taken.set)
        await asyncio.wait_for(taken.wait(), 20)
        assert tried == ["c/directory-failure/1/an-id/12500"] * 3
        # Closed while the server is away: nothing is left running, and nothing was taken.
        tried.clear()
        late = asyncio.Event()
        starter.start(DirectoryFailed("other", "/d", "it hangs", 12.5, "i"), late.set)
        await asyncio.sleep(0)
        await starter.close()
        assert not late.is_set()

    asyncio.run(main())
