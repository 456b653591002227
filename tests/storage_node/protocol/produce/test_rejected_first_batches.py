"""Two batches of a new idempotent producer: the second does not overtake the first, whatever rejected that one."""

from __future__ import annotations

import errno
import threading
from datetime import timedelta
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from storage_node.partitions.partition import Partition
from tests.support.io_faults import Faults
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client, offered

TP = TopicPartition("t", 0)
UNKNOWN, NOT_LEADER, TIMED_OUT, OUT_OF_ORDER, STORAGE, UNKNOWN_PRODUCER, UNKNOWN_ID = 3, 6, 7, 45, 56, 59, 100


def sent(sequence: int) -> bytes:
    return build_batch([b"%d" % sequence], producer_id=77, producer_epoch=0, base_sequence=sequence)


def make_topic(harness: Harness) -> None:
    """Create a topic, and wait until no further image follows."""
    harness.create_topic("t")
    harness.settle()


def replica(harness: Harness) -> Partition:
    found = harness.node.partition(TP)
    assert found is not None
    return found


def pipelined(client: Client, version: int = 10, acks: int = -1) -> list[int]:
    """Send the first two batches without waiting; returns their errors."""
    for sequence in (0, 1):
        client.send_produce("t", 0, sent(sequence), version=version, acks=acks)
    return [client.receive_produce()[1].error for _ in range(2)]


def in_order_now(client: Client, version: int = 10) -> None:
    """Send both batches again, as clients do, and assert that they are appended in order."""
    assert [client.produce("t", 0, sent(sequence), version=version).base_offset for sequence in (0, 1)] == [0, 1]


class AtTheSecondLook:
    """Ends the cause of the rejection between the look-ups of the replica for two pipelined batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        self.looks, self.change = 0, change
        self.really = Node.leader
        monkeypatch.setattr(Node, "leader", lambda node, tp: self.look(node, tp))

    def look(self, node: Node, tp: TopicPartition) -> Partition:
        self.looks += 1
        if self.looks == 2:
            self.change()
        return self.really(node, tp)


@pytest.mark.parametrize("version", [offered(0)[0], 12, offered(0)[-1]])
def test_new_leader_between_the_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    client.topic_id("t")
    lead(partition, 4, leads=False)
    looked = AtTheSecondLook(monkeypatch, lambda: lead(partition, 5))
    assert pipelined(client, version) == [NOT_LEADER, OUT_OF_ORDER] and looked.looks == 2
    in_order_now(client, version)
    client.close()


def test_previous_leader_has_rejected_the_first_batch(harness: Harness) -> None:
    """librdkafka may send the second batch to the new leader before the first one again."""
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    lead(partition, 4, leads=False)
    lead(partition, 5)
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_new_leader_whose_records_were_deleted_does_not_know_the_producer(harness: Harness) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    client.produce("t", 0, build_batch([b"old"] * 3))
    partition.delete_records(3)
    lead(partition, 4, leads=False)
    lead(partition, 5)
    found = client.produce("t", 0, sent(1))
    # Without the log start offset the Java client would only retry.
    assert (found.error, found.log_start) == (UNKNOWN_PRODUCER, 3)
    again = build_batch([b"1"], producer_id=77, producer_epoch=1, base_sequence=0)
    assert client.produce("t", 0, again).base_offset == 3, "the producer continues under a new epoch"
    client.close()


@pytest.mark.parametrize("changed", [False, True])
def test_leader_without_a_predecessor_accepts_any_first_sequence(harness: Harness, changed: bool) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    if changed:
        lead(partition, 5)  # its own log had all batches before, too
    assert client.produce("t", 0, sent(1)).base_offset == 0
    client.close()


def test_replica_created_between_the_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    harness.node.replicas.remove([TP])
    looked = AtTheSecondLook(monkeypatch, lambda: harness.node.replicas.add(partition))
    assert pipelined(client) == [NOT_LEADER, OUT_OF_ORDER] and looked.looks == 2
    in_order_now(client)
    client.close()


def test_topic_created_between_the_batches(harness: Harness) -> None:
    client = Client(harness)
    assert client.produce("t", 0, sent(0)).error == UNKNOWN
    make_topic(harness)
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_topic_id_known_between_the_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    client = Client(harness)
    client.topic_id("t")
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.node.metadata.image), "topic_by_id", lambda image, topic_id: None)
        assert client.produce("t", 0, sent(0), version=13).error == UNKNOWN_ID
    assert client.produce("t", 0, sent(1), version=13).error == OUT_OF_ORDER
    in_order_now(client, 13)
    client.close()


def test_disk_freed_between_the_batches(harness: Harness, faults: Faults) -> None:
    make_topic(harness)
    client = Client(harness)
    rule = faults.fail("pwritev", "*/t-0/*.log", errno.ENOSPC)
    assert client.produce("t", 0, sent(0)).error == STORAGE and rule.hits
    faults.clear()
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_directory_accepts_work_between_the_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    client = Client(harness)
    directory = replica(harness).directory
    with monkeypatch.context() as patched:
        patched.setattr(directory, "_failure", "it is checked")
        assert client.produce("t", 0, sent(0)).error == STORAGE
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_directory_responds_between_the_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the disk has not begun in time is never appended; the producer's next one fits once it responds."""
    make_topic(harness)
    client = Client(harness)
    pool, released = replica(harness).directory.pool, threading.Event()
    stuck = [pool.submit(released.wait, 60) for _ in range(pool._max_workers)]
    try:
        data = {"name": "t", "partition_data": [{"index": 0, "records": sent(0)}]}
        values = {"acks": -1, "timeout": timedelta(milliseconds=100), "topic_data": [data]}
        answer = client.ask(0, 10, values)
        assert int(answer.responses[0].partition_responses[0].error_code) == TIMED_OUT
    finally:
        released.set()
    for each in stuck:
        each.result(60)
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_acks_1_batch_may_overtake_as_in_apache_kafka(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    lead(partition, 4, leads=False)
    AtTheSecondLook(monkeypatch, lambda: lead(partition, 5))
    assert pipelined(client, acks=1) == [NOT_LEADER, 0]
    client.close()


def test_rejected_batch_is_recorded_without_the_replicas_lock(harness: Harness) -> None:
    """A hung disk holds the lock, and the loop must respond to all clients."""
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    lead(partition, 4, leads=False)
    with partition.lock:
        assert client.produce("t", 0, sent(0)).error == NOT_LEADER
        partition.is_leader = True
        client.send_produce("t", 0, sent(1))
        other = Client(harness)
        assert other.produce("u", 0, sent(0)).error == UNKNOWN, "the loop is not blocked"
        other.close()
    assert client.receive_produce()[1].error == OUT_OF_ORDER
    in_order_now(client)
    client.close()
