"""A replica whose log is missing when its node starts is copied from the leader.

It is never replaced by an empty one while no other node is known to have its records.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from storage_node.directories.formatting import format_directories
from storage_node.lifecycle.forgetting import forget, look
from storage_node.model.assignment import Assignment
from storage_node.model.ids import LOST, TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.replication.lost_replicas import why_not
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import CLUSTER_ID, until
from tests.support.wire import Client

EVERYWHERE = [[1, 2, 3]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path, 3, 2, {"replica.lag.time.max.ms": "15000"}) as made:
        yield made


def values(start: int, count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(start, start + count)]


def in_sync(cluster: MemoryCluster, *nodes: int, topic: str = "t") -> None:
    until(lambda: set(cluster.controller.partition(topic).isr) == set(nodes), 30, f"the ISR is {nodes}")


def folder(cluster: MemoryCluster, number: int, topic: str = "t") -> Path:
    """Return the folder of a stopped node's replica."""
    (found,) = [path for one in cluster.paths[number] for path in Path(one).glob(f"{topic}-0")]
    return found


def where(cluster: MemoryCluster, number: int, topic: str = "t") -> str:
    """Return the directory id that the metadata has for a node's replica."""
    row = cluster.controller.partition(topic)
    return row.directories[row.replicas.index(number)]


def told(cluster: MemoryCluster, topic: str = "t") -> None:
    """Wait until the metadata has the directories of all replicas."""
    until(lambda: all(cluster.controller.partition(topic).directories), 30, "all directories are known")


def alone(cluster: MemoryCluster, number: int, count: int, topic: str = "t") -> list[bytes]:
    """Return a node's records, read while all other nodes are stopped."""
    for other in [each for each in cluster.nodes if each != number]:
        cluster.stop(other)
    until(lambda: (held := cluster.replica(number, topic)) is not None and held.is_leader, 30, f"{number} leads")
    return cluster.consume(topic, count)


def elect_uncleanly(cluster: MemoryCluster, topic: str = "t") -> KafkaError | None:
    """Run kafka-leader-election --election-type unclean."""
    admin, tp = cluster.admin(), KafkaPartition(topic, 0)
    error: KafkaError | None = admin.elect_leaders(ElectionType.UNCLEAN, [tp]).result(20)[tp]
    cluster.controller.spread()
    return error


def test_replica_with_deleted_folder_is_copied_from_the_leader(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", EVERYWHERE)
    cluster.produce("t", values(0, 200))
    in_sync(cluster, 1, 2, 3)
    told(cluster)
    before = where(cluster, 3)
    cluster.stop(3)
    shutil.rmtree(folder(cluster, 3))
    cluster.produce("t", values(200, 100))
    cluster.start(3)
    in_sync(cluster, 1, 2, 3)
    cluster.produce("t", values(300, 50))
    assert not cluster.nodes[3].replicas.offline
    until(lambda: where(cluster, 3) == before, what="it is in the directory where it was")
    # A copy of the old folder that reappears is older than this one.
    assert cluster.controller.partition("t").generations[2] == 1
    assert alone(cluster, 3, 350) == values(0, 350)


def test_leader_with_deleted_folder_follows_the_new_leader(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", EVERYWHERE)
    cluster.produce("t", values(0, 100))
    in_sync(cluster, 1, 2, 3)
    told(cluster)
    # Killed and restarted before its lease expires: it is still in the ISR when it registers.
    cluster.stop(1, clean=False, fenced=False)
    shutil.rmtree(folder(cluster, 1))
    cluster.start(1)
    in_sync(cluster, 1, 2, 3)
    assert cluster.controller.partition("t").leader in (2, 3)
    cluster.produce("t", values(100, 100))
    assert alone(cluster, 1, 200) == values(0, 200)


def test_lost_sole_replica_stays_offline_with_advice(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1]])
    cluster.produce("t", values(0, 100))
    told(cluster)
    cluster.stop(1)
    path = folder(cluster, 1)
    kept = path.rename(path.with_name("kept-aside"))
    node = cluster.start(1)
    until(lambda: where(cluster, 1) == LOST, what="the metadata knows that it is lost")
    cluster.controller.spread()
    row = cluster.controller.partition("t")
    assert (row.isr, row.leader) == ((1,), -1)
    why = node.replicas.offline[TopicPartition("t", 0)]
    assert "it is the only replica" in why and "restore its folder" in why and "unclean election" in why
    assert not path.exists() and cluster.replica(1, "t") is None
    client = Client(f"127.0.0.1:{node.port}")
    assert client.produce("t", 0, b"").error == 56
    client.close()
    refused = elect_uncleanly(cluster)
    assert refused is not None and refused.code() == KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE
    # With its folder restored, all its records are back.
    cluster.stop(1)
    kept.rename(path)
    cluster.start(1)
    until(lambda: cluster.controller.partition("t").leader == 1, what="it leads again")
    cluster.controller.spread()
    assert cluster.consume("t", 100) == values(0, 100)


