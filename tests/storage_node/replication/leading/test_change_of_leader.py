"""Three nodes: what a leader change preserves, and a node that has not learned of it yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.errors import RequestTimedOut
from storage_node.log.batches.batch import build_batch
from storage_node.model.error_codes import ErrorCode
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path, 3, 2) as made:
        yield made


def client(cluster: MemoryCluster, number: int) -> Client:
    return Client(f"127.0.0.1:{cluster.nodes[number].port}")


def sequenced(first: int, count: int = 1) -> bytes:
    values = [b"value-%d" % number for number in range(first, first + count)]
    return build_batch(values, timestamp=1_700_000_000_000, producer_id=4711, producer_epoch=0, base_sequence=first)


def state_of(cluster: MemoryCluster, number: int) -> Any:
    return cluster.replica(number, "t").leading


def test_new_leader_knows_what_idempotent_producers_have_sent(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]])
    first = client(cluster, 1)
    for number in range(3):
        assert first.produce("t", 0, sequenced(number)).base_offset == number
    first.close()
    cluster.stop(1, clean=False)
    cluster.controller.spread()
    assert cluster.controller.partition("t").leader == 2
    second = client(cluster, 2)
    # The response was lost and the producer retries; the log has no duplicate.
    again = second.produce("t", 0, sequenced(2))
    assert (again.error, again.base_offset) == (0, 2)
    assert second.produce("t", 0, sequenced(5)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert second.produce("t", 0, sequenced(3)).base_offset == 3
    second.close()
    assert cluster.consume("t", 4) == [b"value-%d" % number for number in range(4)]


def test_what_was_acknowledged_outlives_two_leaders(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
    sent = [b"a%d" % number for number in range(200)]
    cluster.produce("t", sent)
    cluster.stop(1, clean=False)
    cluster.controller.spread()
    sent += (more := [b"b%d" % number for number in range(200)])
    cluster.produce("t", more)
    cluster.start(1)
    until(lambda: set(cluster.controller.partition("t").isr) == {1, 2, 3}, what="1 is back in sync")
    cluster.stop(2, clean=False)
    cluster.controller.spread()
    assert cluster.consume("t", 400) == sent
    row = cluster.controller.partition("t")
    assert row.leader in (1, 3) and row.leader_epoch >= 2
    until(lambda: set(cluster.controller.partition("t").isr) == {1, 3})


def test_unregistered_start_does_not_lead_replicated_partitions(
    cluster: MemoryCluster,
) -> None:
    cluster.create_topic("t", [[1, 2, 3]])
    cluster.create_topic("own", [[1]])
    cluster.produce("t", [b"a"])
    cluster.stop(1, clean=False)
    cluster.controller.cut.add(1)
    with pytest.raises(RequestTimedOut):
        cluster.start(1)
    old = client(cluster, 1)
    # By its own disk node 1 leads; by now node 2 does.
    assert old.produce("t", 0, sequenced(0), acks=1).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert old.fetch("t", 0, 0)[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not old.produce("own", 0, sequenced(0)).error
    old.close()
    assert cluster.controller.partition("t").leader == 2
    cluster.controller.heal(1)
    cluster.controller.attach(cluster.nodes[1])
    until(lambda: set(cluster.controller.partition("t").isr) == {1, 2, 3})


def test_isolated_leader_commits_nothing_more(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]])
    cluster.produce("t", [b"a"])
    until(lambda: state_of(cluster, 1).high_watermark == 1)
    controller = cluster.controller
    controller.cut.add(1)
    controller.fence(1)
    controller.spread()
    until(lambda: cluster.replica(2, "t").is_leader)
    old = client(cluster, 1)
    # The isolated leader still appends with acks=1, but consumers do not see these records.
    assert not old.produce("t", 0, sequenced(0), acks=1).error
    assert cluster.replica(1, "t").high_watermark == 1
    old.send_produce("t", 0, sequenced(1), acks=-1)
    controller.heal(1)
    controller.attach(cluster.nodes[1])
    assert old.receive_produce()[1].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    old.close()
    new = client(cluster, 2)
    assert new.produce("t", 0, build_batch([b"b"], timestamp=1), acks=1).base_offset == 1
    new.close()
    assert cluster.consume("t", 2)[1] == b"b"


@pytest.mark.parametrize("nodes", [(1, 2), (2,)], ids=["all nodes", "one of them"])
def test_server_properties_allow_unclean_elections_where_all_nodes_agree(
    tmp_path: Path, nodes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster(tmp_path, 2)
    said = {number: {"unclean.leader.election.enable": "true"} if number in nodes else {} for number in (1, 2)}
    try:
        for number in (1, 2):
            cluster.start(number, said[number])
        assert f"node {nodes[-1]} allows unclean elections" in caplog.text
        cluster.create_topic("t", [[1, 2]])
        cluster.produce("t", [b"both"])
        cluster.stop(2)
        cluster.produce("t", [b"one"])
        cluster.stop(1)
        cluster.start(2, said[2])
        assert cluster.controller.partition("t").leader == (2 if nodes == (1, 2) else -1)
        if nodes == (1, 2):
            assert cluster.consume("t", 1) == [b"both"]
    finally:
        cluster.close()
