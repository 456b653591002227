"""librdkafka through confluent-kafka: admin client, producers with every compression, both kinds of consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.conformance.clients.conftest import fresh
from tests.conformance.clusters import REHOME
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
#: The first record's time stamp, milliseconds: young enough for retention, older than the test.
T0 = int(time.time() * 1000) - 3_600_000
SECONDS = 60.0


class Told(list[str]):
    """The log lines of a client, for `logger=`."""

    def log(self, level: int, message: str, *values: Any) -> None:
        self.append(message % values if values else message)


@pytest.fixture
def admin(cluster: Any) -> Iterator[AdminClient]:
    yield AdminClient({"bootstrap.servers": cluster.bootstrap})


def refused(future: Any) -> str:
    with pytest.raises(KafkaException) as raised:
        future.result(SECONDS)
    return str(raised.value.args[0].name())


def produce(cluster: Any, topic: str, count: int, told: Told | None = None, **settings: Any) -> list[int]:
    """Values r-0, r-1, ... to partition 0, a millisecond of time stamp apart; the offsets acknowledged."""
    offsets: list[int] = []
    failures: list[Any] = []

    def note(error: Any, message: Any) -> None:
        failures.append(error) if error else offsets.append(message.offset())

    config = {
        "bootstrap.servers": cluster.bootstrap,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    producer = Producer(config, logger=told if told is not None else Told())
    for number in range(count):
        producer.produce(topic, f"r-{number}", partition=0, timestamp=T0 + number, on_delivery=note)
    assert producer.flush(SECONDS) == 0
    assert not failures
    return offsets


def read(consumer: Consumer, count: int) -> list[tuple[int, str]]:
    """(offset, value) of that many records."""
    found: list[tuple[int, str]] = []
    until_ = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < until_:
        for message in consumer.consume(count, 0.1):
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value().decode()))
    return found


def consumer(cluster: Any, group: str, told: Told | None = None, **settings: Any) -> Consumer:
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    config["fetch.wait.max.ms"] = 20  # one connection for everything: other requests wait behind a fetch
    config |= {"enable.auto.commit": False, **{name.replace("_", "."): value for name, value in settings.items()}}
    return Consumer(config, logger=told if told is not None else Told())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_produce_and_read_with_every_compression(cluster: Any, compression: str) -> None:
    topic, told = cluster.new_topic(), Told()
    offsets = produce(cluster, topic, 300, told, enable_idempotence=True, compression_type=compression, linger_ms=20)
    assert offsets == list(range(300))
    reader = consumer(cluster, fresh(), told)
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert read(reader, 300) == [(number, f"r-{number}") for number in range(300)]
        reader.seek(TopicPartition(topic, 0, 290))
        assert read(reader, 10)[0] == (290, "r-290")
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 300)
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, T0 + 100)], SECONDS)
        assert found.offset == 100
    finally:
        reader.close()
    # A broker of Apache Kafka that has just started may have no block of producer ids yet.
    assert [line for line in told if cluster.kind == REHOME or "Coordinator load in progress" not in line] == []


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(cluster: Any, acks: Any) -> None:
    topic = cluster.new_topic()
    produce(cluster, topic, 50, acks=acks)
    reader = consumer(cluster, fresh())
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert len(read(reader, 50)) == 50
    finally:
        reader.close()


def test_topics(cluster: Any, admin: AdminClient) -> None:
    name = fresh()
    configs = {"retention.ms": "3600000"}
    wanted = [NewTopic(name, num_partitions=2, replication_factor=1, config=configs), NewTopic("not a name", 1, 1)]
    made = admin.create_topics(wanted)
    made[name].result(SECONDS)
    assert refused(made["not a name"]) == "TOPIC_EXCEPTION"
    until(lambda: name in admin.list_topics(timeout=SECONDS).topics, SECONDS, "the new topic is listed")
    assert refused(admin.create_topics(wanted[:1])[name]) == "TOPIC_ALREADY_EXISTS"
    shown = admin.list_topics(name, timeout=SECONDS)
    assert sorted(shown.brokers) == [1, 2, 3]
    assert all(row.error is None and row.leader in shown.brokers for row in shown.topics[name].partitions.values())
    admin.create_partitions([NewPartitions(name, 3)])[name].result(SECONDS)
    until(lambda: len(admin.list_topics(name, timeout=SECONDS).topics[name].partitions) == 3, SECONDS, "a third")
    admin.delete_topics([name])[name].result(SECONDS)
    assert refused(admin.delete_topics(["no-such-topic"])["no-such-topic"]) == "UNKNOWN_TOPIC_OR_PART"
    until(lambda: name not in admin.list_topics(timeout=SECONDS).topics, SECONDS, "the topic is gone")


def test_configs(cluster: Any, admin: AdminClient) -> None:
    name = cluster.new_topic()
    set_ = ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET)
    (done,) = admin.incremental_alter_configs([ConfigResource("topic", name, incremental_configs=[set_])]).values()
    done.result(SECONDS)

    def retention() -> tuple[str, bool]:
        (found,) = admin.describe_configs([ConfigResource("topic", name)]).values()
        entry = found.result(SECONDS)["retention.ms"]
        return entry.value, entry.is_default

    until(lambda: retention() == ("1000000", False), SECONDS, "the new value is described")
    bad = ConfigEntry("retention.ms", "long", incremental_operation=AlterConfigOpType.SET)
    (done,) = admin.incremental_alter_configs([ConfigResource("topic", name, incremental_configs=[bad])]).values()
    assert refused(done) == "INVALID_CONFIG"


def test_offsets_and_deleted_records(cluster: Any, admin: AdminClient) -> None:
    name = cluster.new_topic()
    partition = TopicPartition(name, 0)
    produce(cluster, name, 10)

    def offset(spec: Any) -> int:
        (found,) = admin.list_offsets({partition: spec}).values()
        return int(found.result(SECONDS).offset)

    specs = (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp(), OffsetSpec.for_timestamp(T0 + 3))
    assert [offset(spec) for spec in specs] == [0, 10, 9, 3]
    (deleted,) = admin.delete_records([TopicPartition(name, 0, 4)]).values()
    assert deleted.result(SECONDS).low_watermark == 4
    assert offset(OffsetSpec.earliest()) == 4


def test_what_is_not_there(cluster: Any, admin: AdminClient) -> None:
    shown = admin.list_topics("no-such-topic", timeout=SECONDS)
    assert shown.topics["no-such-topic"].error.name() == "UNKNOWN_TOPIC_OR_PART"
    (found,) = admin.list_offsets(
        {TopicPartition(cluster.new_topic(), 7): OffsetSpec.latest()}, request_timeout=1.5
    ).values()
    assert refused(found) in ("_NOENT",)
