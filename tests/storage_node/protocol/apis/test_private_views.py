"""The node's views of moves and reassignments for clients that poll them: from memory, without a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.wire.client import private_client
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.nodes.reassigning import wanted_topics
from tests.support.wire import Client

TP = TopicPartition("t", 0)


def call(port: int, op: str, **fields: Any) -> Any:
    return private_client.call("127.0.0.1", port, op, timeout=30, **fields)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path, 3, 2) as made:
        yield made


def swap(harness: Harness, target: str) -> None:
    engine = harness.node.engine
    claim = engine.create(TP, target, owner="me").claim
    engine.start_copy(TP, claim)
    assert engine.wait(TP, claim, 30).state is MoveState.CAUGHT_UP
    until(lambda: engine.swap(TP, claim).outcome == "swapped")


@pytest.mark.parametrize("restart", [False, True])
def test_source_of_a_swap_is_shown_until_it_is_deleted(tmp_path: Path, restart: bool) -> None:
    with running(tmp_path, 2, {"file.delete.delay.ms": "60000"}) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t")
        harness.produce("t", [b"x" * 1000])
        source, target = harness.directory_of("t"), harness.other_directory("t")
        swap(harness, target)
        if restart:
            harness.restart()
        (row,) = call(harness.node.port, "moves")["delete_delays"]
        assert (row["topic"], row["partition"], row["source"], row["directory"]) == ("t", 0, source, target)
        assert row["bytes_total"] > 1000 and 0 < row["due"] <= 60
        harness.delete_topic("t")
        assert call(harness.node.port, "moves")["delete_delays"] == [], "a topic's deletion is not a move's"


def test_views_have_the_fenced_nodes_and_the_version_of_the_metadata(cluster: MemoryCluster) -> None:
    cluster.controller.fence(3)
    found = until(lambda: (answer := call(cluster.nodes[1].port, "moves"))["fenced"] and answer)
    assert found["fenced"] == [3]
    assert (found["generation"], found["version"]) == cluster.nodes[1].metadata.image.pair


def test_reassignment_view_has_each_nodes_replica_size(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1]])
    cluster.create_topic("u", [[2]])
    cluster.produce("t", [b"x" * 1000])
    cluster.stop(3)
    assert call(cluster.nodes[1].port, "reassignments")["partitions"] == []
    (row,) = call(cluster.nodes[1].port, "reassignments", topics=["u"])["partitions"]
    assert row == ["u", 0, [2], [], [], [2], 2]
    with closing(Client(f"127.0.0.1:{cluster.nodes[1].port}")) as client:
        wanted = wanted_topics({("t", 0): [2, 3]})
        client.call("AlterPartitionReassignments", 0, topics=wanted, timeout=timedelta(seconds=10))
    found = until(lambda: (answer := call(cluster.nodes[1].port, "reassignments"))["partitions"] and answer)
    (row,) = found["partitions"]
    assert (row[:2], sorted(row[2]), sorted(row[3]), row[4], row[6]) == (["t", 0], [1, 2, 3], [2, 3], [1], 1)
    ((topic, partition, held),) = found["sizes"]
    assert (topic, partition) == ("t", 0) and held > 1000
    assert found["catching_up"] == [], "no step of a run observes the replicas"
