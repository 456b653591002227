"""Merging what nodes know when the metadata was lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.image import ImageMessage, decode
from tests.workflows.model.replicated import reassign, replicated, row, with_isr
from tests.workflows.model.support import cluster, create, done, lost, new_id, raising_rows, registration
from workflows.model.controller import recover
from workflows.model.controller.controller import Controller
from workflows.model.controller.recover import Collecting
from workflows.model.metadata import image
from workflows.model.metadata.outcome import Refused
from workflows.model.metadata.state import PRODUCER_IDS_PER_GENERATION, ClusterState


def known_by(state: ClusterState) -> ImageMessage:
    (text,) = image.whole(state)
    return decode(text)


def collect(*answers: tuple[int, ClusterState | None]) -> Collecting:
    collecting = Collecting("c")
    for node, state in answers:
        collecting = collecting.with_response(node, known_by(state) if state else None)
    return collecting


def test_new_cluster_needs_one_node() -> None:
    assert not Collecting("c").complete
    collecting = collect((1, None))
    assert collecting.complete
    state = recover.merge(collecting)
    assert (state.cluster_generation, state.topics, state.next_producer_id) == (1, {}, 0)


def test_every_node_named_in_any_image_is_awaited() -> None:
    state = cluster(3, t=3)
    collecting = collect((1, state), (4, None))
    assert collecting.awaited == (2, 3) and not collecting.complete
    assert collecting.with_response(2, None).awaited == (3,)
    assert collecting.with_response(2, None).give_up(3).complete


def test_highest_epoch_of_each_partition_wins() -> None:
    older = cluster(2, t=2)
    newer = done(older, create("u"))
    ahead = done(older, raising_rows(2))  # what one node was told and the other was not
    merged = recover.merge(collect((1, newer), (2, ahead)))
    assert sorted(merged.topics) == ["t", "u"]
    assert merged.topics["t"].partitions[1].generations == (1,)
    assert merged.pair > max(newer.pair, ahead.pair) and merged.cluster_generation == 2
    assert merged.next_producer_id == PRODUCER_IDS_PER_GENERATION


def test_higher_generation_outranks_all_epochs() -> None:
    old = done(done(cluster(2, t=2), raising_rows(2)), {"do": "raise_generations", "node": 2, "replicas": []})
    rebuilt = replace(cluster(2, t=2), cluster_generation=2)
    rebuilt = replace(rebuilt, topics={"t": replace(old.topics["t"], partitions=rebuilt.topics["t"].partitions)})
    merged = recover.merge(collect((1, old), (2, rebuilt)))
    assert merged.topics["t"].partitions[1].partition_epoch == 0 + 1  # fencing until it registers
    assert merged.cluster_generation == 3


def test_recovered_nodes_are_fenced_until_they_register() -> None:
    merged = recover.merge(collect((1, cluster(2, t=2)), (2, None)))
    assert merged.alive == () and [p.leader for p in merged.topics["t"].partitions] == [-1, -1]
    back = done(merged, registration(1))
    assert [p.leader for p in back.topics["t"].partitions] == [1, -1]


def test_unknown_topics_are_kept_and_deleted_ones_stay_deleted() -> None:
    before = cluster(2, t=1, u=1)
    deleted = done(before, {"do": "delete_topics", "names": ["t"]})
    assert sorted(recover.merge(collect((1, deleted), (2, before))).topics) == ["u"]
    # A topic that the newest image simply does not know is kept.
    assert sorted(recover.merge(collect((1, cluster(2)), (2, before))).topics) == ["t", "u"]


def test_of_two_topics_with_one_name_the_newest_images_wins() -> None:
    first = cluster(2, t=2)
    again = done(cluster(2), create("t", 1))
    again = replace(again, cluster_generation=7)
    merged = recover.merge(collect((1, first), (2, again)))
    assert merged.topics["t"].id == again.topics["t"].id and len(merged.topics["t"].partitions) == 1


def test_image_of_another_cluster_is_rejected() -> None:
    with pytest.raises(Refused, match="belongs to cluster"):
        Collecting("other").with_response(1, known_by(cluster(1)))


@pytest.mark.feature("455-32")
def test_open_reassignment_is_taken_from_the_newest_row() -> None:
    before = replicated((1, 2, 3), (1, 2, 3), nodes=5)
    begun = done(before, reassign((0, (4, 5)), (1, (3, 4))))
    later = with_isr(begun, (1, 2, 3, 4))
    cancelled = done(later, reassign((1, None)))
    merged = recover.merge(collect((1, before), (2, begun), (3, cancelled), (4, later), (5, None)))
    first, second = merged.topics["t"].partitions
    assert first.assignment == row(later).assignment and first.isr == (1, 2, 3, 4)
    assert second.assignment == row(before).assignment and second.isr == (1, 2, 3)
    assert all(each.leader == -1 and len(each.directories) == len(each.replicas) for each in (first, second))


def merged_by(state: ClusterState, *incarnations: str) -> ClusterState:
    """The state after a controller without memory has met the nodes 1, 2, ... in these incarnations."""
    it = Controller.start("c", None)
    (text,) = image.whole(state)
    for node, incarnation in enumerate(incarnations, 1):
        command = registration(node, incarnation) | {"image": text}
        version = {"generation": state.cluster_generation, "version": state.version}
        batch = {"node": node, "incarnation": incarnation, "commands": [command], **version}
        results = it.submit(batch, new_id)["results"]
    assert it.state is not None and not results[0][0].get("error")
    return it.state


def test_order_of_registrations_does_not_shrink_the_isr() -> None:
    state = replicated((1, 2, 3), (2, 3, 1), (3, 1, 2), nodes=3)
    after = merged_by(state, "i1", "i2", "i3")
    assert [(each.leader, each.isr) for each in after.topics["t"].partitions] == [
        (1, (1, 2, 3)),
        (2, (2, 3, 1)),
        (3, (3, 1, 2)),
    ]
    assert [each.leader_epoch for each in after.topics["t"].partitions] == [1, 1, 1]
    all_again = merged_by(state, "a", "b", "c")
    assert [each.isr for each in all_again.topics["t"].partitions] == [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


def test_restarted_node_leaves_the_isr_if_another_member_was_not_restarted() -> None:
    state = replicated((1, 2, 3), (1, 2), (1,), nodes=3)
    after = merged_by(state, "again", "i2", "i3")
    assert [(each.leader, each.isr) for each in after.topics["t"].partitions] == [(2, (2, 3)), (2, (2,)), (1, (1,))]


def test_node_that_is_given_up_leaves_the_isr() -> None:
    state = replicated((1, 2, 3), nodes=3)
    it = Controller.start("c", None)
    (text,) = image.whole(state)
    for node in (2, 3):
        command = registration(node) | {"image": text}
        version = {"generation": state.cluster_generation, "version": state.version}
        it.submit({"node": node, "incarnation": f"i{node}", "commands": [command], **version}, new_id)
    it.give_up(1)
    assert it.state is not None
    held = row(it.state)
    assert (held.leader, held.isr, held.replicas) == (2, (2, 3), (1, 2, 3))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((7, 12, 1), (5, 9, 2)), ((7, 12, 1), (5, 14, 2)), ((5, 9, 1), (5, 9, 2)), ((5, 9, 1), (5, 10, 2))],
    ids=["goes back", "goes back in one epoch alone", "two leaders at the same epochs", "two leaders in one epoch"],
)
def test_contradicting_metadata_makes_the_controller_collect_and_converge(
    ours: tuple[int, int, int], theirs: tuple[int, int, int]
) -> None:
    state = replicated((1, 2), nodes=2)

    def fork(epochs: tuple[int, int, int]) -> ClusterState:
        leader_epoch, partition_epoch, leader = epochs
        held = replace(row(state), leader=leader, leader_epoch=leader_epoch, partition_epoch=partition_epoch)
        return replace(state, topics={"t": replace(state.topics["t"], partitions=(held,))})

    mine, its = fork(ours), fork(theirs)
    it = Controller.start("c", None)
    it.state, it.collecting = its, None
    known = {1: mine, 2: its}

    def submit(node: int, command: dict[str, Any], pair: tuple[int, int]) -> dict[str, Any]:
        batch = {"node": node, "incarnation": f"i{node}", "commands": [command]}
        return it.submit({**batch, "generation": pair[0], "version": pair[1]}, new_id)

    above = (mine.cluster_generation + 1, 0)
    assert submit(1, {"do": "tell_version"}, above)["register"] and it.state is None
    for node, its_own in known.items():
        submit(node, registration(node) | {"image": image.whole(its_own)[0]}, its_own.pair)
    assert it.state is not None and it.pair > above
    held = row(it.state)
    assert held.leader in (1, 2) and held.leader_epoch > max(ours[0], theirs[0])
    assert (held.leader_epoch, held.partition_epoch) > max(ours[:2], theirs[:2])
    pair = it.pair
    submit(1, {"do": "tell_version"}, above)
    assert it.pair == pair, "what comes late collects nothing"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_images_in_any_order_lose_no_acknowledged_change(data: st.DataObject) -> None:
    state = cluster(3, t=3)
    seen = [state]
    for step in range(data.draw(st.integers(1, 6))):
        command = data.draw(
            st.sampled_from([create(f"n{step}", 2), raising_rows(2), lost(3), registration(3, f"i3-{step}")])
        )
        from tests.workflows.model.support import apply

        state = apply(state, command).state
        seen.append(state)
    # One node at least has the newest image: the one that was answered with it.
    others = data.draw(st.lists(st.sampled_from(seen), min_size=2, max_size=2))
    answers = list(zip((1, 2, 3), [state, *others], strict=True))
    merged = recover.merge(collect(*answers))
    shuffled = recover.merge(collect(*data.draw(st.permutations(answers))))
    assert merged.topics == shuffled.topics and merged.pair == shuffled.pair
    assert sorted(merged.topics) == sorted(state.topics)
    for topic, partition in state.partitions():
        found = merged.topics[topic.name].partitions[partition.index]
        assert (found.generations, found.directories) == (partition.generations, partition.directories)
        assert found.partition_epoch >= partition.partition_epoch
    assert all(merged.pair > each.pair for each in seen)
