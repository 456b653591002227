"""Produce requests that count as small ones under way, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.small_first import SMALL, SMALL_FIRST
from tests.storage_node.protocol.network.test_closed_connections import held_up
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

BATCH = build_batch([b"record"])


def values(partitions: int, *, seconds: float) -> dict[str, object]:
    rows = [{"index": number, "records": BATCH} for number in range(partitions)]
    return {
        "acks": 1,
        "timeout": timedelta(seconds=seconds),
        "topic_data": [{"name": "t", "partition_data": rows}],
    }


@pytest.mark.parametrize(("partitions", "counts"), [(1, 1), (SMALL, 1), (SMALL + 1, 0)])
def test_small_produce_counts_until_it_is_appended(harness: Harness, partitions: int, counts: int) -> None:
    harness.create_topic("t", SMALL + 1)
    client = Client(harness)
    with held_up(harness):
        client.send(0, 9, values(partitions, seconds=10))
        until(lambda: SMALL_FIRST.under_way == counts, 2, what="it counts")
    assert client.receive()[1].responses[0].partition_responses[0].error_code == 0
    assert SMALL_FIRST.under_way == 0


def test_small_produce_that_is_late_does_not_count(harness: Harness) -> None:
    harness.create_topic("t", 1)
    client = Client(harness)
    with held_up(harness):
        client.send(0, 9, values(1, seconds=0.1))
        assert client.receive()[1].responses[0].partition_responses[0].error_code == 7
        assert SMALL_FIRST.under_way == 0
