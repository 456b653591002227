"""A bad file or folder on a good disk: only its replica goes offline, is reported, and another node leads."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.wire.client import private_client
from tests.support.io_faults import Faults
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client

EVERYWHERE = [[1, 2, 3]]
SMALL = {"segment.bytes": "2000", "min.insync.replicas": "2"}
TP = TopicPartition("t", 0)
#: Seconds until the controller has taken an offline replica out of the ISR, and elected another leader.
ELECTED = 2.0


@pytest.fixture
def cluster(tmp_path: Path, faults: Faults) -> Iterator[MemoryCluster]:
    # The lag time is long, so that no test below waits for it.
    with running_cluster(tmp_path, 3, 2, {"replica.lag.time.max.ms": "60000"}) as made:
        yield made
        faults.clear()


def values(start: int, count: int) -> list[bytes]:
    return [b"%04d" % number + b"x" * 500 for number in range(start, start + count)]


def one_by_one(cluster: MemoryCluster, start: int, count: int) -> None:
    """Produce records as batches of their own, so that segments roll."""
    producer, failed = cluster.producer(linger_ms=0), []
    for value in values(start, count):
        producer.produce("t", value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0 and not failed


def folder(cluster: MemoryCluster, number: int) -> Path:
    found: Path = cluster.replica(number, "t").log.path
    return found


def bad_folder(cluster: MemoryCluster, faults: Faults, number: int) -> Path:
    """Make a replica's folder take no new file, as after `chattr +i`, and return it."""
    path = folder(cluster, number)
    faults.fail("open", f"{path}/*[1-9].log", errno.EPERM)
    return path


def seen(cluster: MemoryCluster) -> tuple[int, set[int], set[int]]:
    """Return the leader, the ISR, and the nodes whose replicas are reported offline."""
    held = cluster.controller.partition("t")
    return held.leader, set(held.isr), {each.node for each in held.offline}


@contextlib.contextmanager
def elected_within(cluster: MemoryCluster, node: int, expected: tuple[int, set[int], set[int]]) -> Iterator[None]:
    """Assert that the metadata becomes this within ELECTED seconds after the node has taken its replica offline."""
    times: list[float] = []

    def watch() -> None:
        until(lambda: TP in cluster.nodes[node].replicas.offline, 30)
        times.append(time.monotonic())
        until(lambda: seen(cluster) == expected, 30)
        times.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join(60)
    assert len(times) == 2 and times[1] - times[0] < ELECTED


def becomes(cluster: MemoryCluster, leader: int, isr: set[int], offline: set[int]) -> None:
    until(lambda: seen(cluster) == (leader, isr, offline), 30, f"{leader} {isr} {offline}, not {seen(cluster)}")


def sole_replica_goes_offline(cluster: MemoryCluster, faults: Faults) -> None:
    """Let the next segment of the only replica, which is on node 2, fail."""
    bad_folder(cluster, faults, 2)
    client = Client(f"127.0.0.1:{cluster.nodes[2].port}")
    assert max(client.produce("t", 0, build_batch([b"x" * 900])).error for _ in range(4)) == 56
    client.close()
    becomes(cluster, -1, {2}, {2})


