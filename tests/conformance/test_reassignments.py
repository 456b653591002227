"""AlterPartitionReassignments and ListPartitionReassignments on partitions with one replica."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.conformance.clusters import Cluster
from tests.support.nodes.reassigning import results, wanted_topics

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
NO_REASSIGNMENT_IN_PROGRESS = 85

Rows = dict[tuple[str, int], tuple[int, str | None]]


def alter(cluster: Cluster, wanted: dict[tuple[str, int], list[int] | None], version: int = 0, **fields: Any) -> Rows:
    """(topic, partition) -> error code and message."""
    fields = {"topics": wanted_topics(wanted), "timeout": timedelta(seconds=10), **fields}
    answer = cluster.call("AlterPartitionReassignments", version, **fields)
    assert int(answer.error_code) == NONE
    return results(answer)


def empty(broker: int) -> str:
    return f"The manual partition assignment includes broker {broker}, but no such broker is registered."


@pytest.mark.conformance(143, 156)
def test_each_partition_has_its_own_answer(cluster: Cluster) -> None:
    topic, other = cluster.new_topic(assignment={0: [1], 1: [2], 2: [3], 3: [1]}), cluster.new_topic()
    assert alter(cluster, {(topic, 0): [1], (topic, 1): [2]}) == dict.fromkeys([(topic, 0), (topic, 1)], (NONE, None))
    unknown = UNKNOWN_TOPIC_OR_PARTITION
    wanted: dict[tuple[str, int], list[int] | None] = {
        (topic, 0): [],
        (topic, 1): [2],
        (topic, 2): [3, 3],
        (topic, 3): [9],
        (topic, 7): [1],
        (other, 0): [-1],
        ("no-such-topic", 0): [1],
    }
    assert alter(cluster, wanted) == {
        (topic, 0): (INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."),
        (topic, 1): (NONE, None),
        (topic, 2): (
            INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes the broker 3 more than once.",
        ),
        (topic, 3): (INVALID_REPLICA_ASSIGNMENT, empty(9)),
        (topic, 7): (unknown, f"Unable to find partition {topic}:7."),
        (other, 0): (INVALID_REPLICA_ASSIGNMENT, empty(-1)),
        ("no-such-topic", 0): (unknown, "Unable to find a topic named no-such-topic."),
    }
    assert alter(cluster, {(topic, 0): None, (topic, 9): None, ("no-such-topic", 0): None}) == {
        (topic, 0): (NO_REASSIGNMENT_IN_PROGRESS, None),
        (topic, 9): (unknown, f"Unable to find partition {topic}:9."),
        ("no-such-topic", 0): (unknown, "Unable to find a topic named no-such-topic."),
    }
    assert cluster.leaders(topic) == {0: 1, 1: 2, 2: 3, 3: 1}


def test_empty_topic_is_echoed_and_nothing_is_answered_with_nothing(cluster: Cluster) -> None:
    topic = cluster.new_topic()
    call = {"timeout": timedelta(seconds=10)}
    answer = cluster.call("AlterPartitionReassignments", 0, topics=[{"name": topic, "partitions": []}], **call)
    assert [(row.name, row.partitions) for row in answer.responses] == [(topic, ())]
    assert cluster.call("AlterPartitionReassignments", 0, topics=[], **call).responses == ()


def test_replication_factor_stays_where_it_is_told_to(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    fixed = {"allow_replication_factor_change": False}
    changed = (INVALID_REPLICATION_FACTOR, "The replication factor is changed from 1 to 2")
    assert alter(cluster, {(topic, 0): [1, 2]}, 1, **fixed) == {(topic, 0): changed}
    assert alter(cluster, {(topic, 0): [1]}, 1, **fixed) == {(topic, 0): (NONE, None)}
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    for allowed in (True, False):
        rest = {"topics": topics, "timeout": timedelta(seconds=10), "allow_replication_factor_change": allowed}
        answer = cluster.call("AlterPartitionReassignments", 1, **rest)
        assert answer.allow_replication_factor_change is allowed


@pytest.mark.conformance(152)
def test_nothing_is_listed_while_nothing_is_reassigned(cluster: Cluster) -> None:
    topic = cluster.new_topic()
    asked: list[list[dict[str, Any]] | None] = [
        None,
        [],
        [{"name": topic, "partition_indexes": [0, 55]}],
        [{"name": "no-such-topic", "partition_indexes": [0]}],
    ]
    for topics in asked:
        answer = cluster.call("ListPartitionReassignments", 0, topics=topics, timeout=timedelta(seconds=10))
        assert (int(answer.error_code), answer.topics) == (NONE, ())


@pytest.mark.conformance(159)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, [])], "The manual partition assignment includes an empty replica list."),
        ([(0, [1, 1])], "The manual partition assignment includes the broker 1 more than once."),
        ([(0, [9])], empty(9)),
        ([(0, [1]), (2, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(0, [1]), (0, [2])], None),
    ],
)
def test_assignments_by_hand_are_checked(
    cluster: Cluster, rows: list[tuple[int, list[int]]], message: str | None
) -> None:
    assignments = [{"partition_index": partition, "broker_ids": brokers} for partition, brokers in rows]
    topic = {"name": "by-hand", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    call = {"timeout": timedelta(seconds=10), "validate_only": True}
    (row,) = cluster.call("CreateTopics", 7, topics=[topic], **call).topics
    assert int(row.error_code) == INVALID_REPLICA_ASSIGNMENT
    assert row.error_message == message if message else "partition" in row.error_message
