"""Where new replicas go: over racks, then nodes, the emptiest first; and what follows when nodes are away."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.model.support import apply, cluster, create, done, lost, refused, registration
from workflows.model.metadata.state import ClusterState


def racks(*names: str) -> ClusterState:
    """A cluster whose nodes 1, 2, ... stand in these racks."""
    state = cluster(0)
    for node, name in enumerate(names, 1):
        state = done(state, registration(node) | {"rack": name})
    return state


def placed(state: ClusterState, topic: str = "t") -> list[tuple[int, ...]]:
    return [partition.replicas for partition in state.topics[topic].partitions]


@pytest.mark.parametrize("factor", [2, 3])
def test_leaders_and_followers_are_spread_alike(factor: int) -> None:
    rows = placed(done(cluster(5), create("t", 40, replication_factor=factor)))
    assert all(len(set(row)) == factor for row in rows)
    assert set(Counter(row[0] for row in rows).values()) == {8}
    assert set(Counter(node for row in rows for node in row).values()) == {8 * factor}
    followers = Counter(row[1] for row in rows if row[0] == 1)
    assert len(followers) == 4, "when a node goes, all others take over from it"


@given(
    names=st.lists(st.sampled_from("abc"), min_size=1, max_size=7),
    factor=st.integers(1, 4),
    partitions=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_no_rack_holds_two_replicas_while_another_holds_none(names: list[str], factor: int, partitions: int) -> None:
    state = racks(*names)
    command = create("t", partitions, replication_factor=factor)
    if factor > len(names):
        assert refused(state, command)[0] == 38
        return
    rack = dict(enumerate(names, 1))
    for row in placed(done(state, command)):
        assert len(set(row)) == factor
        assert len({rack[node] for node in row}) == min(factor, len(set(names)))


def test_racks_of_one_size_get_the_same() -> None:
    rows = placed(done(racks("a", "a", "b", "b", "c", "c"), create("t", 12, replication_factor=3)))
    assert set(Counter(node for row in rows for node in row).values()) == {6}


def test_nodes_with_the_fewest_replicas_come_first_also_as_followers() -> None:
    state = done(cluster(3), {"do": "create_topics", "topics": [{"name": "u", "assignment": [[1, 2], [2, 1]]}]})
    assert placed(done(state, create("t", 1, replication_factor=2))) == [(3, 1)]


def test_fenced_node_only_follows_if_there_are_too_few_others() -> None:
    state = done(cluster(3), lost(2))
    assert placed(done(state, create("t", 4, replication_factor=2))) == [(1, 3), (3, 1), (1, 3), (3, 1)]
    rows = done(state, create("t", 2, replication_factor=3))
    assert placed(rows) == [(1, 3, 2), (3, 1, 2)]
    assert [each.isr for each in rows.topics["t"].partitions] == [(1, 3), (3, 1)], "who is away is not in sync"
    assert refused(state, create("t", 1, replication_factor=4))[0] == 38


@pytest.mark.conformance(159)
def test_assignment_to_fenced_nodes_only_is_rejected() -> None:
    state = done(cluster(3), lost(2))
    by_hand = {"do": "create_topics", "topics": [{"name": "t", "assignment": [[1, 2], [2, 1]]}]}
    made = done(state, by_hand)
    assert [(each.leader, each.isr) for each in made.topics["t"].partitions] == [(1, (1,)), (1, (1,))]
    by_hand["topics"] = [{"name": "t", "assignment": [[1], [2]]}]
    says = (
        "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled shutdown."
    )
    assert refused(state, by_hand) == (39, says)


def test_new_partitions_get_as_many_replicas_as_the_others_will_have() -> None:
    state = done(cluster(4), create("t", 1, replication_factor=2))
    moving = {"do": "alter_reassignments", "partitions": [["t", 0, [3, 4]]]}
    grow = {"do": "create_partitions", "topics": [{"name": "t", "count": 3}]}
    rows = placed(done(done(state, moving), grow))
    assert [len(row) for row in rows] == [4, 2, 2]
    wrong = {"name": "t", "count": 2, "assignment": [[1]]}
    assert refused(state, {"do": "create_partitions", "topics": [wrong]})[0] == 39


def test_limit_counts_replicas() -> None:
    change = apply(cluster(3), create("t", 7_000, replication_factor=3))
    assert change.results[0]["error"] == 44
