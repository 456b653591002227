"""One delta for all nodes that lack the same."""

from __future__ import annotations

from storage_node.model.image import decode
from tests.workflows.model.support import cluster, create, done, lost, raising_rows, topics_after
from workflows.model.controller.deltas import Deltas
from workflows.model.metadata.state import ClusterState


def full() -> ClusterState:
    state = cluster(9, t=3)
    for number in range(60):
        state = done(state, create(f"topic-{number}", 9, replication_factor=3))
    return state


def test_nodes_at_the_same_version_share_a_delta() -> None:
    before, deltas = full(), Deltas()
    after = done(before, lost(1))
    made = [deltas.since(after, before.pair) for _ in range(8)]
    assert deltas.packed == 1 and all(each is made[0] for each in made)
    later = done(after, create("later"))
    assert deltas.since(later, before.pair) != made[0] and deltas.packed == 2, "the state has changed"


def test_nodes_that_differ_by_a_change_of_their_own_share_a_delta() -> None:
    before, deltas = full(), Deltas()
    between = done(before, raising_rows(2))
    after = done(between, lost(1))
    pairs = [before.pair, between.pair]
    made = [deltas.since(after, pair, pairs) for pair in reversed(pairs)]
    assert made[0] is made[1] and deltas.packed == 1
    (text,) = made[0]
    applied = topics_after(between.topics, decode(text))
    assert applied == after.topics


def test_node_that_lacks_little_gets_a_small_delta() -> None:
    before, deltas = full(), Deltas()
    between = done(before, lost(1))
    after = done(between, create("later"))
    large = deltas.since(after, before.pair, [before.pair, between.pair])
    (small,) = deltas.since(after, between.pair, [before.pair, between.pair])
    assert [small] != large and decode(small).since == between.version
    assert deltas.weight(after, before.pair) > 180 and deltas.weight(after, between.pair) == 1


def test_node_with_the_newest_metadata_lacks_nothing() -> None:
    state, deltas = full(), Deltas()
    assert deltas.since(state, state.pair, [(1, 1)]) == [] and deltas.exactly(state, state.pair) == []
    assert deltas.packed == 0


def test_node_of_another_generation_gets_the_whole_image() -> None:
    state, deltas = full(), Deltas()
    (text,) = deltas.since(state, (0, state.version - 1), [(1, state.version - 1)])
    assert decode(text).since == 0
