"""Producing and consuming with librdkafka and with hand-made requests."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec

from storage_node.log.batches.batch import build_batch
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client, offered

OUT_OF_RANGE, UNKNOWN, OUT_OF_ORDER, DUPLICATE_FREE = 1, 3, 45, 0


def test_idempotent_producer_and_an_assigned_consumer(harness: Harness) -> None:
    harness.create_topic("t", 3)
    for partition in range(3):
        harness.produce("t", [b"%d-%d" % (partition, i) for i in range(500)], partition)
    for partition in range(3):
        found = harness.consume("t", 500, partition)
        assert [m.value() for m in found] == [b"%d-%d" % (partition, i) for i in range(500)]
        assert [m.offset() for m in found] == list(range(500))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_appended_unchanged(harness: Harness, codec: str) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"x" * 200 for _ in range(300)], compression_type=codec)
    assert [m.value() for m in harness.consume("t", 300)] == [b"x" * 200] * 300


def test_consumers_log_nothing_and_do_not_wait_for_a_coordinator(
    harness: Harness, capfd: pytest.CaptureFixture[str]
) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"x"])
    consumer = harness.consumer()
    consumer.assign([KafkaPartition("t", 0, 0)])
    message = consumer.poll(30)
    assert message is not None and message.error() is None
    assert consumer.get_watermark_offsets(KafkaPartition("t", 0), timeout=30) == (0, 1)
    consumer.close()
    # (Another client, of the harness or of an earlier test, may log that it disconnects.)
    assert "#consumer" not in capfd.readouterr().err


def test_offsets_by_time_and_at_both_ends(harness: Harness) -> None:
    harness.create_topic("t")
    producer = harness.producer()
    for i in range(10):
        producer.produce("t", b"x", partition=0, timestamp=1_000_000 + i * 1000)
        producer.flush()
    admin = harness.admin()

    def offset(spec: OffsetSpec) -> int:
        answer = admin.list_offsets({KafkaPartition("t", 0): spec})
        return int(next(iter(answer.values())).result(10).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(1_003_500)) == 4
    assert offset(OffsetSpec.for_timestamp(9_000_000)) == -1


def test_deleted_records_are_out_of_range_and_stay_deleted(harness: Harness) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"x"] * 100)
    admin = harness.admin()
    answer = admin.delete_records([KafkaPartition("t", 0, 40)])
    assert next(iter(answer.values())).result(10).low_watermark == 40
    with pytest.raises(KafkaException) as error:
        next(iter(admin.delete_records([KafkaPartition("t", 0, 101)]).values())).result(10)
    assert error.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    harness.restart(clean=False)
    consumer = harness.consumer()
    consumer.assign([KafkaPartition("t", 0, 10)])
    message = until(lambda: consumer.poll(0.5))
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()
    assert harness.consume("t", 1, offset=40)[0].offset() == 40


def test_fetch_waits_for_records_and_responds_when_they_arrive(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    client.send_fetch("t", 0, 0, max_wait_ms=60_000)
    harness.produce("t", [b"late"])
    (row,) = client.receive_fetch()
    assert row.error == 0 and b"late" in row.records
    begun = time.monotonic()
    (row,) = client.fetch("t", 0, 1, max_wait_ms=300)
    assert row.error == 0 and row.records == b"" and row.high_watermark == 1
    assert time.monotonic() - begun > 0.28
    begun = time.monotonic()
    (row,) = client.fetch("t", 0, 0, max_wait_ms=300, min_bytes=1_000_000)
    assert b"late" in row.records and time.monotonic() - begun > 0.28
    client.close()


@pytest.mark.parametrize(
    ("min_bytes", "max_bytes", "partition_max_bytes", "at_once"),
    [
        (1, 1 << 20, 1 << 20, True),
        (20_000, 1 << 20, 1 << 20, True),
        (20_000, 10_000, 1 << 20, True),  # capped at the response's max_bytes
        (2**31 - 1, 0, 1 << 20, True),
        (20_000, 1 << 20, 10_000, False),  # a partition counts up to its max_bytes
        (80_000, 1 << 20, 1 << 20, False),
    ],
)
def test_fetch_responds_at_once_when_min_bytes_are_available(
    harness: Harness, min_bytes: int, max_bytes: int, partition_max_bytes: int, at_once: bool
) -> None:
    harness.create_topic("t")
    client = Client(harness)
    for _ in range(10):
        assert client.produce("t", 0, batch([b"x" * 4000])).error == 0
    begun = time.monotonic()
    limits = {"min_bytes": min_bytes, "max_bytes": max_bytes, "partition_max_bytes": partition_max_bytes}
    (row,) = client.fetch("t", 0, 0, max_wait_ms=60_000 if at_once else 300, **limits)
    assert row.error == 0 and row.records
    assert at_once or time.monotonic() - begun > 0.28
    client.close()


def test_records_in_a_sealed_segment_are_enough_for_any_min_bytes(harness: Harness) -> None:
    """Apache Kafka's DelayedFetch completes at once for an offset below the active segment."""
    harness.create_topic("t", configs={"segment.bytes": "50000"})
    client = Client(harness)
    for _ in range(20):
        assert client.produce("t", 0, batch([b"x" * 10_000])).error == 0
    (row,) = client.fetch("t", 0, 0, max_wait_ms=60_000, min_bytes=1_000_000)
    assert row.records
    client.close()


