"""Reassignments and elections over the wire, on three nodes with the real controller: the responses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.errors import RequestTimedOut
from storage_node.model.assignment import Assignment
from storage_node.model.command_rows import name_of
from storage_node.model.commands import Command
from tests.support.nodes.memory_cluster import MemoryCluster, MemoryPort, running_cluster
from tests.support.nodes.reassigning import Ongoing, ongoing, results, wanted_topics
from tests.support.wire import Client

AWAY = 3
"""A node that is registered and stopped: reassignments to it stay under way."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryCluster]:
    root: Path = tmp_path_factory.mktemp("cluster")
    with running_cluster(root, 3, 1) as made:
        made.create_topic("t", [[1, 2], [2, 1], [1, 2]])
        made.create_topic("u", [[2]])
        made.stop(AWAY)
        yield made


@pytest.fixture
def client(cluster: MemoryCluster) -> Iterator[Client]:
    made = Client(f"127.0.0.1:{cluster.nodes[2].port}")
    yield made
    made.close()


def alter(client: Client, wanted: dict[tuple[str, int], list[int] | None], version: int = 1, **more: Any) -> Any:
    fields = {"topics": wanted_topics(wanted), "timeout": timedelta(seconds=10), **more}
    return client.call("AlterPartitionReassignments", version, **fields)


def listed(client: Client, topics: list[dict[str, Any]] | None = None) -> dict[tuple[str, int], Ongoing]:
    answer = client.call("ListPartitionReassignments", 0, topics=topics, timeout=timedelta(seconds=10))
    assert int(answer.error_code) == 0
    return ongoing(answer)


@pytest.mark.conformance(151, 152, 153)
@pytest.mark.feature("455-01", "455-02", "455-04", "455-05", "455-09", "455-10", "455-11")
@pytest.mark.parametrize("version", [0, 1])
def test_reassignment_is_begun_listed_and_cancelled(client: Client, version: int) -> None:
    answer = alter(client, {("t", 0): [AWAY], ("u", 0): [AWAY, 2], ("t", 9): [1], ("nope", 0): [1]}, version)
    assert int(answer.error_code) == 0 and answer.error_message is None
    assert results(answer) == {
        ("t", 0): (0, None),
        ("u", 0): (0, None),
        ("t", 9): (3, "Unable to find partition t:9."),
        ("nope", 0): (3, "Unable to find a topic named nope."),
    }
    first, second = ([AWAY, 1, 2], [AWAY], [1, 2]), ([AWAY, 2], [AWAY], [])
    assert listed(client) == {("t", 0): first, ("u", 0): second}, "the node that responded has applied it"
    assert listed(client, [{"name": "t", "partition_indexes": [0, 1, 77]}]) == {("t", 0): first}
    assert listed(client, [{"name": "t", "partition_indexes": [1]}, {"name": "x", "partition_indexes": [0]}]) == {}
    assert listed(client, []) == {}
    cancelled = results(alter(client, {("t", 0): None, ("t", 1): None, ("u", 0): None, ("x", 0): None}, version))
    assert cancelled == {
        ("t", 0): (0, None),
        ("t", 1): (85, None),
        ("u", 0): (0, None),
        ("x", 0): (3, "Unable to find a topic named x."),
    }
    assert listed(client) == {}


def test_topic_without_partitions_is_echoed_and_an_empty_request_gets_an_empty_response(client: Client) -> None:
    answer = alter(client, {}, topics=[{"name": "t", "partitions": []}, {"name": "x", "partitions": []}])
    assert [(row.name, row.partitions) for row in answer.responses] == [("t", ()), ("x", ())]
    assert alter(client, {}, topics=[]).responses == ()


@pytest.mark.conformance(156)
@pytest.mark.feature("455-03")
def test_invalid_reassignment_fails_no_other(client: Client) -> None:
    answer = results(alter(client, {("t", 0): [], ("t", 1): [7, 1], ("t", 2): [2, 1], ("u", 0): [2, 2]}))
    assert [code for code, _ in answer.values()] == [39, 39, 0, 39]
    assert answer["t", 1][1] == "The manual partition assignment includes broker 7, but no such broker is registered."
    assert results(alter(client, {("t", 2): [1, 2]}))["t", 2] == (0, None)


