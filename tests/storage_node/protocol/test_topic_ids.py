"""Topic ids in Produce and Fetch, from version 13 on."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

from storage_node.log.batches.batch import build_batch
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client, offered

UNKNOWN, NOT_LEADER, FENCED, UNKNOWN_ID, INCONSISTENT_ID = 3, 6, 74, 100, 103
BY_ID = {0: [v for v in offered(0) if v >= 13], 1: [v for v in offered(1) if v >= 13]}


def produce(client: Client, topic_id: uuid.UUID | None, partition: int = 0, version: int = 13) -> Any:
    rows = [{"index": partition, "records": build_batch([b"x"])}]
    topics = [{"topic_id": topic_id, "name": "t", "partition_data": rows}]
    answer = client.ask(0, version, {"acks": -1, "timeout": timedelta(seconds=5), "topic_data": topics})
    assert version < 13 or answer.responses[0].topic_id == topic_id
    return answer


def fetch(client: Client, topic_id: uuid.UUID | None, partition: int = 0, version: int = 13, epoch: int = -1) -> Any:
    rows = [{"partition": partition, "partition_max_bytes": 1000, "current_leader_epoch": epoch}]
    values = {"max_bytes": 1000, "session_epoch": -1, "topics": [{"topic_id": topic_id, "partitions": rows}]}
    answer = client.ask(1, version, values)
    assert answer.responses[0].topic_id == topic_id
    return answer


def error(answer: Any) -> int:
    (topic,) = answer.responses
    rows = topic.partitions if hasattr(topic, "partitions") else topic.partition_responses
    return int(rows[0].error_code)


def test_unknown_topic_id_and_unknown_partition(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    known = client.topic_id("t")
    for ask, versions in ((produce, BY_ID[0]), (fetch, BY_ID[1])):
        for version in versions:
            assert error(ask(client, known, version=version)) == 0
            assert error(ask(client, uuid.uuid4(), version=version)) == UNKNOWN_ID
            assert error(ask(client, None, version=version)) == UNKNOWN_ID
            assert error(ask(client, known, 9, version=version)) == UNKNOWN
    client.close()


def test_recreated_topic_has_another_id_than_the_deleted_one(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    before = client.topic_id("t")
    assert error(produce(client, before)) == 0
    harness.delete_topic("t")
    assert error(produce(client, before)) == error(fetch(client, before)) == UNKNOWN_ID
    harness.create_topic("t")
    assert error(produce(client, before)) == error(fetch(client, before)) == UNKNOWN_ID
    after = Client(harness)
    assert error(produce(after, after.topic_id("t"))) == 0
    client.close()
    after.close()


def test_log_of_another_topic_with_the_same_name_is_inconsistent(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    partition = harness.node.partition(TopicPartition("t", 0))
    assert partition is not None
    harness.settle()  # the next image would replace the replica
    partition.topic_id = "B" * 21 + "A"
    assert error(produce(client, client.topic_id("t"))) == error(fetch(client, client.topic_id("t"))) == INCONSISTENT_ID
    client.close()


def test_request_to_a_node_that_does_not_lead_returns_the_leader(harness: Harness) -> None:
    other = NodeImage(2, "x", 1, "elsewhere", 9999)
    row = PartitionImage(0, Assignment((2,)), directories=("",), generations=(0,), isr=(2,), leader=2, leader_epoch=7)
    me = harness.controller.image.nodes[1]
    harness.controller.change(topics={"t": TopicImage("t", "B" * 21 + "A", {}, (row,))}, nodes={1: me, 2: other})
    client = Client(harness)
    topic_id = client.topic_id("t")
    answers = [produce(client, topic_id, version=v) for v in (9, 10, 12, 13)]
    answers += [fetch(client, topic_id, version=v) for v in (15, 16, 17, 18)]
    told = []
    for answer in answers:
        assert error(answer) == NOT_LEADER
        (row,) = getattr(answer.responses[0], "partitions", ()) or answer.responses[0].partition_responses
        leader = getattr(row, "current_leader", None)
        ends = [(node.node_id, node.host, node.port) for node in getattr(answer, "node_endpoints", ())]
        told.append((leader is not None and (leader.leader_id, leader.leader_epoch) == (2, 7), ends))
    there = (True, [(2, "elsewhere", 9999)])
    assert told == [(False, []), there, there, there, (False, []), there, there, there]
    client.close()


def test_fenced_epoch_error_has_the_new_epoch(harness: Harness) -> None:
    harness.create_topic("t")
    topic = harness.controller.image.topics["t"]
    led = replace(topic.partitions[0], leader_epoch=5)
    harness.controller.change(topics={"t": replace(topic, partitions=(led,))})
    client = Client(harness)
    answer = fetch(client, client.topic_id("t"), version=17, epoch=4)
    leader = answer.responses[0].partitions[0].current_leader
    assert (error(answer), leader.leader_id, leader.leader_epoch) == (FENCED, 1, 5)
    assert [(node.node_id, node.port) for node in answer.node_endpoints] == [(1, harness.node.port)]
    client.close()