def test_fetch_that_waits_for_min_bytes_reads_nothing(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t")
    client, producer = Client(harness), Client(harness)
    for _ in range(10):
        assert producer.produce("t", 0, batch([b"x" * 100_000])).error == 0
    reads, read = list[int](), Log.read

    def counted(log: Log, offset: int, *args: Any, **kwargs: Any) -> Any:
        reads.append(offset)
        return read(log, offset, *args, **kwargs)

    monkeypatch.setattr(Log, "read", counted)
    client.send_fetch("t", 0, 0, max_wait_ms=20_000, min_bytes=1_500_000, partition_max_bytes=5_000_000)
    for _ in range(4):
        assert producer.produce("t", 0, batch([b"x" * 100_000])).error == 0
    assert reads == []
    assert producer.produce("t", 0, batch([b"x" * 100_000])).error == 0
    (row,) = client.receive_fetch()
    assert len(row.records) > 1_500_000 and reads == [0]
    client.close()
    producer.close()


def test_fetch_keeps_to_its_limits_but_for_the_first_batch(harness: Harness) -> None:
    harness.create_topic("t", 2)
    for partition in range(2):
        harness.produce("t", [b"x" * 1000] * 20, partition, batch_num_messages=1, linger_ms=0)
    client = Client(harness)
    rows = client.fetch("t", 0, 0, max_bytes=10, partition_max_bytes=10)
    assert 1000 < len(rows[0].records) < 1200
    rows = client.fetch("t", 0, 0, partition_max_bytes=5000)
    assert 4000 < len(rows[0].records) <= 5000
    rows = client.fetch_many([("t", 0, 0), ("t", 1, 0)], max_bytes=10)
    assert sorted(bool(row.records) for row in rows) == [False, True]
    (row,) = client.fetch("t", 0, 99)
    assert row.error == OUT_OF_RANGE
    (row,) = client.fetch("t", 7, 0)
    assert row.error == UNKNOWN
    client.close()


@pytest.mark.parametrize("version", offered(1))
def test_every_version_of_fetch(harness: Harness, version: int) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"hello"])
    client = Client(harness)
    (row,) = client.fetch("t", 0, 0, version=version)
    assert row.error == 0 and b"hello" in row.records and row.high_watermark == 1
    client.close()


@pytest.mark.parametrize("version", offered(0))
def test_every_version_of_produce(harness: Harness, version: int) -> None:
    harness.create_topic("t")
    client = Client(harness)
    row = client.produce("t", 0, batch([b"a", b"b"]), version=version)
    assert (row.error, row.base_offset) == (0, 0)
    row = client.produce("t", 0, batch([b"c"]), version=version)
    assert (row.error, row.base_offset) == (0, 2)
    assert client.produce("t", 5, batch([b"c"]), version=version).error == UNKNOWN
    assert client.produce("t", 0, batch([b"c"]), version=version, acks=2).error == 21
    client.close()


def batch(values: list[bytes], **kwargs: Any) -> bytes:
    return build_batch(values, **kwargs)