def test_replication_factor_changes_only_if_allowed(client: Client) -> None:
    answer = alter(client, {("t", 0): [AWAY]}, allow_replication_factor_change=False)
    assert results(answer)["t", 0] == (38, "The replication factor is changed from 2 to 1")
    assert answer.allow_replication_factor_change is False and listed(client) == {}


@pytest.mark.feature("455-06")
def test_reassignment_without_a_controller_times_out_as_a_whole(cluster: MemoryCluster, client: Client) -> None:
    cluster.controller.cut.add(2)
    try:
        answer = alter(client, {("t", 0): [AWAY], ("nope", 0): None}, timeout=timedelta(seconds=1))
        assert int(answer.error_code) == 7 and answer.error_message
        assert [code for code, _ in results(answer).values()] == [7, 7]
        call = {"topic_partitions": [{"topic": "t", "partitions": [0, 1]}], "timeout": timedelta(seconds=1)}
        late = client.call("ElectLeaders", 2, election_type=0, **call)
        assert int(late.error_code) == 7
        (topic,) = late.replica_election_results
        assert [int(row.error_code) for row in topic.partition_result] == [7, 7]
    finally:
        cluster.controller.heal(2)
    assert listed(client) == {}


@pytest.mark.feature("455-12", "455-26")
def test_image_has_the_full_replica_set_and_the_adding_and_removing_ones(
    cluster: MemoryCluster, client: Client
) -> None:
    assert results(alter(client, {("t", 0): [AWAY]}))["t", 0] == (0, None)
    cluster.controller.spread()
    for node in cluster.nodes.values():
        row = node.metadata.image.topics["t"].partitions[0]
        assert row.assignment == Assignment((AWAY, 1, 2), (AWAY,), (1, 2), (1, 2))
    assert results(alter(client, {("t", 0): None}))["t", 0] == (0, None)
    row = cluster.nodes[2].metadata.image.topics["t"].partitions[0]
    assert row.assignment == Assignment((1, 2))


