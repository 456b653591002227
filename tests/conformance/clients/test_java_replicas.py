"""The Java clients and replicas on several nodes: reassigning, listing, electing, and a producer with acks=all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.clients.conftest import Ask
from tests.conformance.clients.java import ok
from tests.conformance.replication.between import everywhere, filled, held, seen, wait_until_done

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]


@pytest.mark.feature("455-01", "455-02", "455-04", "455-10", "455-13")
def test_reassigned_listed_cancelled_and_elected(ask: Ask, cluster: Any) -> None:
    topic = filled(cluster, [1, 2], [2, 1])
    first, second = f"{topic}-0", f"{topic}-1"
    with held(cluster, topic, to=[3]):
        asked = [[topic, 0, [3, 2]], [topic, 1, [3, 1]], [topic, 7, [1]], [topic, 1, [3, 1]]]
        done = ask("alterPartitionReassignments", wanted=asked)
        assert (done[first], done[second]) == ({"ok": None}, {"ok": None})
        assert done[f"{topic}-7"]["error"] == "UnknownTopicOrPartitionException"
        assert {first, second} <= set(ok(ask("listPartitionReassignments")))
        assert ok(ask("describeReassignments", partitions=[[topic, 0]])) == {first: [[3, 2, 1], [3], [1]]}
        refused = ask("alterPartitionReassignments", wanted=[[topic, 0, [1, 1]], [topic, 1, [9]]])
        assert {row["error"] for row in refused.values()} == {"InvalidReplicaAssignmentException"}
        assert ask("alterPartitionReassignments", wanted=[[topic, 1, None]]) == {second: {"ok": None}}
        again = ask("alterPartitionReassignments", wanted=[[topic, 1, None]])[second]
        assert again["error"] == "NoReassignmentInProgressException"
        # Whichever node the client asks: they hear of it with their next image.
        cluster.eventually(lambda: all(3 not in row.replicas for row in everywhere(cluster, topic, 1)), "all know it")
        (shown,) = (
            row for row in ok(ask("describeTopics", topics=[topic])[topic])["partitions"] if row["partition"] == 1
        )
        assert sorted(shown["replicas"]) == sorted(shown["isr"]) == [1, 2]
    wait_until_done(cluster, topic, [3, 2])
    leader = seen(cluster, topic).leader
    assert ask("alterPartitionReassignments", wanted=[[topic, 0, [5 - leader, leader]]]) == {first: {"ok": None}}
    assert ok(ask("electLeaders", type="PREFERRED", partitions=[[topic, 0]])) == {first: None}
    cluster.eventually(
        lambda: all(row.leader == 5 - leader for row in everywhere(cluster, topic)), "the preferred one leads"
    )
    assert cluster.end_offset(topic) == 400
    again = ok(ask("electLeaders", type="PREFERRED", partitions=[[topic, 0]]))
    assert again == {first: "ElectionNotNeededException"}
    sent = ask("produce", topic=topic, partition=0, prefix="r", count=50, config={"acks": "all"})
    assert sent["failures"] == [] and [row[1] for row in sent["acknowledged"]] == list(range(400, 450))
