"""A bad file or folder on a good disk: the replica goes offline alone, it is reported, and another node leads."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.log.batch import build_batch
from storage_node.types import TopicPartition
from tests.support.io_faults import Faults
from tests.support.memory_cluster import MemoryCluster, running_cluster
from tests.support.node_harness import until
from tests.support.wire import Client

EVERYWHERE = [[1, 2, 3]]
SMALL = {"segment.bytes": "2000", "min.insync.replicas": "2"}
TP = TopicPartition("t", 0)


@pytest.fixture
def cluster(tmp_path: Path, faults: Faults) -> Iterator[MemoryCluster]:
    # The lag time is long: nothing below may wait for it.
    with running_cluster(tmp_path, 3, 2, {"replica.lag.time.max.ms": "60000"}) as made:
        yield made
        faults.clear()


def values(start: int, count: int) -> list[bytes]:
    return [b"%04d" % number + b"x" * 500 for number in range(start, start + count)]


def one_by_one(cluster: MemoryCluster, start: int, count: int) -> None:
    """Records that are batches of their own, so that segments roll."""
    producer, failed = cluster.producer(linger_ms=0), []
    for value in values(start, count):
        producer.produce("t", value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0 and not failed


def folder(cluster: MemoryCluster, number: int) -> Path:
    found: Path = cluster.replica(number, "t").log.path
    return found


def bad_folder(cluster: MemoryCluster, faults: Faults, number: int) -> Path:
    """The folder takes no new file any more, as after `chattr +i`."""
    path = folder(cluster, number)
    faults.fail("open", f"{path}/*[1-9].log", errno.EPERM)
    return path


def seen(cluster: MemoryCluster) -> tuple[int, set[int], set[int]]:
    """Leader, ISR and the nodes whose replicas are reported offline."""
    held = cluster.controller.partition("t")
    return held.leader, set(held.isr), {each.node for each in held.offline}


def becomes(cluster: MemoryCluster, leader: int, isr: set[int], offline: set[int]) -> None:
    until(lambda: seen(cluster) == (leader, isr, offline), 30, f"{leader} {isr} {offline}, not {seen(cluster)}")


def test_another_node_leads_and_producers_go_on(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    (told,) = cluster.controller.partition("t").offline
    assert told.file.startswith(f"{path}/0000") and told.file.endswith(".log"), told
    assert "Operation not permitted" in told.reason and str(path.parent) in told.reason
    assert all(directory.online for directory in cluster.nodes[1].dirs.directories)
    client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
    assert client.produce("t", 0, build_batch([b"late"])).error == 56
    client.close()
    until(lambda: cluster.replica(2, "t").is_leader)
    assert cluster.consume("t", 12) == values(0, 12)


def test_a_follower_leaves_the_isr_and_acks_all_goes_on(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    bad_folder(cluster, faults, 3)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 1, {1, 2}, {3})
    assert cluster.consume("t", 12) == values(0, 12)


def test_a_sole_replica_is_offline_and_said_to_be(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", [[2]], {"segment.bytes": "2000"})
    one_by_one(cluster, 0, 2)
    bad_folder(cluster, faults, 2)
    client = Client(f"127.0.0.1:{cluster.nodes[2].port}")
    assert max(client.produce("t", 0, build_batch([b"x" * 900])).error for _ in range(4)) == 56
    client.close()
    becomes(cluster, -1, {2}, {2})
    cluster.controller.spread()
    (shown,) = cluster.admin().list_topics("t", timeout=10).topics["t"].partitions.values()
    assert shown.leader == -1
    faults.clear()
    cluster.stop(2)
    cluster.start(2)
    becomes(cluster, 2, {2}, set())
    assert cluster.consume("t", 2) == values(0, 2)


def test_it_is_reported_again_until_the_controller_has_it(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    cluster.controller.cut.add(1)
    bad_folder(cluster, faults, 1)
    client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
    assert max(client.produce("t", 0, build_batch([b"x" * 900])).error for _ in range(4)) == 56
    client.close()
    until(lambda: TP in cluster.nodes[1].replicas.offline)
    assert seen(cluster) == (1, {1, 2, 3}, set())
    cluster.controller.heal(1)
    becomes(cluster, 2, {2, 3}, {1})


def test_a_start_that_cannot_open_the_folder_names_it_as_it_registers(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 12)
    path = folder(cluster, 1)
    cluster.stop(1)
    becomes(cluster, 2, {2, 3}, set())
    faults.fail("open", f"{path}/*.log", errno.EACCES)
    before = len(cluster.controller.applied)
    cluster.start(1)
    (registered,) = [each for each in cluster.controller.applied[before:] if each["do"] == "register"]
    assert [row[:2] for row in registered["offline"]] == [["t", 0]]
    becomes(cluster, 2, {2, 3}, {1})
    (told,) = cluster.controller.partition("t").offline
    assert told.file.startswith(str(path)) and "Permission denied" in told.reason
    faults.clear()
    cluster.stop(1)
    cluster.start(1)
    becomes(cluster, 2, {1, 2, 3}, set())
    assert cluster.replica(1, "t").log.log_end_offset == 12


def test_all_replicas_of_a_folder_that_is_set_read_only_are_reported_together(
    cluster: MemoryCluster, faults: Faults
) -> None:
    cluster.create_topic("t", EVERYWHERE * 20, SMALL)
    path = folder(cluster, 1).parent
    cluster.produce("t", values(0, 2))
    faults.fail("open", f"{path}/t-*/*[1-9].log", errno.EPERM)
    here = [tp for tp, part in cluster.nodes[1].replicas.served.items() if part.directory.path == path]
    client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
    for tp in here:
        assert max(client.produce("t", tp.partition, build_batch([b"x" * 900])).error for _ in range(4)) == 56
    client.close()

    def told() -> bool:
        rows = [cluster.controller.partition("t", tp.partition) for tp in here]
        return all(row.leader == 2 and row.offline_on(1) for row in rows)

    until(told, 30)
    assert cluster.nodes[1].dirs.by_path(path).online
