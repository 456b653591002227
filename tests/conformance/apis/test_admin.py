"""Topics and partitions are made, deleted and refused alike by both kinds, in every version of the APIs."""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from typing import Any

import pytest

from tests.conformance.apis.calls import (
    ASSIGNMENT,
    EXISTS,
    FACTOR,
    INVALID,
    INVALID_TOPIC,
    NODE,
    NONE_MOVING,
    NOT_NEEDED,
    PARTITIONS,
    POLICY,
    SOON,
    UNKNOWN,
    UNKNOWN_ID,
    batch,
    code,
    versions,
)
from tests.conformance.clusters import Cluster
from tests.support.wire import Client

#: Seconds until every node knows a topic whose creation was confirmed: milliseconds, but for a busy machine.
LATE = 2.0
BY_HAND = {"num_partitions": -1, "replication_factor": -1}


def by_hand(*rows: list[int], first: int = 0) -> dict[str, Any]:
    return BY_HAND | {
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(rows, first)]
    }


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"name": "no@name"}, INVALID_TOPIC, "Topic name is invalid: 'no@name' contains one or more characters other "
         "than ASCII alphanumerics, '.', '_' and '-'"),
        ({"name": ""}, INVALID_TOPIC, "Topic name is invalid: the empty string is not allowed"),
        ({"name": "__cluster_metadata"}, INVALID, "Creation of internal topic __cluster_metadata is prohibited."),
        ({"num_partitions": 0}, PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        ({"num_partitions": 20_000}, POLICY, "Excessively large number of partitions per request."),
        ({"replication_factor": 0}, FACTOR,
         "Replication factor must be larger than 0, or -1 to use the default value."),
        (by_hand([1]) | {"num_partitions": 1}, INVALID,
         "A manual partition assignment was specified, but numPartitions was not set to -1."),
        (by_hand([1]) | {"replication_factor": 1}, INVALID,
         "A manual partition assignment was specified, but replication factor was not set to -1."),
        (by_hand([1], first=1), ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"),
        (by_hand([1, 1]), ASSIGNMENT, "The manual partition assignment includes the broker 1 more than once."),
        (by_hand([]), ASSIGNMENT, "The manual partition assignment includes an empty replica list."),
        (by_hand([99]), ASSIGNMENT,
         "The manual partition assignment includes broker 99, but no such broker is registered."),
    ],
)  # fmt: skip
def test_topics_that_cannot_be_made(client: Client, asked: dict[str, Any], error: int, message: str) -> None:
    for version in versions("CreateTopics"):
        wanted = {"name": "cannot-be", "num_partitions": 1, "replication_factor": 1} | asked
        (row,) = client.call("CreateTopics", version, topics=[wanted], timeout=SOON, validate_only=True).topics
        assert (code(row), row.error_message) == (error, message)


def test_topics_are_made_and_deleted_in_every_version(client: Client, cluster: Cluster) -> None:
    for version in versions("CreateTopics"):
        name = f"made{uuid.uuid4().hex[:8]}"
        wanted = {"name": name, "num_partitions": 2, "replication_factor": 1}

        def make(*topics: dict[str, Any], version: int = version, check: bool = False) -> list[tuple[str, int]]:
            answer = client.call("CreateTopics", version, topics=list(topics), timeout=SOON, validate_only=check)
            return [(row.name, code(row)) for row in answer.topics]

        assert make(wanted, check=True) == make(wanted) == [(name, 0)], "what is only checked is not made"
        assert make(wanted) == [(name, EXISTS)]
        assert make(wanted, wanted) == [(name, INVALID)]
        # A name's length in versions of deleting as well.
        deleting = min(version - 1, 6)
        topics = [{"name": name, "topic_id": None}, {"name": "no-such-topic", "topic_id": None}]
        values = {"topics": topics} if deleting >= 6 else {"topic_names": [name, "no-such-topic"]}
        rows = client.call("DeleteTopics", deleting, timeout=SOON, **values).responses
        assert {row.name: code(row) for row in rows} == {name: 0, "no-such-topic": UNKNOWN}


