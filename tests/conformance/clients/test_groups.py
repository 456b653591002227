"""Consumers of all clients that subscribe: they share a topic, commit, and go on where they have committed."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.conformance.clients import test_kafka_python as kafka_python
from tests.conformance.clients import test_librdkafka as librdkafka
from tests.conformance.clients.conftest import Ask, fresh
from tests.conformance.clients.java import ok
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]


def test_two_members_of_a_group_share_a_topic(ask: Ask, cluster: Any) -> None:
    topic, group = cluster.new_topic(partitions=4), fresh()
    settings = {"group.id": group, "enable.auto.commit": "true", "auto.commit.interval.ms": "100"}
    member = {"subscribe": [topic], "count": 10**9, "seconds": 120, "config": settings, "name": group}
    members = [ask.begin("consume", **member) for _ in range(2)]
    whole = [f"{topic}-{partition}" for partition in range(4)]

    def shared() -> bool:
        row = ask("describeGroups", groups=[group])[group].get("ok")
        if row is None:
            return False  # nobody has joined yet
        held = [member["partitions"] for member in row["members"]]
        return row["state"] == "Stable" and len(held) == 2 and all(held) and sorted(chain(*held)) == whole

    until(shared, 60, "both members have partitions")
    assert ok(ask("listGroups"))[group]["protocol"] == "consumer"
    sent = ask("produce", topic=topic, prefix="r", count=200, keys=40)
    until(lambda: sum(ok(ask("groupOffsets", group=group)).values()) == 200, 60, "all records are read and committed")
    ask("stop", name=group)
    read = [row.result(60)["records"] for row in members]
    assert all(read)
    assert sorted(chain(*read)) == sorted(sent["acknowledged"])


def test_group_goes_on_where_it_has_committed(ask: Ask, cluster: Any) -> None:
    topic, group = cluster.new_topic(), fresh()
    key = f"{topic}-0"
    ask("produce", topic=topic, partition=0, prefix="first", count=20)
    member = {"subscribe": [topic], "commit": True, "config": {"group.id": group}}
    first = ask("consume", count=20, seconds=60, **member)
    assert [row[1] for row in first["records"]] == list(range(20))
    assert ok(ask("groupOffsets", group=group)) == {key: 20}
    ask("produce", topic=topic, partition=0, prefix="second", count=5)
    assert [row[1] for row in ask("consume", count=5, seconds=60, **member)["records"]] == [20, 21, 22, 23, 24]

    ok(ask("alterGroupOffsets", group=group, wanted=[[topic, 0, 3]]))
    assert ok(ask("groupOffsets", group=group)) == {key: 3}
    again = ask("consume", count=22, seconds=60, **member)
    assert [row[1] for row in again["records"]] == list(range(3, 25))
    ok(ask("deleteGroupOffsets", group=group, partitions=[[topic, 0]]))
    assert ok(ask("groupOffsets", group=group)) == {}
    assert ok(ask("deleteGroups", groups=[group])[group]) is None
    assert group not in ok(ask("listGroups"))


def test_librdkafka(cluster: Any) -> None:
    topic, group = cluster.new_topic(), fresh()
    librdkafka.produce(cluster, topic, 20)
    told = librdkafka.Told()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    first = librdkafka.consumer(cluster, group, told)
    try:
        first.subscribe([topic])
        assert len(librdkafka.read(first, 20)) == 20
        first.commit(asynchronous=False)
        (described,) = admin.describe_consumer_groups([group]).values()
        (member,) = described.result(librdkafka.SECONDS).members
        assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(topic, 0)]
    finally:
        first.close()
    assert told == []
    listed = admin.list_consumer_groups().result(librdkafka.SECONDS)
    assert group in {row.group_id for row in listed.valid}
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    assert [(p.topic, p.offset) for p in found.result(librdkafka.SECONDS).topic_partitions] == [(topic, 20)]
    librdkafka.produce(cluster, topic, 5)
    second = librdkafka.consumer(cluster, group)
    try:
        second.subscribe([topic])
        assert [offset for offset, _ in librdkafka.read(second, 5)] == [20, 21, 22, 23, 24]
    finally:
        second.close()
    (gone,) = admin.delete_consumer_groups([group]).values()
    gone.result(librdkafka.SECONDS)


def test_kafka_python(cluster: Any, python_admin: KafkaAdminClient, python_consumers: Any) -> None:
    topic, group = cluster.new_topic(), fresh()
    kafka_python.produce(cluster, topic, 20)
    first = python_consumers(topic, group_id=group)
    assert len(kafka_python.read(first, 20)) == 20
    first.commit()
    first.close()
    kafka_python.produce(cluster, topic, 5)
    second = python_consumers(topic, group_id=group)
    assert [offset for offset, _ in kafka_python.read(second, 5)] == [20, 21, 22, 23, 24]
    second.commit()
    second.close()
    assert group in {row["group_id"] for row in python_admin.list_groups()}
    found = python_admin.list_group_offsets(group)[group]
    assert {partition: row.offset for partition, row in found.items()} == {TopicPartition(topic, 0): 25}
    python_admin.delete_groups([group])


def test_kcat(kcat: Any, cluster: Any) -> None:
    topic, group = cluster.new_topic(), fresh()
    kcat("-P", "-t", topic, "-p", "0", stdin="a\nb\nc\n")
    balanced = ("-G", group, "-X", "auto.offset.reset=earliest", "-q")
    first, _ = kcat(*balanced, "-c", "3", topic)
    assert first.splitlines() == ["a", "b", "c"]
    kcat("-P", "-t", topic, "-p", "0", stdin="d\n")
    second, _ = kcat(*balanced, "-c", "1", topic)
    assert second.splitlines() == ["d"]