@pytest.mark.feature("18-07")
def test_another_node_leads_and_producers_continue(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    with elected_within(cluster, 1, (2, {2, 3}, {1})):
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


def test_offline_follower_leaves_the_isr_and_acks_all_continues(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    bad_folder(cluster, faults, 3)
    with elected_within(cluster, 3, (1, {1, 2}, {3})):
        one_by_one(cluster, 2, 10)
    becomes(cluster, 1, {1, 2}, {3})
    assert cluster.consume("t", 12) == values(0, 12)


def test_sole_replica_is_reported_offline(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", [[2]], {"segment.bytes": "2000"})
    one_by_one(cluster, 0, 2)
    sole_replica_goes_offline(cluster, faults)
    cluster.controller.spread()
    (shown,) = cluster.admin().list_topics("t", timeout=10).topics["t"].partitions.values()
    assert shown.leader == -1
    faults.clear()
    cluster.stop(2)
    cluster.start(2)
    becomes(cluster, 2, {2}, set())
    assert cluster.consume("t", 2) == values(0, 2)


@pytest.mark.parametrize("how", ["reopened", "stopped"])
def test_deleted_records_do_not_return_with_an_offline_replica(
    cluster: MemoryCluster, faults: Faults, how: str
) -> None:
    cluster.create_topic("t", [[2]], {"segment.bytes": "2000"})
    one_by_one(cluster, 0, 3)
    assert cluster.replica(2, "t").delete_records(2) == 2
    sole_replica_goes_offline(cluster, faults)
    faults.clear()
    if how == "reopened":
        assert cluster.nodes[2].metadata_publisher.reopen(TP)
    else:
        cluster.stop(2)
        cluster.start(2)
    becomes(cluster, 2, {2}, set())
    assert cluster.replica(2, "t").log.log_start_offset == 2


@pytest.mark.feature("18-07")
def test_offline_replica_is_reported_until_the_controller_has_it(cluster: MemoryCluster, faults: Faults) -> None:
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


def test_start_that_cannot_open_the_folder_names_it_as_it_registers(cluster: MemoryCluster, faults: Faults) -> None:
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


def private(cluster: MemoryCluster, number: int, op: str, **fields: Any) -> dict[str, Any]:
    """Call the node's private API."""
    return private_client.call("127.0.0.1", cluster.nodes[number].port, op, timeout=30, **fields)


def request_online(cluster: MemoryCluster, number: int) -> tuple[str, str]:
    """Return the outcome and the message of a request to open the replica again."""
    (row,) = private(cluster, number, "replicas-online", partitions=[["t", 0]])["replicas"]
    return row["outcome"], row["message"]


def test_repaired_replica_is_opened_on_request_follows_and_joins_the_isr(
    cluster: MemoryCluster, faults: Faults
) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    faults.fail("open", f"{path}/health-check*", errno.EPERM)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    outcome, message = request_online(cluster, 1)
    assert outcome == "offline" and str(path) in message and "Operation not permitted" in message, message
    assert seen(cluster) == (2, {2, 3}, {1})
    faults.clear()
    assert request_online(cluster, 1) == ("reopened", "")
    becomes(cluster, 2, {1, 2, 3}, set())
    one_by_one(cluster, 12, 3)
    until(lambda: cluster.replica(1, "t").log.log_end_offset == 15)
    assert request_online(cluster, 1) == ("online", "")
    assert not list(path.glob("health-check*"))
    cluster.stop(2)
    until(lambda: cluster.replica(1, "t").is_leader)
    assert cluster.consume("t", 15) == values(0, 15)


def test_sole_replica_leads_again_after_its_repair(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", [[2]], {"segment.bytes": "2000"})
    one_by_one(cluster, 0, 2)
    sole_replica_goes_offline(cluster, faults)
    faults.clear()
    assert request_online(cluster, 2) == ("reopened", "")
    becomes(cluster, 2, {2}, set())
    until(lambda: cluster.replica(2, "t").is_leader)
    one_by_one(cluster, 20, 5)
    assert cluster.consume("t", 2) == values(0, 2)


def test_records_beyond_the_isr_are_truncated_after_the_repair(cluster: MemoryCluster, faults: Faults) -> None:
    """KIP-101: the failed leader had a record that no other replica received."""
    cluster.create_topic("t", EVERYWHERE, {"segment.bytes": "2000"})
    one_by_one(cluster, 0, 2)
    for number in (2, 3):
        faults.fail("pwritev", f"{cluster.replica(number, 't').log.path}/*.log", errno.ENOSPC)
    client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
    assert client.produce("t", 0, build_batch([b"only here"]), acks=1).error == 0
    bad_folder(cluster, faults, 1)
    assert max(client.produce("t", 0, build_batch([b"x" * 900]), acks=1).error for _ in range(4)) == 56
    client.close()
    becomes(cluster, 2, {2, 3}, {1})
    faults.clear()
    one_by_one(cluster, 2, 3)
    assert request_online(cluster, 1) == ("reopened", "")
    becomes(cluster, 2, {1, 2, 3}, set())
    until(lambda: cluster.replica(1, "t").log.log_end_offset == 5)
    for number in (2, 3):
        cluster.stop(number)
    assert cluster.consume("t", 5) == values(0, 5)


def test_missing_folder_is_copied_on_request_unless_the_replica_is_sole(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    until(lambda: all(cluster.controller.partition("t").directories))
    shutil.rmtree(folder(cluster, 1))
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    assert request_online(cluster, 1) == ("reopened", "")
    becomes(cluster, 2, {1, 2, 3}, set())
    assert cluster.replica(1, "t").log.log_end_offset == 12

    cluster.create_topic("u", [[2]], {"segment.bytes": "2000"})
    cluster.produce("u", values(0, 2))
    until(lambda: all(cluster.controller.partition("u").directories))
    shutil.rmtree(cluster.replica(2, "u").log.path)
    client = Client(f"127.0.0.1:{cluster.nodes[2].port}")
    assert max(client.produce("u", 0, build_batch([b"x" * 900])).error for _ in range(4)) == 56
    client.close()
    until(lambda: cluster.controller.partition("u").leader == -1)
    (row,) = private(cluster, 2, "replicas-online", partitions=[["u", 0]])["replicas"]
    assert row["outcome"] == "offline" and "only replica" in row["message"], row
    assert not Path(cluster.nodes[2].replicas.files[TopicPartition("u", 0)]).exists()


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ([["t", 7]], "node 1 has no replica of t-7: it does not exist"),
        ([["t", 0]], "node 1 has no replica of t-0: it is on nodes 2"),
    ],
)
def test_request_for_a_replica_that_the_node_does_not_host_is_rejected(
    cluster: MemoryCluster, wanted: list[list[Any]], problem: str
) -> None:
    cluster.create_topic("t", [[2]])
    (row,) = private(cluster, 1, "replicas-online", partitions=wanted)["replicas"]
    assert (row["outcome"], row["message"]) == ("offline", problem)


@pytest.mark.parametrize("wrong", [None, [], "t-0", [["t"]], [[1, 0]], [["t", "0"]], [["t", 0, 1]]])
def test_malformed_request_is_rejected(cluster: MemoryCluster, wrong: Any) -> None:
    with pytest.raises(private_client.PrivateCallFailed):
        private(cluster, 1, "replicas-online", partitions=wrong)


def test_every_node_reports_which_file_failed_where_and_why(cluster: MemoryCluster, faults: Faults) -> None:
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    cluster.controller.spread()
    for number in (1, 2, 3):
        (row,) = private(cluster, number, "offline-replicas", topic="t")["replicas"]
        assert (row["topic"], row["partition"], row["node"], row["directory"]) == ("t", 0, 1, str(path.parent))
        assert row["file"].startswith(f"{path}/") and "Operation not permitted" in row["reason"]
        assert private(cluster, number, "offline-replicas", topic="u")["replicas"] == []
    assert len(private(cluster, 2, "offline-replicas")["replicas"]) == 1


def test_start_that_finds_the_folder_bad_still_leaves_the_replica_offline(
    cluster: MemoryCluster, faults: Faults
) -> None:
    """Its log is readable: unless the start probes the failed folder, it would lead and fail at the next segment."""
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    cluster.controller.spread()
    faults.clear()
    faults.fail("open", f"{path}/health-check*", errno.EPERM)
    cluster.stop(1)
    cluster.start(1)
    assert "Operation not permitted" in cluster.nodes[1].replicas.offline[TP]
    becomes(cluster, 2, {2, 3}, {1})


def test_stop_is_not_clean_where_a_replica_could_not_be_closed(cluster: MemoryCluster, faults: Faults) -> None:
    """The next start scans, since it trusts what a clean shutdown flushed."""
    cluster.create_topic("t", EVERYWHERE, SMALL)
    one_by_one(cluster, 0, 2)
    path = bad_folder(cluster, faults, 1)
    faults.fail("open", f"{path}/*.snapshot*", errno.EPERM)
    one_by_one(cluster, 2, 10)
    becomes(cluster, 2, {2, 3}, {1})
    cluster.stop(1)
    marked = [each for each in cluster.paths[1] if (Path(each) / ".kafka_cleanshutdown").exists()]
    assert marked == [each for each in cluster.paths[1] if Path(each) != path.parent]
