"""kafka-python as it is: administration, producer, both kinds of consumer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tests.conformance.clients.conftest import fresh
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal]

#: The first record's time stamp, milliseconds: young enough for retention, older than the test.
T0 = int(time.time() * 1000) - 3_600_000


def produce(cluster: Any, topic: str, count: int, **settings: Any) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), **settings)
    try:
        sent = [
            producer.send(topic, f"r-{number}".encode(), partition=0, timestamp_ms=T0 + number)
            for number in range(count)
        ]
        return [future.get(60).offset for future in sent]
    finally:
        producer.close()


def read(consumer: KafkaConsumer, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    def enough() -> bool:
        # A join that is answered between two polls is lost on kafka-python 3.0.12: it never fetches then. A poll ends
        # with the first records, so a long one costs nothing.
        for rows in consumer.poll(timeout_ms=10_000).values():
            found.extend((row.offset, row.value.decode()) for row in rows)
        return len(found) >= count

    until(enough, 60, f"{count} records")
    return found


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_produce_and_read(cluster: Any, python_consumers: Any, compression: str | None) -> None:
    topic = cluster.new_topic()
    assert produce(cluster, topic, 100, compression_type=compression, linger_ms=20) == list(range(100))
    consumer, partition = python_consumers(), TopicPartition(topic, 0)
    consumer.assign([partition])
    assert read(consumer, 100) == [(number, f"r-{number}") for number in range(100)]
    consumer.seek(partition, 95)
    assert read(consumer, 5)[0] == (95, "r-95")
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}
    assert consumer.offsets_for_times({partition: T0 + 40})[partition].offset == 40


def test_topics_and_configs(cluster: Any, python_admin: KafkaAdminClient) -> None:
    name = fresh()
    python_admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}}
    )
    until(lambda: cluster.ready(name, 2), 60, "every node knows the new topic")
    assert name in python_admin.list_topics()
    (row,) = python_admin.describe_topics([name])
    assert [len(p["replica_nodes"]) for p in row["partitions"]] == [1, 1]
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": "1000000"})
    python_admin.alter_configs([resource])

    def retention() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = python_admin.describe_configs([resource])["topic"][name]
        return str(found["retention.ms"]["value"])

    until(lambda: retention() == "1000000", 20, "the new value is described")
    python_admin.delete_topics([name])
    until(lambda: name not in python_admin.list_topics(), 20, "the topic is gone")


def test_log_directories_and_reassignments(cluster: Any, python_admin: KafkaAdminClient) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    produce(cluster, topic, 50)

    def places() -> dict[str, bool]:
        """Directory -> whether what stands in it is the copy under way."""
        (answer,) = python_admin.describe_log_dirs(brokers=[1])
        return {
            str(row["log_dir"]): bool(p["is_future_key"])
            for row in answer["log_dirs"]
            for t in row["topics"]
            if (t.get("name") or t.get("topic")) == topic
            for p in t["partitions"]
        }

    (source,) = places()
    (target,) = [str(path) for path in cluster.log_dirs[1] if str(path) != source]
    ((_, error),) = python_admin.alter_replica_log_dirs({(topic, 0, 1): target}).items()
    assert error.errno == 0
    until(lambda: places() == {target: False}, 30, "the replica is in the directory asked for")
    ((_, error),) = python_admin.alter_replica_log_dirs({(topic, 0, 1): "/no/such/directory"}).items()
    assert error.errno == 57
    assert not python_admin.list_partition_reassignments()
