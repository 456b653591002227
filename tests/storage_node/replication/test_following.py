"""Followers on real nodes catch up, follow a new leader, and lose no acknowledged record."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition as Tp
from storage_node.model.moves import Outcome
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import assert_equal, content, in_sync, settled


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MemoryCluster]:
    """With a replica.lag.time.max.ms that a slow machine does not exceed, or of what a test sets."""
    extra = {
        "replica.lag.time.max.ms": str(getattr(request, "param", 15_000)),
        "replica.fetch.backoff.ms": "200",
        "log.retention.check.interval.ms": "200",
        "replica.fetch.wait.max.ms": "200",
    }
    with running_cluster(tmp_path, extra=extra) as made:
        yield made


SHORT_LAG = pytest.mark.parametrize("cluster", [1500], indirect=True)


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def leader_of(cluster: MemoryCluster, topic: str = "t") -> int:
    return cluster.controller.partition(topic).leader


def back(cluster: MemoryCluster, node: int) -> None:
    """Reconnect a node that was cut off and fenced."""
    cluster.controller.heal(node)
    cluster.controller.detach(cluster.nodes[node])
    cluster.controller.attach(cluster.nodes[node])


def tail(cluster: MemoryCluster, node: int, count: int) -> None:
    """Append records that only this node has, as a node that still believes that it leads."""
    for number in range(count):
        batch = build_batch([b"lost %d" % number], timestamp=int(time.time() * 1000))
        cluster.replica(node, "t").append(batch)


def test_followers_have_what_the_leader_has(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], {"segment.bytes": "10000"})
    for partition in range(3):
        for part in range(3):
            cluster.produce("t", values(1000 * part, 1000), partition)
        assert settled(cluster, "t", partition) == 3000
        assert_equal(cluster, "t", partition)
        assert len(cluster.replica(3, "t", partition).log.segments) > 1
    assert cluster.consume("t", 3000, 1) == values(0, 3000)


@pytest.mark.parametrize("clean", [True, False])
def test_restarted_follower_catches_up_and_joins_the_isr(cluster: MemoryCluster, clean: bool) -> None:
    cluster.create_topic("t", [[1, 2, 3]], {"segment.bytes": "20000"})
    cluster.produce("t", values(0, 500))
    cluster.stop(3, clean=clean)
    in_sync(cluster, "t", [1, 2])
    cluster.produce("t", values(500, 2500))
    cluster.start(3)
    in_sync(cluster, "t", [1, 2, 3])
    assert settled(cluster, "t") == 3000
    assert_equal(cluster, "t")


def test_reassigned_replica_is_filled_and_the_old_one_deleted(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2]], {"segment.bytes": "20000"})
    cluster.produce("t", values(0, 2000))
    target = cluster.paths[3][1]
    # The preferred directory is recorded before the replica exists, which is then created there.
    cluster.nodes[3].preferred_log_dirs.remember([(Tp("t", 0), cluster.nodes[3].dirs.by_path(target))])
    command = {"do": "alter_reassignments", "partitions": [["t", 0, [2, 3]]], "may_change_factor": True}
    (answer,) = cluster.controller.submit(cluster.nodes[1], command)
    assert not answer.get("error"), answer
    until(lambda: cluster.controller.partition("t").replicas == (2, 3), what="the reassignment is complete")
    until(lambda: cluster.replica(1, "t") is None, what="the removed replica is not served any more")
    until(lambda: not list(Path(cluster.paths[1][0]).parent.glob("*/t-0*")), what="its files are gone")
    assert settled(cluster, "t", nodes=[2, 3]) == 2000
    assert_equal(cluster, "t", nodes=[2, 3])
    assert cluster.replica(3, "t").directory.name == target
    assert cluster.consume("t", 2000) == values(0, 2000)


@pytest.mark.parametrize("more", [0, 7])
def test_records_of_only_the_old_leader_are_truncated(cluster: MemoryCluster, more: int) -> None:
    """Not all replicas acknowledged it; whether the new leader has appended more or less makes no difference."""
    cluster.create_topic("t", [[1, 2, 3]])
    cluster.produce("t", values(0, 100))
    settled(cluster, "t")
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    cluster.controller.spread()
    assert leader_of(cluster) != 1 and cluster.replica(1, "t").is_leader
    tail(cluster, 1, 5)
    if more:
        for number in range(more):
            cluster.replica(leader_of(cluster), "t").append(
                build_batch([b"kept %d" % number], timestamp=int(time.time() * 1000))
            )
    back(cluster, 1)
    until(lambda: not cluster.replica(1, "t").is_leader, what="it learns that it does not lead any more")
    assert settled(cluster, "t") == 100 + more
    assert_equal(cluster, "t")
    assert b"lost" not in content(cluster.replica(1, "t").log)


def test_logs_that_diverge_twice_converge(cluster: MemoryCluster) -> None:
    """Each of two nodes led alone: both have epochs that the other one does not know."""
    cluster.create_topic("t", [[1, 2]], {"unclean.leader.election.enable": "true"})
    cluster.produce("t", values(0, 50))
    settled(cluster, "t", nodes=[1, 2])
    cluster.stop(2, clean=False)
    cluster.produce("t", values(50, 30))
    cluster.stop(1, clean=False)
    cluster.start(2)
    # An operator gives up the records that only node 1 has.
    command = {"do": "elect_leaders", "partitions": [["t", 0]], "unclean": True}
    cluster.controller.submit(cluster.nodes[2], command)
    until(lambda: cluster.replica(2, "t") is not None and cluster.replica(2, "t").is_leader, what="node 2 leads")
    cluster.produce("t", [b"other %d" % number for number in range(7)], acks="1", enable_idempotence=False)
    cluster.start(1)
    end = settled(cluster, "t", nodes=[1, 2])
    assert_equal(cluster, "t", nodes=[1, 2])
    assert end == 57 and b"other 6" in content(cluster.replica(1, "t").log)


@pytest.mark.parametrize("clean", [True, False])
def test_stopped_leader_loses_no_acknowledged_record(cluster: MemoryCluster, clean: bool) -> None:
    """An idempotent producer continues over the change: no duplicates, no gaps, in order."""
    cluster.create_topic("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
    producer = cluster.producer(retries=100000, retry_backoff_ms=20)
    acknowledged: list[bytes] = []

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        acknowledged.append(message.value())  # type: ignore[attr-defined]

    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.produce("t", b"%d" % sent, partition=0, on_delivery=delivered)
            producer.poll(0)
            sent += 1

    for _ in range(2):
        send(500)
        number = leader_of(cluster)
        ended = threading.Thread(target=cluster.stop, args=(number,), kwargs={"clean": clean})
        ended.start()
        send(500)
        ended.join()
        until(lambda: leader_of(cluster) not in (-1, number), what="another one leads")  # noqa: B023
        send(500)
        assert producer.flush(30) == 0
        cluster.start(number)
        in_sync(cluster, "t", [1, 2, 3])
    assert acknowledged == values(0, sent)
    settled(cluster, "t")
    assert_equal(cluster, "t")
    assert cluster.consume("t", sent) == values(0, sent)


def test_deleted_records_are_removed_from_all_replicas(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]])
    cluster.produce("t", values(0, 100))
    settled(cluster, "t")
    admin = cluster.admin()
    (future,) = admin.delete_records([KafkaPartition("t", 0, 40)]).values()
    assert future.result(20).low_watermark == 40
    assert [cluster.replica(node, "t").log.log_start_offset for node in (1, 2, 3)] == [40, 40, 40]


def test_follower_below_the_leaders_log_start_restarts_there(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]], {"segment.bytes": "2000"})
    cluster.produce("t", values(0, 100))
    settled(cluster, "t")
    cluster.stop(3)
    for first in range(100, 1000, 100):
        cluster.produce("t", values(first, 100))
    admin = cluster.admin()
    (future,) = admin.delete_records([KafkaPartition("t", 0, 700)]).values()
    future.result(20)
    until(lambda: cluster.replica(1, "t").log.segments[0].base_offset > 100, what="its segments are gone")
    cluster.start(3)
    in_sync(cluster, "t", [1, 2, 3])
    assert settled(cluster, "t") == 1000
    replica = cluster.replica(3, "t")
    assert replica.log.log_start_offset == 700
    assert_equal(cluster, "t")
    # A restart preserves it.
    cluster.stop(3, clean=False)
    cluster.start(3)
    in_sync(cluster, "t", [1, 2, 3])
    assert cluster.replica(3, "t").log.log_start_offset == 700 and settled(cluster, "t") == 1000


@SHORT_LAG
def test_stalled_follower_leaves_the_isr_and_rejoins(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3], [1, 3, 2]])
    cluster.produce("t", values(0, 10))
    settled(cluster, "t")
    replica = cluster.replica(3, "t")
    with replica.lock:
        producer = cluster.producer()
        producer.produce("t", b"10", partition=0)
        in_sync(cluster, "t", [1, 2])
        assert producer.flush(30) == 0
    in_sync(cluster, "t", [1, 2, 3])
    assert settled(cluster, "t") == 11
    assert_equal(cluster, "t")


def test_replica_moves_between_disks_while_it_follows(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]], {"segment.bytes": "50000"})
    stop = threading.Event()
    sent: list[int] = []

    def produce() -> None:
        while not stop.is_set():
            cluster.produce("t", values(len(sent), 50))
            sent.extend(range(50))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for node in (2, 1, 2):
            # First a follower's replica moves, then the leader's, and back again.
            engine, replica = cluster.nodes[node].engine, cluster.replica(node, "t")
            target = next(path for path in cluster.paths[node] if path != replica.directory.name)
            claim = engine.create(Tp("t", 0), target).claim
            engine.start_copy(Tp("t", 0), claim)

            def swapped(engine=engine, claim=claim) -> bool:  # type: ignore[no-untyped-def]
                engine.wait(Tp("t", 0), claim, 1.0)
                return bool(engine.swap(Tp("t", 0), claim).outcome == Outcome.SWAPPED)

            until(swapped, what="the copy is the replica")
            assert cluster.replica(node, "t").directory.name == target
    finally:
        stop.set()
        thread.join()
    assert settled(cluster, "t") == len(sent)
    assert_equal(cluster, "t")
    in_sync(cluster, "t", [1, 2, 3])
    place = cluster.nodes[2].replica_fetchers.following(Tp("t", 0))
    assert place is not None and place.directory == cluster.replica(2, "t").directory.name


def test_follower_during_a_swap_delays_no_other(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2]] * 6)
    replicas = [cluster.replica(2, "t", partition) for partition in range(6)]
    held = replicas[0]
    other = next(replica for replica in replicas[1:] if replica.directory is held.directory)
    hold = held.hold(10)
    assert hold is not None
    for partition in range(6):
        cluster.produce("t", values(0, 50), partition, acks=1, enable_idempotence=False)
    until(lambda: other.log.log_end_offset == 50, what="the other one follows, by the same thread")
    assert held.log.log_end_offset == 0
    held.release(hold)
    until(lambda: held.log.log_end_offset == 50, what="it follows again")
    assert_equal(cluster, "t", nodes=[1, 2])


def test_moving_copy_is_truncated_with_its_replica(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3]])
    cluster.produce("t", values(0, 100))
    settled(cluster, "t")
    engine, replica = cluster.nodes[1].engine, cluster.replica(1, "t")
    target = next(path for path in cluster.paths[1] if path != replica.directory.name)
    claim = engine.create(Tp("t", 0), target).claim
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    cluster.controller.spread()
    tail(cluster, 1, 20)
    engine.start_copy(Tp("t", 0), claim)
    until(lambda: replica.future is not None and replica.future.log_end_offset == 120, what="the copy has the tail")
    back(cluster, 1)
    until(lambda: replica.log.log_end_offset == 100, what="the tail is cut off")
    with replica.lock:  # both are truncated together
        assert replica.future is not None and replica.future.log_end_offset == 100
    cluster.produce("t", values(100, 50))
    settled(cluster, "t")
    until(lambda: engine.swap(Tp("t", 0), claim).outcome == Outcome.SWAPPED, what="the copy is the replica")
    assert settled(cluster, "t") == 150
    assert_equal(cluster, "t")


@SHORT_LAG
def test_directory_that_fails_stops_only_its_own_replicas(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2, 3], [1, 3, 2]])
    first, second = (cluster.replica(3, "t", partition) for partition in (0, 1))
    assert first.directory is not second.directory
    cluster.produce("t", values(0, 10))
    first.directory.fail("pulled")
    cluster.produce("t", values(10, 10))
    cluster.produce("t", values(0, 20), 1)
    assert settled(cluster, "t", 1) == 20 and settled(cluster, "t", 0, [1, 2]) == 20
    in_sync(cluster, "t", [1, 2, 3], 1)
