"""Two batches of a new idempotent producer: the second does not come first, whatever refused the first one."""

from __future__ import annotations

import errno
import threading
from datetime import timedelta
from typing import Any

import pytest

from storage_node.log.batch import build_batch
from storage_node.node import Node
from storage_node.partition import Partition
from storage_node.types import TopicPartition
from tests.support.io_faults import Faults
from tests.support.leading import lead
from tests.support.node_harness import Harness
from tests.support.wire import Client, offered

TP = TopicPartition("t", 0)
UNKNOWN, NOT_LEADER, TIMED_OUT, OUT_OF_ORDER, STORAGE, UNKNOWN_ID = 3, 6, 7, 45, 56, 100


def sent(sequence: int) -> bytes:
    return build_batch([b"%d" % sequence], producer_id=77, producer_epoch=0, base_sequence=sequence)


def make_topic(harness: Harness) -> None:
    """After it no image comes of itself."""
    harness.create_topic("t")
    harness.settle()


def replica(harness: Harness) -> Partition:
    found = harness.node.partition(TP)
    assert found is not None
    return found


def pipelined(client: Client, version: int = 10, acks: int = -1) -> list[int]:
    """What the first two batches are answered, sent without waiting."""
    for sequence in (0, 1):
        client.send_produce("t", 0, sent(sequence), version=version, acks=acks)
    return [client.receive_produce()[1].error for _ in range(2)]


def in_order_now(client: Client, version: int = 10) -> None:
    """Both are sent again, as clients do."""
    assert [client.produce("t", 0, sent(sequence), version=version).base_offset for sequence in (0, 1)] == [0, 1]


class AtTheSecondLook:
    """Lets what ends the refusal come between the looks that two pipelined batches make for their replica."""

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
def test_another_node_led_until_between_them(harness: Harness, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    client.topic_id("t")
    lead(partition, 4, leads=False)
    looked = AtTheSecondLook(monkeypatch, lambda: lead(partition, 5))
    assert pipelined(client, version) == [NOT_LEADER, OUT_OF_ORDER] and looked.looks == 2
    in_order_now(client, version)
    client.close()


def test_the_replica_was_not_there_until_between_them(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    harness.node.replicas.remove([TP])
    looked = AtTheSecondLook(monkeypatch, lambda: harness.node.replicas.add(partition))
    assert pipelined(client) == [NOT_LEADER, OUT_OF_ORDER] and looked.looks == 2
    in_order_now(client)
    client.close()


def test_the_topic_was_made_between_them(harness: Harness) -> None:
    client = Client(harness)
    assert client.produce("t", 0, sent(0)).error == UNKNOWN
    make_topic(harness)
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_its_id_was_not_known_until_between_them(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    client = Client(harness)
    client.topic_id("t")
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.node.metadata.image), "topic_by_id", lambda image, topic_id: None)
        assert client.produce("t", 0, sent(0), version=13).error == UNKNOWN_ID
    assert client.produce("t", 0, sent(1), version=13).error == OUT_OF_ORDER
    in_order_now(client, 13)
    client.close()


def test_the_disk_was_full_until_between_them(harness: Harness, faults: Faults) -> None:
    make_topic(harness)
    client = Client(harness)
    rule = faults.fail("pwritev", "*/t-0/*.log", errno.ENOSPC)
    assert client.produce("t", 0, sent(0)).error == STORAGE and rule.hits
    faults.clear()
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_the_directory_takes_no_work_until_between_them(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(harness)
    client = Client(harness)
    directory = replica(harness).directory
    with monkeypatch.context() as patched:
        patched.setattr(directory, "_failure", "it is looked at")
        assert client.produce("t", 0, sent(0)).error == STORAGE
    assert client.produce("t", 0, sent(1)).error == OUT_OF_ORDER
    in_order_now(client)
    client.close()


def test_the_directory_hung_until_between_them(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not begun in time is never appended; its producer's next batch comes when the disk answers again."""
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


def test_who_waits_for_no_followers_is_taken_as_with_apache_kafka(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    lead(partition, 4, leads=False)
    AtTheSecondLook(monkeypatch, lambda: lead(partition, 5))
    assert pipelined(client, acks=1) == [NOT_LEADER, 0]
    client.close()


def test_a_refused_batch_is_noted_without_the_replicas_lock(harness: Harness) -> None:
    """A disk that hangs holds it, and the loop answers everybody."""
    make_topic(harness)
    partition, client = replica(harness), Client(harness)
    lead(partition, 4, leads=False)
    with partition.lock:
        assert client.produce("t", 0, sent(0)).error == NOT_LEADER
        partition.is_leader = True
        client.send_produce("t", 0, sent(1))
        other = Client(harness)
        assert other.produce("u", 0, sent(0)).error == UNKNOWN, "the loop goes on"
        other.close()
    assert client.receive_produce()[1].error == OUT_OF_ORDER
    in_order_now(client)
    client.close()
