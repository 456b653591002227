"""More partitions for a topic: the old ones stay as they are, and what is refused leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflows.model.support import apply, cluster, create, done, lost, refused
from workflows.model.metadata.state import ClusterState
from workflows.model.metadata.topic_rules import MAX_PARTITIONS, MAX_REPLICAS


def more(name: str, count: Any, **extra: Any) -> dict[str, Any]:
    return {"do": "create_partitions", "topics": [{"name": name, "count": count, **extra}]}


def replicas(state: ClusterState, topic: str = "t") -> list[tuple[int, ...]]:
    return [partition.replicas for partition in state.topics[topic].partitions]


def test_new_partitions_are_placed_on_the_emptiest_nodes_and_old_ones_stay() -> None:
    before = cluster(3, t=2)
    after = done(before, more("t", 5))
    assert replicas(after) == [(1,), (2,), (3,), (1,), (2,)]
    assert after.topics["t"].partitions[:2] == before.topics["t"].partitions
    assert [p.index for p in after.topics["t"].partitions] == list(range(5))
    assert [(p.leader, p.leader_epoch, p.isr) for p in after.topics["t"].partitions[2:]] == [
        (3, 0, (3,)),
        (1, 0, (1,)),
        (2, 0, (2,)),
    ]
    assert after.version == before.version + 1 and after.stamps.topics["t"].changed == after.version
    assert after.topics["t"].id == before.topics["t"].id


def test_fenced_node_gets_no_new_partition() -> None:
    state = done(done(cluster(2, t=1), lost(1)), more("t", 3))
    assert replicas(state) == [(1,), (2,), (2,)]


def test_create_partitions_with_an_assignment_uses_it() -> None:
    assert replicas(done(cluster(3, t=1), more("t", 3, assignment=[[3], [3]]))) == [(1,), (3,), (3,)]


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (more("none", 2), 3, ""),
        (more("t", 2), 37, "Topic already has 2 partition(s)."),
        (more("t", 1), 37, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        (more("t", MAX_PARTITIONS + 1), 37, "10000"),
        (more("t", "3"), 42, "count"),
        (more("t", 3, assignment=[[1], [1]]), 39, "add 1 additional partition(s), but only 2 assignment(s)"),
        (more("t", 3, assignment=[]), 39, "but only 0 assignment(s)"),
        (more("t", 3, assignment=[[]]), 39, "empty replica list"),
        (more("t", 3, assignment=[[9]]), 39, "broker 9, but no such broker is registered"),
        (more("t", 3, assignment=[[1, 1]]), 39, "the broker 1 more than once"),
        (more("t", 3, assignment=[[1, 2]]), 39, "2 replica(s), but this is not consistent with previous partitions"),
        (more("t", 3, assignment=[[2]]), 39, "for partition 2 are fenced"),
        (more("t", 3, assignment=["1"]), 42, "assignment[0]"),
    ],
)
def test_invalid_create_partitions_fails_with_kafkas_error(command: dict[str, Any], code: int, says: str) -> None:
    state = done(cluster(2, t=2), lost(2))
    found, message = refused(state, command)
    assert found == code and says in message


def test_new_partitions_count_for_the_clusters_limit() -> None:
    state = cluster(1, a=MAX_PARTITIONS - 1, b=MAX_PARTITIONS - 1)
    assert replicas(done(state, more("a", MAX_PARTITIONS)), "a")[-1] == (1,)
    full = done(state, create("c", MAX_REPLICAS - 2 * (MAX_PARTITIONS - 1)))
    assert refused(full, more("a", MAX_PARTITIONS))[0] == 44


def test_create_partitions_topics_succeed_or_fail_by_themselves() -> None:
    state = cluster(2, t=1, u=1)
    topics = [{"name": "t", "count": 2}, {"name": "none", "count": 2}, {"name": "u", "count": 1}]
    checked = apply(state, {"do": "create_partitions", "topics": topics, "validate_only": True})
    assert checked.state is state and [row.get("error", 0) for row in checked.results] == [0, 3, 37]
    made = apply(state, {"do": "create_partitions", "topics": topics})
    assert [row.get("error", 0) for row in made.results] == [0, 3, 37]
    assert len(replicas(made.state)) == 2 and len(replicas(made.state, "u")) == 1
    twice = [{"name": "t", "count": 2}, {"name": "t", "count": 3}]
    assert [row["error"] for row in apply(state, {"do": "create_partitions", "topics": twice}).results] == [42, 42]


def test_create_partitions_delivered_twice_fails_the_second_time() -> None:
    state = done(cluster(1, t=1), more("t", 2))
    assert refused(state, more("t", 2)) == (37, "Topic already has 2 partition(s).")
