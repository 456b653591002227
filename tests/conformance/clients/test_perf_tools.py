"""Kafka's own measuring and verifying programs against the cluster."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients.conftest import fresh
from tests.conformance.conftest import Tools
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]


def test_producer_and_consumer_performance(cluster: Any, tools: Tools) -> None:
    topic = cluster.new_topic(partitions=2)
    size = ("--num-records", "5000", "--record-size", "200", "--throughput", "-1")
    told = tools.out("kafka-producer-perf-test", "--topic", topic, *size)
    assert re.search(r"^5000 records sent, [\d.]+ records/sec", told, re.MULTILINE), told
    assert sum(cluster.end_offset(topic, partition) for partition in (0, 1)) == 5000
    told = tools.out("kafka-consumer-perf-test", "--topic", topic, "--num-records", "5000")
    head, figures = (line.split(", ") for line in told.splitlines()[:2])
    assert figures[head.index("data.consumed.in.nMsg")] == "5000"


@pytest.mark.slow_conformance
def test_verifiable_producer_and_consumer(cluster: Any, tools: Tools, tmp_path: Path) -> None:
    topic, group = cluster.new_topic(partitions=2), fresh()
    arguments = ("--topic", topic, "--group-id", group, "--reset-policy", "earliest", "--verbose")
    consumer = tools.start("kafka-verifiable-consumer", *arguments)
    try:
        code, _, err = tools.run(
            "kafka-verifiable-producer", "--topic", topic, "--max-messages", "500", own_process=True
        )
        assert code == 0, err
        until(lambda: _committed(tools, group) == 500, 30, "the consumer has read and committed everything")
        consumer.send_signal(signal.SIGTERM)
        out, _ = consumer.communicate(timeout=20)
    finally:
        consumer.kill()
        consumer.wait()
    events = [json.loads(line) for line in out.splitlines()]
    values = [event["value"] for event in events if event["name"] == "record_data"]
    assert sorted(values, key=int) == [str(number) for number in range(500)]
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")


def _committed(tools: Tools, group: str) -> int:
    """The sum of the group's offsets."""
    code, out, _ = tools.run("kafka-consumer-groups", "--describe", "--group", group)
    rows = [line.split() for line in out.splitlines() if line.startswith(group)]
    return sum(int(row[3]) for row in rows if row[3].isdigit()) if code == 0 else -1