def test_operator_gives_up_the_records_of_a_sole_replica(cluster: MemoryCluster) -> None:
    """As the message advises: another node, and an unclean election."""
    cluster.create_topic("t", [[1]])
    cluster.produce("t", values(0, 10))
    told(cluster)
    cluster.stop(1)
    shutil.rmtree(folder(cluster, 1))
    node = cluster.start(1)
    until(lambda: where(cluster, 1) == LOST, what="the metadata knows that it is lost")
    command = {"do": "alter_reassignments", "partitions": [["t", 0, [2]]], "may_change_factor": True}
    assert not cluster.controller.submit(cluster.nodes[2], command)[0].get("error")
    cluster.controller.spread()
    assert cluster.controller.partition("t").leader == -1
    assert elect_uncleanly(cluster) is None
    row = cluster.controller.partition("t")
    assert (row.replicas, row.isr, row.leader) == ((2,), (2,), 2)
    cluster.produce("t", values(0, 5))
    assert cluster.consume("t", 5) == values(0, 5)
    until(lambda: not node.replicas.offline, what="the first node reports the replica no more")


def test_last_isr_member_is_never_replaced_by_an_empty_one(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", [[1, 2]])
    cluster.produce("t", values(0, 50))
    in_sync(cluster, 1, 2)
    told(cluster)
    cluster.stop(2)
    cluster.produce("t", values(50, 50))  # 1 alone has these
    cluster.stop(1)
    shutil.rmtree(folder(cluster, 1))
    cluster.start(2)
    node = cluster.start(1)
    until(lambda: where(cluster, 1) == LOST, what="the metadata knows that it is lost")
    cluster.controller.spread()
    row = cluster.controller.partition("t")
    assert (row.isr, row.leader) == ((1,), -1)
    assert "it was the last one in sync" in node.replicas.offline[TopicPartition("t", 0)]
    assert cluster.replica(1, "t") is None and not cluster.replica(2, "t").is_leader
    # An operator gives up the lost records: the other replica leads, and this one is copied from it.
    assert elect_uncleanly(cluster) is None
    in_sync(cluster, 1, 2)
    assert cluster.consume("t", 50) == values(0, 50)
    assert cluster.replica(1, "t").log.log_end_offset == 50


@pytest.mark.parametrize("whole", [False, True], ids=["one disk", "all disks"])
@pytest.mark.feature("113-54")
def test_disk_that_was_replaced_gets_its_replicas_again(cluster: MemoryCluster, whole: bool) -> None:
    """A new disk or a new machine under the same node id: other directory ids, no data."""
    cluster.create_topic("t", EVERYWHERE)
    cluster.create_topic("alone", [[3]])
    cluster.produce("t", values(0, 100))
    cluster.produce("alone", values(0, 10))
    in_sync(cluster, 1, 2, 3)
    told(cluster)
    told(cluster, "alone")
    ids = {directory.id: directory.name for directory in cluster.nodes[3].dirs.directories}
    wiped = set(ids.values()) if whole else {ids[where(cluster, 3)], ids[where(cluster, 3, "alone")]}
    cluster.stop(3)
    for path in wiped:
        shutil.rmtree(path)
        Path(path).mkdir()
    if len(wiped) == len(ids):
        format_directories(cluster.paths[3], cluster_id=CLUSTER_ID, node_id=3)
    else:
        gone = [id_ for id_, path in ids.items() if path in wiped]
        known = [look(cluster.paths[3], 3, id_) for id_ in gone]
        assert {tp for lost in known for tp in lost.alone} == {TopicPartition("alone", 0)}
        forget(cluster.paths[3], CLUSTER_ID, 3, gone)
    cluster.produce("t", values(100, 100))
    node = cluster.start(3)
    in_sync(cluster, 1, 2, 3)
    until(lambda: where(cluster, 3) in {each.id for each in node.dirs.directories} - set(ids), what="a new id")
    until(lambda: where(cluster, 3, "alone") == LOST, what="the other one is lost")
    assert list(node.replicas.offline) == [TopicPartition("alone", 0)] and cluster.replica(3, "alone") is None
    assert alone(cluster, 3, 200) == values(0, 200)


def test_missing_disk_prevents_creation_in_another_directory(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", EVERYWHERE)
    cluster.produce("t", values(0, 100))
    in_sync(cluster, 1, 2, 3)
    told(cluster)
    cluster.stop(3)
    disk = folder(cluster, 3).parent
    if disk == Path(cluster.paths[3][0]):
        shutil.rmtree(folder(cluster, 3))  # the metadata's disk must be present, so the other one is missing
        disk = Path(cluster.paths[3][1])
    away = disk.rename(disk.with_name("pulled-out"))
    node = cluster.start(3)
    cluster.controller.spread()
    assert "is not online" in node.replicas.offline[TopicPartition("t", 0)]
    assert cluster.replica(3, "t") is None and where(cluster, 3) != LOST
    cluster.stop(3)
    away.rename(disk)
    cluster.start(3)
    in_sync(cluster, 1, 2, 3)
    assert alone(cluster, 3, 100) == values(0, 100)


def test_no_replica_is_created_before_the_controller_registers_the_start(cluster: MemoryCluster) -> None:
    """Its own disks may have old metadata: the other replicas may have left the ISR since."""
    cluster.create_topic("t", [[1, 2]])
    cluster.produce("t", values(0, 50))
    in_sync(cluster, 1, 2)
    told(cluster)
    cluster.controller.spread()
    cluster.stop(2)
    path = folder(cluster, 2)
    shutil.rmtree(path)
    node = cluster.start(2, attach=False)
    assert "until the controller has registered" in node.replicas.offline[TopicPartition("t", 0)]
    assert not path.exists()
    cluster.controller.attach(node)
    in_sync(cluster, 1, 2)
    assert alone(cluster, 2, 50) == values(0, 50)


@pytest.mark.parametrize(
    ("isr", "leader", "registered", "missing", "made"),
    [
        ((2, 3), 2, True, (), True),
        ((2,), 2, True, (), True),
        ((2, 3), 2, False, (), False),
        ((2, 3), 2, True, ("disk",), False),
        ((1, 2, 3), 2, True, (), False),
        ((2, 3), -1, True, (), False),
        ((1,), 1, True, (), False),
        ((1,), -1, True, (), False),
        ((1, 2), 1, True, (), False),
    ],
)
def test_only_replicas_out_of_sync_under_another_leader_are_created_again(
    isr: tuple[int, ...], leader: int, registered: bool, missing: tuple[str, ...], made: bool
) -> None:
    row = PartitionImage(
        0, Assignment((1, 2, 3)), directories=("a", "b", "c"), generations=(0, 0, 0), isr=isr, leader=leader
    )
    assert (why_not(row, 1, registered=registered, missing=missing) == "") is made
