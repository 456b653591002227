"""DescribeProducers: the idempotent producers of a partition."""

from __future__ import annotations

import time

import pytest

from storage_node.log.batches.batch import build_batch
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client, offered

NOW = int(time.time() * 1000)


def describe(client: Client, version: int, *asked: tuple[str, int]) -> dict[tuple[str, int], tuple[int, list[object]]]:
    topics = [{"name": name, "partition_indexes": [index]} for name, index in asked]
    return {
        (topic.name, row.partition_index): (
            int(row.error_code),
            [
                (
                    each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp,
                    each.coordinator_epoch, each.current_txn_start_offset,
                )
                for each in sorted(row.active_producers, key=lambda each: each.producer_id)
            ],
        )
        for topic in client.ask(61, version, {"topics": topics}).topics
        for row in topic.partitions
    }  # fmt: skip


@pytest.mark.parametrize("version", offered(61))
def test_describe_producers_returns_the_state_of_each_partition(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    client = Client(harness)
    for producer, epoch, count in ((7, 0, 3), (9, 2, 1)):
        sent = build_batch(
            [b"x"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=0, timestamp=NOW + producer
        )
        assert not client.produce("t", 0, sent).error
    assert not client.produce("t", 1, build_batch([b"no producer id"], timestamp=NOW)).error
    assert describe(client, version, ("t", 0), ("t", 1), ("t", 5), ("t", -1), ("absent", 0)) == {
        ("t", 0): (0, [(7, 0, 2, NOW + 9, -1, -1), (9, 2, 0, NOW + 9, -1, -1)]),
        ("t", 1): (0, []),
        ("t", 5): (3, []),
        ("t", -1): (3, []),
        ("absent", 0): (3, []),
    }
    client.close()


@pytest.mark.parametrize("version", offered(61))
def test_describe_producers_of_an_offline_replica_returns_kafka_storage_error(harness: Harness, version: int) -> None:
    harness.create_topic("t", 1)
    node, client = harness.node, Client(harness)
    (tp,) = node.replicas.served
    node.replicas.set_offline({tp: "its disk is gone"})
    assert describe(client, version, ("t", 0)) == {("t", 0): (56, [])}
    client.close()