def test_new_topic_is_known_to_the_other_nodes_soon(cluster: Cluster) -> None:
    known: list[float] = []
    for _ in range(10):
        wanted = {"name": f"soon{uuid.uuid4().hex[:8]}", "num_partitions": 1, "replication_factor": 1}
        (made,) = cluster.call("CreateTopics", 7, node=1, topics=[wanted], timeout=SOON, validate_only=False).topics
        assert code(made) == 0
        began = time.monotonic()
        for node in (1, 2, 3):
            while not cluster.leaders(wanted["name"], node):
                assert time.monotonic() < began + LATE, f"node {node} does not know {wanted['name']}"
        known.append(time.monotonic() - began)
    print(
        f"all nodes know a new topic after {statistics.median(known) * 1000:.0f} ms (longest {max(known) * 1000:.0f})"
    )


def test_topics_are_deleted_by_id_and_never_by_two_names(client: Client, cluster: Cluster) -> None:
    topic = cluster.new_topic()
    known, other = client.topic_id(topic), uuid.uuid4()

    def delete(*rows: tuple[str | None, uuid.UUID | None]) -> set[tuple[str | None, int, str | None]]:
        topics = [{"name": name, "topic_id": id_} for name, id_ in rows]
        answer = client.call("DeleteTopics", 6, topics=topics, timeout=SOON)
        return {(row.name, code(row), row.error_message) for row in answer.responses}

    assert delete((topic, known), (None, None), (None, other)) == {
        (topic, INVALID, "You may not specify both topic name and topic id."),
        (None, INVALID, "Neither topic name nor id were specified."),
        (None, UNKNOWN_ID, "This server does not host this topic ID."),
    }
    assert delete((topic, None), (topic, None)) == {(topic, INVALID, "Duplicate topic name.")}
    assert delete((None, known), (None, known)) == {(None, INVALID, "Duplicate topic id.")}
    assert delete(("no-such-topic", None)) == {
        ("no-such-topic", UNKNOWN, "This server does not host this topic-partition.")
    }
    assert delete((None, known)) == {(topic, 0, None)}
    cluster.eventually(
        lambda: delete((None, known)) == {(None, UNKNOWN_ID, "This server does not host this topic ID.")}
    )


def test_partitions_are_added_in_every_version(client: Client, cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})

    def add(
        version: int, count: int, rows: list[list[int]] | None = None, check: bool = False, name: str = topic
    ) -> Any:
        assignments = None if rows is None else [{"broker_ids": ids} for ids in rows]
        topics = [{"name": name, "count": count, "assignments": assignments}]
        answer = client.call("CreatePartitions", version, topics=topics, timeout=SOON, validate_only=check)
        return [(code(row), row.error_message) for row in answer.results]

    for version in versions("CreatePartitions"):
        have = version + 1
        assert add(version, have) == [(PARTITIONS, f"Topic already has {have} partition(s).")]
        assert add(version, 0) == [
            (PARTITIONS, f"The topic {topic} currently has {have} partition(s); 0 would not be an increase.")
        ]
        assert add(version, 9, name="no-such-topic") == [(UNKNOWN, None)]
        assert add(version, have + 2, [[1]]) == [
            (
                ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
            )
        ]
        for ids, message in (
            ([99], "The manual partition assignment includes broker 99, but no such broker is registered."),
            ([], "The manual partition assignment includes an empty replica list."),
            ([1, 1], "The manual partition assignment includes the broker 1 more than once."),
        ):
            assert add(version, have + 1, [ids]) == [(ASSIGNMENT, message)]
        assert add(version, have + 1, [[1, 2]]) == [
            (
                ASSIGNMENT,
                "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent "
                "with previous partitions, which have 1 replica(s).",
            )
        ]
        assert add(version, have + 1, check=True) == [(0, None)]
        assert add(version, have + 1, [[2]] if version else None) == [(0, None)]
        twice = [{"name": topic, "count": have + 2, "assignments": None}] * 2
        (row,) = client.call("CreatePartitions", version, topics=twice, timeout=SOON).results
        assert (code(row), row.error_message) == (INVALID, "Duplicate topic name.")
    cluster.eventually(lambda: len(cluster.leaders(topic)) == 5, "five partitions have leaders")
    assert [cluster.leaders(topic)[index] for index in (2, 3, 4)] == [2, 2, 2]
    with contextlib.closing(Client(cluster.address(2))) as there:
        cluster.eventually(lambda: there.produce(topic, 4, batch(b"x")).error == 0, "it takes records")


