"""The Java producer and consumer as they are out of the box."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.clients.conftest import Ask

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_produce_and_read_with_assign_and_seek(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic(partitions=3)
    sent = ask("produce", topic=topic, prefix="r", count=300, keys=30)
    assert sent["failures"] == []
    rows = sent["acknowledged"]
    assert {row[0] for row in rows} == {0, 1, 2}
    read = ask("consume", assign=[[topic, p] for p in range(3)], count=300, seconds=60)
    assert sorted(read["records"]) == sorted(rows)
    assert read["positions"] == read["ends"]
    middle = ask("consume", assign=[[topic, 1]], seek=[[topic, 1, 7]], count=3, seconds=60)
    assert [row[1] for row in middle["records"][:3]] == [7, 8, 9]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression(ask: Ask, cluster: Any, compression: str) -> None:
    topic = cluster.new_topic()
    packed = {"compression.type": compression, "linger.ms": "50"}
    sent = ask("produce", topic=topic, partition=0, prefix="r" * 100, count=200, config=packed)
    assert sent["failures"] == []
    read = ask("consume", assign=[[topic, 0]], count=200, seconds=60)
    assert read["records"] == sent["acknowledged"]


def test_topic_deleted_and_made_again_under_its_name(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic()
    ask("produce", topic=topic, partition=0, prefix="old", count=5)
    cluster.delete_topic(topic)
    assert cluster.new_topic(name=topic) == topic
    sent = ask("produce", topic=topic, partition=0, prefix="new", count=2)
    assert [row[:2] for row in sent["acknowledged"]] == [[0, 0], [0, 1]]
