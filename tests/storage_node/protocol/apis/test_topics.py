"""Topics: created, deleted, rejected; in every supported version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client, offered

TEN_SECONDS = timedelta(seconds=10)


def create(client: Client, version: int = 7, *, validate_only: bool = False, **topic: Any) -> Any:
    base = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    values = {"topics": [base | topic], "timeout": TEN_SECONDS, "validate_only": validate_only}
    return client.ask(19, version, values).topics[0]


@pytest.mark.parametrize("version", offered(19))
def test_create_topics(harness: Harness, version: int) -> None:
    client = Client(harness)
    done = create(client, version, num_partitions=3, configs=[{"name": "retention.ms", "value": "5000"}])
    assert int(done.error_code) == 0
    assert TopicPartition("t", 2) in harness.node.replicas.served, "the response follows once this node has applied it"
    if version >= 5:
        configs = {row.name: (row.value, row.config_source) for row in done.configs}
        assert done.num_partitions == 3 and configs["retention.ms"] == ("5000", 1)
        assert configs["file.delete.delay.ms"] == ("1000", 4) and configs["segment.bytes"][1] == 5
    if version >= 7:
        assert done.topic_id is not None
    again = create(client, version)
    assert int(again.error_code) == 36 and "exists" in again.error_message
    client.close()


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"name": "bad name"}, 17),
        ({"name": ".."}, 17),
        ({"name": "x" * 250}, 17),
        ({"num_partitions": 0}, 37),
        ({"num_partitions": -2}, 37),
        ({"num_partitions": 2**31 - 1}, 44),
        ({"replication_factor": 0}, 38),
        ({"replication_factor": 2}, 38),
        ({"configs": [{"name": "no.such", "value": "1"}]}, 40),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, 40),
        ({"configs": [{"name": "retention.ms", "value": None}]}, 40),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, 40),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 42),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 1, "broker_ids": [1]}],
            },
            39,
        ),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [1, 1]}],
            },
            39,
        ),
    ],
)
def test_invalid_topics_are_rejected(harness: Harness, topic: dict[str, Any], code: int) -> None:
    client = Client(harness)
    done = create(client, **topic)
    assert int(done.error_code) == code and done.error_message
    assert not harness.node.replicas.served
    client.close()


def test_defaults_assignments_duplicates_and_validation(harness: Harness) -> None:
    client = Client(harness)
    done = create(client, name="d", num_partitions=-1, replication_factor=-1)
    assert (int(done.error_code), done.num_partitions, done.replication_factor) == (0, 1, 1)
    rows = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
    done = create(client, name="a", num_partitions=-1, replication_factor=-1, assignments=rows)
    assert (int(done.error_code), done.num_partitions) == (0, 2)
    done = create(client, name="v", validate_only=True)
    assert int(done.error_code) == 0 and "v" not in harness.node.metadata.image.topics
    topic = {"name": "x", "num_partitions": 1, "replication_factor": 1}
    answer = client.ask(19, 7, {"topics": [topic, topic], "timeout": TEN_SECONDS})
    assert [(row.name, int(row.error_code), row.error_message) for row in answer.topics] == [
        ("x", 42, "Duplicate topic name.")
    ]
    client.close()


@pytest.mark.parametrize("version", offered(20))
def test_delete_topics(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    harness.produce("t", [b"x"])
    client = Client(harness)

    def delete(name: str) -> Any:
        values = {"topics": [{"name": name}]} if version >= 6 else {"topic_names": [name]}
        return client.ask(20, version, values | {"timeout": TEN_SECONDS}).responses[0]

    assert int(delete("nothing").error_code) == 3
    assert int(delete("t").error_code) == 0
    assert not harness.node.replicas.served
    client.close()


def test_delete_by_id(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    topic_id = client.ask(3, 12, {"topics": None}).topics[0].topic_id
    values = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": TEN_SECONDS}
    assert int(client.ask(20, 6, values).responses[0].error_code) == 0
    assert int(client.ask(20, 6, values).responses[0].error_code) == 100
    client.close()


def test_without_a_controller_changes_time_out_in_their_own_time(harness: Harness) -> None:
    harness.controller.away = True
    client = Client(harness)
    assert int(create(client).error_code) == 7
    client.close()


def test_confluents_admin_creates_and_lists(harness: Harness) -> None:
    admin = harness.admin()
    for future in admin.create_topics([NewTopic(f"t{i}", 2, 1) for i in range(5)]).values():
        future.result(10)
    listed = admin.list_topics(timeout=10)
    assert {name: len(topic.partitions) for name, topic in listed.topics.items()} == {f"t{i}": 2 for i in range(5)}
    assert listed.controller_id == 1 and listed.cluster_id == "test-cluster"
