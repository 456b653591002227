"""CreatePartitions: more partitions of a topic in use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client, offered


def create(client: Client, version: int = 3, only_check: bool = False, **topic: Any) -> tuple[int, str | None]:
    topics = [{"name": "t", "assignments": None} | topic]
    values = {"topics": topics, "timeout": timedelta(seconds=10), "validate_only": only_check}
    (row,) = client.ask(37, version, values).results
    return int(row.error_code), row.error_message


@pytest.mark.parametrize("version", offered(37))
def test_new_partitions_exist_at_the_response_and_old_ones_are_unchanged(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    harness.produce("t", [b"kept"], partition=1)
    client = Client(harness)
    assert create(client, version, count=4) == (0, None)
    assert [client.produce("t", index, build_batch([b"new"])).base_offset for index in range(4)] == [0, 1, 0, 0]
    assert [message.value() for message in harness.consume("t", 2, 1)] == [b"kept", b"new"]
    harness.restart()
    assert [message.value() for message in harness.consume("t", 1, 3)] == [b"new"]
    client.close()


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        ({"count": 2}, 37, "Topic already has 2 partition(s)."),
        ({"count": 1}, 37, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        ({"count": -5}, 37, "The topic t currently has 2 partition(s); -5 would not be an increase."),
        ({"count": 2**31 - 1}, 37, None),
        ({"name": "nothing", "count": 3}, 3, None),
        (
            {"count": 4, "assignments": [{"broker_ids": [1]}]},
            39,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            {"count": 3, "assignments": [{"broker_ids": [9]}]},
            39,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            {"count": 3, "assignments": [{"broker_ids": [1, 1]}]},
            39,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            {"count": 3, "assignments": [{"broker_ids": []}]},
            39,
            "The manual partition assignment includes an empty replica list.",
        ),
    ],
)
def test_invalid_create_partitions_are_rejected(
    harness: Harness, topic: dict[str, Any], code: int, message: str | None
) -> None:
    harness.create_topic("t", 2)
    client = Client(harness)
    done = create(client, **topic)
    assert done == (code, message) if message else done[0] == code
    assert len(harness.node.metadata.image.topics["t"].partitions) == 2
    client.close()


def test_validate_only_changes_nothing_and_a_duplicate_topic_is_rejected_once(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    assert create(client, only_check=True, count=3) == (0, None)
    topics = [{"name": "t", "count": count, "assignments": None} for count in (2, 3)]
    (row,) = client.ask(37, 3, {"topics": topics, "timeout": timedelta(seconds=5)}).results
    assert (row.name, int(row.error_code), row.error_message) == ("t", 42, "Duplicate topic name.")
    assert len(harness.node.metadata.image.topics["t"].partitions) == 1
    client.close()


def test_new_partition_is_placed_in_the_directory_with_the_least_data(harness: Harness) -> None:
    harness.create_topic("t", 3)
    held = {harness.directory_of("t", index) for index in range(3)}
    assert len(held) == 3
    for index in range(3):
        harness.produce("t", [b"x" * 30_000 if index != 1 else b"x"], partition=index)
    client = Client(harness)
    assert create(client, count=4, assignments=[{"broker_ids": [1]}]) == (0, None)
    assert harness.directory_of("t", 3) == harness.directory_of("t", 1)
    client.close()


def test_running_producer_with_keys_uses_the_new_partitions(harness: Harness) -> None:
    harness.create_topic("t")
    producer = harness.producer(topic_metadata_refresh_interval_ms=100)
    producer.produce("t", b"before", key=b"k")
    assert producer.flush(30) == 0
    admin = harness.admin()
    admin.create_partitions([NewPartitions("t", 3)])["t"].result(30)

    def spread() -> bool:
        for number in range(50):
            producer.produce("t", b"v", key=b"%d" % number)
        assert producer.flush(30) == 0
        parts = [harness.node.partition(TopicPartition("t", index)) for index in range(3)]
        return all(part is not None and part.log.log_end_offset > 0 for part in parts)

    until(spread, 60, "records in every partition")