def test_producers_batch_sent_twice_is_appended_once(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    first = batch([b"a", b"b"], producer_id=77, producer_epoch=0, base_sequence=0)
    second = batch([b"c"], producer_id=77, producer_epoch=0, base_sequence=2)
    gap = batch([b"z"], producer_id=77, producer_epoch=0, base_sequence=9)
    assert [client.produce("t", 0, data).base_offset for data in (first, second)] == [0, 2]
    again = client.produce("t", 0, first)
    assert (again.error, again.base_offset) == (0, 0)
    assert client.produce("t", 0, gap).error == OUT_OF_ORDER
    harness.restart()
    client = Client(harness)
    again = client.produce("t", 0, second)
    assert (again.error, again.base_offset) == (0, 2)
    partition = harness.node.partition(TopicPartition("t", 0))
    assert partition is not None and partition.high_watermark == 3
    client.close()


def test_damaged_batches_are_refused_and_change_nothing(harness: Harness) -> None:
    harness.create_topic("t", configs={"max.message.bytes": "2000"})
    client = Client(harness)
    good = bytearray(batch([b"hello"]))
    good[-1] ^= 1
    assert client.produce("t", 0, bytes(good)).error == 2
    assert client.produce("t", 0, b"").error == 87
    assert client.produce("t", 0, b"\0" * 30).error in (2, 87)
    assert client.produce("t", 0, batch([b"x" * 3000])).error == 10
    (row,) = client.fetch("t", 0, 0)
    assert row.high_watermark == 0
    client.close()


def test_acks_0_has_no_response_and_pipelined_requests_get_theirs_in_order(harness: Harness) -> None:
    harness.create_topic("t", 2)
    client = Client(harness)
    ids = []
    for number in range(50):
        client.send_produce("t", number % 2, batch([b"%d" % number]), acks=0)
        ids.append(client.send_produce("t", number % 2, batch([b"%d" % number])))
    found = [client.receive_produce() for _ in ids]
    assert [correlation for correlation, _ in found] == ids
    assert [row.base_offset for _, row in found] == [2 * (number // 2) + 1 for number in range(50)]
    client.close()


@pytest.mark.parametrize("wrong", ["topic", "partition", "records", "transaction"])
def test_connection_ends_when_a_produce_with_acks_0_fails(harness: Harness, wrong: str) -> None:
    harness.create_topic("t")
    client = Client(harness)
    sent = client.send_produce("t", 0, batch([b"before"]))
    if wrong == "transaction":
        client.send_produce("t", 0, batch([b"lost"]), acks=0, transactional_id="x")
    else:
        topic, number = "nowhere" if wrong == "topic" else "t", 7 if wrong == "partition" else 0
        client.send_produce(topic, number, b"" if wrong == "records" else batch([b"lost"]), acks=0)
    found, row = client.receive_produce()
    assert (found, row.error, row.base_offset) == (sent, 0, 0), "the requests before it have their responses"
    assert client.closed()
    client.close()
    other = Client(harness)
    assert other.produce("t", 0, batch([b"after"])).base_offset == 1
    other.close()


def test_connection_stays_when_a_produce_with_acks_0_succeeds(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    client.send_produce("t", 0, batch([b"a"]), acks=0)
    assert client.produce("t", 0, batch([b"b"])).base_offset == 1
    assert client.produce("t", 7, batch([b"c"])).error == UNKNOWN
    assert client.produce("t", 0, batch([b"d"])).base_offset == 2, "an error response keeps the connection"
    client.close()


def test_lost_leadership_wakes_waiting_fetches(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    client.send_fetch("t", 0, 0, max_wait_ms=60_000)
    partition = harness.node.partition(TopicPartition("t", 0))
    assert partition is not None
    until(lambda: partition._waiters)
    harness.node.dirs.by_path(partition.directory.name).fail("I/O error")
    (row,) = client.receive_fetch()
    assert row.error == 56
    client.close()


def test_fenced_and_unknown_leader_epochs(harness: Harness) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"x"])
    partition = harness.node.partition(TopicPartition("t", 0))
    assert partition is not None
    lead(partition, 5, True)
    client = Client(harness)
    assert client.fetch("t", 0, 0, leader_epoch=4)[0].error == 74
    assert client.fetch("t", 0, 0, leader_epoch=6)[0].error == 75
    assert client.fetch("t", 0, 0, leader_epoch=5)[0].error == 0
    client.close()
