"""How large a node's replicas are, as others ask it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.wire.client.log_sizes import log_sizes
from tests.support.nodes.node_harness import running
from tests.support.wire import Client


def test_log_sizes_returns_requested_replicas_without_future_copies(tmp_path: Path) -> None:
    one, two, nowhere = TopicPartition("t", 0), TopicPartition("u", 1), TopicPartition("t", 9)
    with running(tmp_path, 2) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t")
        harness.create_topic("u", 2)
        harness.produce("t", [b"x" * 1000] * 20)
        client = Client(harness)
        wanted = [{"path": harness.other_directory("t"), "topics": [{"name": "t", "partitions": [0]}]}]
        (topic,) = client.call("AlterReplicaLogDirs", 2, dirs=wanted).results
        assert int(topic.partitions[0].error_code) == 0
        rows = [row for each in client.call("DescribeLogDirs", 1, topics=None).results for row in each.topics]
        assert [row.name for row in rows].count("t") == 2, "the replica and its copy"
        client.close()
        where, replica = ("127.0.0.1", harness.node.port), harness.node.partition(one)
        assert replica is not None and replica.log.size > 20_000
        assert log_sizes(*where, [one, two, nowhere]) == {one: replica.log.size, two: 0}
        assert log_sizes(*where, [two]) == {two: 0}
        assert log_sizes(*where, []) == {}
    with pytest.raises(OSError):
        log_sizes(*where, [one])


def test_log_sizes_of_a_silent_node_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        log_sizes("127.0.0.1", silent.getsockname()[1], [TopicPartition("t", 0)], 0.2)