def test_no_election_is_needed_where_one_replica_leads(client: Client, topic: str) -> None:
    for version in versions("ElectLeaders"):
        for kind in (0, 1):
            asked = [{"topic": topic, "partitions": [0, 9]}, {"topic": "no-such-topic", "partitions": [0]}]
            values = {"election_type": kind, "timeout": SOON}
            answer = client.call("ElectLeaders", version, topic_partitions=asked, **values)
            found = [
                (code(row), row.error_message)
                for each in answer.replica_election_results
                for row in each.partition_result
            ]
            assert found == [
                (NOT_NEEDED, "Leader election not needed for topic partition."),
                (UNKNOWN, f"No such partition as {topic}-9"),
                (UNKNOWN, "No such topic as no-such-topic"),
            ]
            answer = client.call("ElectLeaders", version, topic_partitions=None, **values)
            rows = {each.topic: each.partition_result for each in answer.replica_election_results}
            assert rows[topic] == (), "of all partitions only those that lack their leader are named"
    answer = client.call("ElectLeaders", 2, topic_partitions=asked[:1], election_type=7, timeout=SOON)
    (each,) = answer.replica_election_results
    assert code(answer) == INVALID
    assert {(code(row), row.error_message) for row in each.partition_result} == {(INVALID, "Unknown election type 7")}


def test_reassignments_that_are_none(client: Client, topic: str) -> None:
    def ask(version: int, index: int, replicas: list[int] | None, name: str = topic) -> tuple[int, str | None]:
        topics = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        values = {"allow_replication_factor_change": False, "topics": topics, "timeout": SOON}
        answer = client.call("AlterPartitionReassignments", version, **values)
        assert code(answer) == 0
        (row,) = answer.responses[0].partitions
        return code(row), row.error_message

    for version in versions("AlterPartitionReassignments"):
        assert ask(version, 0, [1]) == (0, None)
        assert ask(version, 0, None) == (NONE_MOVING, None)
        assert ask(version, 9, [1]) == (UNKNOWN, f"Unable to find partition {topic}:9.")
        assert ask(version, 0, [1], "no-such-topic") == (UNKNOWN, "Unable to find a topic named no-such-topic.")
        for broker in (-1, 99):
            message = f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            assert ask(version, 0, [broker]) == (ASSIGNMENT, message)
        if version == 0:
            empty = "The manual partition assignment includes an empty replica list."
            twice = "The manual partition assignment includes the broker 1 more than once."
            assert (ask(0, 0, []), ask(0, 0, [1, 1])) == ((ASSIGNMENT, empty), (ASSIGNMENT, twice))
        else:
            assert ask(1, 0, [1, 2]) == (FACTOR, "The replication factor is changed from 1 to 2")
        empty_topic = [{"name": "anything", "partitions": []}]
        answer = client.call("AlterPartitionReassignments", version, topics=empty_topic, timeout=SOON)
        assert [(row.name, row.partitions) for row in answer.responses] == [("anything", ())]
        assert client.call("AlterPartitionReassignments", version, topics=(), timeout=SOON).responses == ()
    for asked in (None, (), [{"name": topic, "partition_indexes": [0]}]):
        answer = client.call("ListPartitionReassignments", 0, topics=asked, timeout=SOON)
        assert (code(answer), answer.topics) == (0, ())
