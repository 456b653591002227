"""The first requests of clients, in every supported version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from storage_node.model.assignment import Assignment
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from tests.support.nodes.node_harness import Harness, running
from tests.support.wire import Client, offered


@pytest.mark.parametrize("version", offered(18))
def test_api_versions(harness: Harness, version: int) -> None:
    client = Client(harness)
    answer = client.ask(18, version, {"client_software_name": "x", "client_software_version": "1"})
    keys = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert int(answer.error_code) == 0 and keys[0] == (0, 13) and keys[1] == (4, 18) and 71 not in keys
    client.close()


@pytest.mark.parametrize("version", offered(3))
def test_metadata(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    client = Client(harness)
    answer = client.ask(3, version, {"topics": [{"name": "t"}, {"name": "nothing"}], "allow_auto_topic_creation": True})
    assert [(row.node_id, row.host, row.port) for row in answer.brokers] == [(1, "127.0.0.1", harness.node.port)]
    found, missing = answer.topics
    assert (found.name, int(found.error_code), len(found.partitions)) == ("t", 0, 2)
    assert [(row.leader_id, tuple(row.replica_nodes), tuple(row.isr_nodes)) for row in found.partitions] == [
        (1, (1,), (1,))
    ] * 2
    assert (missing.name, int(missing.error_code)) == ("nothing", 3)
    if version >= 10:
        topic_id = found.topic_id
        assert topic_id is not None
    if version >= 12:
        (by_id,) = client.ask(3, version, {"topics": [{"topic_id": topic_id, "name": None}]}).topics
        assert by_id.name == "t"
    everything = client.ask(3, version, {"topics": [] if version == 0 else None})
    assert [topic.name for topic in everything.topics] == ["t"]
    if version > 0:
        assert client.ask(3, version, {"topics": []}).topics == ()
    client.close()


def test_metadata_follows_the_image(harness: Harness) -> None:
    client = Client(harness)
    for name in ("a", "b", "c"):
        harness.create_topic(name)
        assert name in {topic.name for topic in client.ask(3, 12, {"topics": None}).topics}
    assert harness.node.answers._answers
    harness.delete_topic("a")
    assert {topic.name for topic in client.ask(3, 12, {"topics": None}).topics} == {"b", "c"}
    client.close()


def test_fenced_nodes_and_offline_directories_show(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    # The directory that the image has offline is online: the node would register it so again.
    monkeypatch.setattr(harness.controller, "register_again", lambda: None)
    other = NodeImage(2, "x", 1, "127.0.0.1", 1, fenced=True)
    me = harness.controller.image.nodes[1]
    broken = replace(me, directories=(*me.directories[:2], replace(me.directories[2], online=False)))
    lost = PartitionImage(0, Assignment((2,)), directories=("",), generations=(0,), isr=(2,), leader=2)
    offline = PartitionImage(
        1, Assignment((1,)), directories=(me.directories[2].id,), generations=(0,), isr=(1,), leader=-1
    )
    topic = TopicImage("t", "T" * 22, {}, (lost, offline))
    harness.controller.change(topics={"t": topic}, nodes={1: broken, 2: other})
    client = Client(harness)
    answer = client.ask(3, 12, {"topics": None})
    assert [row.node_id for row in answer.brokers] == [1]
    rows = answer.topics[0].partitions
    assert [(int(row.error_code), row.leader_id, row.offline_replicas) for row in rows] == [
        (5, -1, (2,)),
        (5, -1, (1,)),
    ]
    described = client.ask(60, 2, {"endpoint_type": 1, "include_fenced_brokers": True})
    assert [(row.broker_id, row.is_fenced) for row in described.brokers] == [(1, False), (2, True)]
    client.close()


@pytest.mark.parametrize("version", offered(60))
def test_describe_cluster(harness: Harness, version: int) -> None:
    client = Client(harness)
    answer = client.ask(60, version, {"endpoint_type": 1})
    assert (answer.cluster_id, answer.controller_id) == ("test-cluster", 1)
    assert [row.broker_id for row in answer.brokers] == [1]
    if version >= 1:
        assert int(client.ask(60, version, {"endpoint_type": 2}).error_code) == 114
        assert int(client.ask(60, version, {"endpoint_type": 7}).error_code) == 115
    client.close()


@pytest.mark.parametrize("version", offered(10))
def test_find_coordinator_names_this_node_for_groups_and_refuses_transactions(harness: Harness, version: int) -> None:
    client = Client(harness)

    def find(key: str, kind: int) -> tuple[int, int]:
        values = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
        answer = client.ask(10, version, values | {"key_type": kind})
        row = answer.coordinators[0] if version >= 4 else answer
        return int(row.error_code), row.node_id

    assert find("group", 0) == (0, 1)
    if version >= 1:
        assert find("transaction", 1) == (53, -1)
    client.close()


@pytest.mark.parametrize("version", offered(22))
def test_producer_ids(harness: Harness, version: int) -> None:
    client = Client(harness)
    ids = {client.ask(22, version, {"transactional_id": None}).producer_id for _ in range(5)}
    assert len(ids) == 5
    # The same error as FindCoordinator's, after which clients do not retry.
    assert int(client.ask(22, version, {"transactional_id": "tx"}).error_code) == 53
    assert int(client.ask(22, version, {"transactional_id": ""}).error_code) == 42
    if version >= 3:
        again = client.ask(22, version, {"transactional_id": None, "producer_id": 55, "producer_epoch": 3})
        assert again.producer_id not in ids | {55} and again.producer_epoch == 0
        half = client.ask(22, version, {"transactional_id": None, "producer_id": 55, "producer_epoch": -1})
        assert int(half.error_code) == 42
    client.close()


def test_producer_ids_are_allocated_in_blocks_and_never_reused(harness: Harness) -> None:
    client = Client(harness)
    first = client.ask(22, 4, {"transactional_id": None}).producer_id
    harness.controller.away = True
    later = [client.ask(22, 4, {"transactional_id": None}).producer_id for _ in range(20)]
    harness.controller.away = False
    harness.restart()
    client = Client(harness)
    after = client.ask(22, 4, {"transactional_id": None}).producer_id
    assert len({first, *later, after}) == 22
    client.close()


@pytest.mark.conformance(152)
@pytest.mark.parametrize("version", offered(46))
def test_reassignments_are_listed_from_the_image(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    topic = harness.controller.image.topics["t"]
    joining = Assignment((1, 2), adding=(2,), original=(1,))
    moving = replace(topic.partitions[1], assignment=joining, directories=("", ""), generations=(0, 0))
    harness.controller.change(topics={"t": topic.with_partitions([moving])})
    client = Client(harness)
    (found,) = client.ask(46, version, {"topics": None}).topics
    assert [(row.partition_index, row.adding_replicas) for row in found.partitions] == [(1, (2,))]
    (asked,) = client.ask(46, version, {"topics": [{"name": "t", "partition_indexes": [0, 1, 7]}]}).topics
    assert [(row.partition_index, row.adding_replicas) for row in asked.partitions] == [(1, (2,))]
    assert client.ask(46, version, {"topics": []}).topics == ()
    assert client.ask(46, version, {"topics": [{"name": "t", "partition_indexes": [0]}]}).topics == ()
    client.close()


@pytest.mark.parametrize("version", offered(45))
def test_only_a_reassignment_that_changes_nothing_is_accepted(harness: Harness, version: int) -> None:
    harness.create_topic("t")
    client = Client(harness)
    partitions = [{"partition_index": 0, "replicas": [1]}, {"partition_index": 9, "replicas": [1]}]
    topics = [{"name": "t", "partitions": partitions}, {"name": "u", "partitions": [partitions[0]]}]
    answer = client.ask(45, version, {"topics": topics})
    codes = [[int(row.error_code) for row in topic.partitions] for topic in answer.responses]
    assert codes == [[0, 3], [3]]
    for replicas, code in ((None, 85), ([2], 39), ([1, 2], 39)):
        row = {"partition_index": 0, "replicas": replicas}
        answer = client.ask(45, version, {"topics": [{"name": "t", "partitions": [row]}]})
        assert int(answer.responses[0].partitions[0].error_code) == code
    client.close()


def test_topics_are_auto_created_only_if_configured(tmp_path: Path) -> None:
    with running(tmp_path, extra={"auto.create.topics.enable": "true"}) as harness:
        client = Client(harness)
        answer = client.ask(3, 12, {"topics": [{"name": "new"}], "allow_auto_topic_creation": False})
        assert int(answer.topics[0].error_code) == 3
        answer = client.ask(3, 12, {"topics": [{"name": "new"}, {"name": "b@d"}], "allow_auto_topic_creation": True})
        assert [int(topic.error_code) for topic in answer.topics] == [0, 17]
        client.close()


def test_kafka_python_connects_and_describes_the_cluster(harness: Harness) -> None:
    harness.create_topic("t", 2)
    admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
    assert [topic["name"] for topic in admin.describe_topics(["t"])] == ["t"]
    assert admin.describe_cluster()["cluster_id"] == "test-cluster"
    admin.close()