def test_list_is_never_older_than_another_nodes_response(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's push to the other nodes is late."""
    monkeypatch.setattr(cluster.controller, "_push", lambda: None)
    first = Client(f"127.0.0.1:{cluster.nodes[1].port}")
    assert results(alter(first, {("t", 0): [1, AWAY]})) == {("t", 0): (0, None)}
    assert listed(client) == {("t", 0): ([1, AWAY, 2], [AWAY], [2])}
    assert results(alter(first, {("t", 0): None})) == {("t", 0): (0, None)}
    assert listed(client) == {}
    first.close()


@pytest.mark.feature("455-07")
@pytest.mark.parametrize("seconds", [20, 300])
def test_request_timeout_is_how_long_the_node_waits_for_the_controller(
    client: Client, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    waited: dict[str, float | None] = {}

    async def late(port: MemoryPort, command: Command, left: float | None, *, count: int = 1) -> Any:
        waited[name_of(command)] = left
        raise RequestTimedOut("the controller is unavailable")

    monkeypatch.setattr(MemoryPort, "_submit", late)
    timeout = timedelta(seconds=seconds)
    assert int(alter(client, {("t", 0): [AWAY]}, timeout=timeout).error_code) == 7
    assert int(client.call("ListPartitionReassignments", 0, topics=None, timeout=timeout).error_code) == 7
    partitions = [{"topic": "t", "partitions": [0]}]
    late_too = client.call("ElectLeaders", 2, election_type=0, topic_partitions=partitions, timeout=timeout)
    assert int(late_too.error_code) == 7
    assert waited.keys() == {"alter_reassignments", "tell_version", "elect_leaders"}
    for left in waited.values():
        assert left is not None and seconds / 2 < left <= seconds, "the rest of the request's timeout"


@pytest.mark.feature("455-11")
@pytest.mark.parametrize("topics", [None, [{"name": "t", "partition_indexes": [0]}]], ids=["all", "named"])
def test_list_times_out_without_a_controller(
    cluster: MemoryCluster, client: Client, topics: list[dict[str, Any]] | None
) -> None:
    assert results(alter(client, {("t", 0): [AWAY]}))["t", 0] == (0, None)
    cluster.controller.cut.add(2)
    try:
        answer = client.call("ListPartitionReassignments", 0, topics=topics, timeout=timedelta(milliseconds=300))
        assert int(answer.error_code) == 7 and answer.error_message
        assert list(answer.topics) == [], "a response with an error lists no reassignment, though the node has one"
    finally:
        cluster.controller.heal(2)
    assert listed(client, topics).keys() == {("t", 0)}
    assert results(alter(client, {("t", 0): None}))["t", 0] == (0, None)


def elect(client: Client, partitions: list[tuple[str, list[int]]] | None, kind: int = 0, version: int = 2) -> Any:
    rows = None if partitions is None else [{"topic": name, "partitions": each} for name, each in partitions]
    more = {"election_type": kind} if version else {}
    answer = client.call("ElectLeaders", version, topic_partitions=rows, timeout=timedelta(seconds=10), **more)
    if version:
        assert int(answer.error_code) == 0
    return {
        (topic.topic, row.partition_id): (int(row.error_code), row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def leader(client: Client, topic: str, index: int) -> int:
    answer = client.call("Metadata", 12, topics=[{"topic_id": None, "name": topic}])
    return next(row.leader_id for row in answer.topics[0].partitions if row.partition_index == index)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elections(client: Client, version: int) -> None:
    needless = (84, "Leader election not needed for topic partition.")
    assert results(alter(client, {("t", 2): [2, 1]}))["t", 2] == (0, None)
    assert leader(client, "t", 2) == 1, "a new order of the replicas moves no leader"
    done = elect(client, [("t", [2, 1, 9]), ("x", [0])], version=version)
    assert done == {
        ("t", 2): (0, None),
        ("t", 1): needless,
        ("t", 9): (3, "No such partition as t-9"),
        ("x", 0): (3, "No such topic as x"),
    }
    assert leader(client, "t", 2) == 2
    assert results(alter(client, {("t", 2): [1, 2]}))["t", 2] == (0, None)
    assert elect(client, None, version=version) == {("t", 2): (0, None)}, "only those that needed an election"
    assert leader(client, "t", 2) == 1
    assert elect(client, None, version=version) == {}
    if version:
        assert elect(client, [("t", [0])], kind=1, version=version) == {("t", 0): needless}


def test_election_of_an_unavailable_preferred_leader_fails(cluster: MemoryCluster, client: Client) -> None:
    assert results(alter(client, {("u", 0): [AWAY, 2]}))["u", 0] == (0, None)
    assert elect(client, [("u", [0])]) == {("u", 0): (80, "The preferred leader was not available.")}
    assert results(alter(client, {("u", 0): None}))["u", 0] == (0, None)


def test_racks_are_reported_and_fenced_nodes_offline(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, 1, {"broker.rack": "r1"}) as cluster:
        cluster.create_topic("t", [[1, 2]])
        cluster.stop(2)
        cluster.controller.spread()
        client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
        try:
            for version in (1, 5, 9, 12):
                named = {"topic_id": None, "name": "t"} if version >= 10 else {"name": "t"}
                answer = client.call("Metadata", version, topics=[named])
                assert [(row.node_id, row.rack) for row in answer.brokers] == [(1, "r1")]
                (row,) = answer.topics[0].partitions
                assert (row.leader_id, list(row.replica_nodes), list(row.isr_nodes)) == (1, [1, 2], [1])
                if version >= 5:
                    assert list(row.offline_replicas) == [2]
            answer = client.call("DescribeCluster", 2, include_fenced_brokers=True)
            assert [(row.broker_id, row.rack, row.is_fenced) for row in answer.brokers] == [
                (1, "r1", False),
                (2, "r1", True),
            ]
            answer = client.call("DescribeTopicPartitions", 0, topics=[{"name": "t"}])
            (row,) = answer.topics[0].partitions
            assert (list(row.isr_nodes), list(row.offline_replicas), row.leader_epoch) == ([1], [2], 0)
            assert not row.eligible_leader_replicas and not row.last_known_elr
        finally:
            client.close()
