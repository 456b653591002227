"""AlterPartitionReassignments as operators see it: results in Kafka's words, and what becomes of the partition."""

from __future__ import annotations

import pytest

from storage_node.model.packing import pack, unpack
from tests.workflows.model.replicated import isr_command, reassign, replicated, row, with_isr
from tests.workflows.model.support import apply, done, lost, refused
from workflows.model.metadata.state import ClusterState


def seen(state: ClusterState, index: int = 0) -> tuple[tuple[int, ...], ...]:
    """Replicas, adding, removing, ISR."""
    held = row(state, index)
    return held.replicas, held.assignment.adding, held.assignment.removing, held.isr


@pytest.mark.conformance(151)
@pytest.mark.feature("455-01")
def test_each_partition_has_its_own_result() -> None:
    state = replicated((1, 2, 3), (1, 2))
    command = reassign((0, (3, 1, 2)), (1, (3, 4)), (7, (1,)), (1, None), (0, None))
    command["partitions"].append(["nope", 0, [1]])
    change = apply(state, command)
    assert [result.get("error", 0) for result in change.results] == [0, 0, 3, 0, 85, 3]
    assert change.results[2]["message"] == "Unable to find partition t:7."
    assert change.results[5]["message"] == "Unable to find a topic named nope."
    assert change.results[4]["message"] == ""
    assert seen(change.state, 0) == ((3, 1, 2), (), (), (1, 2, 3)), "another order is done at once"
    assert row(change.state).leader == 1, "and moves no leader"
    assert seen(change.state, 1) == seen(state, 1), "begun and cancelled in one request"
    assert change.reassigned == []
    (completed,) = change.completed
    assert (completed.partition, completed.original, completed.target, completed.adding, completed.removing) == (
        0,
        (1, 2, 3),
        (3, 1, 2),
        (),
        (),
    )


def test_reassignment_that_completes_at_once_is_in_completed() -> None:
    state = replicated((1, 2, 3), (1, 2))
    change = apply(state, reassign((0, (2, 1)), (1, (1, 2)), client="a tool"))
    assert [(each.partition, each.original, each.target, each.removing, each.by) for each in change.completed] == [
        (0, (1, 2, 3), (2, 1), (3,), "a tool")
    ], "what is as it was is no reassignment"
    # Back to where it came from, while it is under way to elsewhere.
    state = done(state, reassign((1, (1, 4))))
    (back,) = apply(state, reassign((1, (1, 2)))).completed
    assert (back.original, back.target, back.removing) == ((1, 2), (1, 2), (4,))
    # On to elsewhere in the same request: that is another story.
    change = apply(state, reassign((0, (2, 1)), (0, (4, 1))))
    assert change.completed == [] and len(change.reassigned) == 1


@pytest.mark.conformance(156)
@pytest.mark.feature("455-03")
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ((), "The manual partition assignment includes an empty replica list."),
        ((1, 1), "The manual partition assignment includes the broker 1 more than once."),
        ((1, 9), "The manual partition assignment includes broker 9, but no such broker is registered."),
        ((-1, 1), "The manual partition assignment includes broker -1, but no such broker is registered."),
    ],
)
def test_reassignment_with_an_invalid_assignment_is_rejected(target: tuple[int, ...], says: str) -> None:
    state = replicated((1, 2), (1, 2))
    change = apply(state, reassign((0, target), (1, (2, 1))))
    assert change.results[0] == {"error": 39, "message": says}
    assert not change.results[1].get("error"), "the other one succeeds"


def test_reassignment_with_another_factor_is_rejected_unless_allowed() -> None:
    state = replicated((1, 2))
    says = "The replication factor is changed from 2 to 3"
    assert refused(state, reassign((0, (1, 2, 3)), may_change_factor=False)) == (38, says)
    going = done(state, reassign((0, (3, 4)), may_change_factor=False))
    assert seen(going) == ((3, 4, 1, 2), (3, 4), (1, 2), (1, 2))
    assert not apply(going, reassign((0, (5, 4)), may_change_factor=False)).results[0].get("error")


@pytest.mark.conformance(155)
def test_removal_completes_at_once_even_of_a_fenced_node() -> None:
    state = done(replicated((1, 2, 3)), lost(3))
    state = done(state, reassign((0, (1, 2))))
    assert seen(state) == ((1, 2), (), (), (1, 2))
    assert row(state).leader_epoch == 1, "replicas have left"
    moved = done(replicated((1, 2, 3)), reassign((0, (2, 3))))
    assert seen(moved) == ((2, 3), (), (), (2, 3)) and row(moved).leader == 2


def test_removal_waits_until_the_remaining_replicas_are_in_sync() -> None:
    state = with_isr(replicated((1, 2, 3)), (1,))
    state = done(state, reassign((0, (2, 3))))
    assert seen(state) == ((2, 3, 1), (), (1,), (1,))
    assert seen(with_isr(with_isr(state, (1, 2)), (1, 2, 3))) == ((2, 3), (), (), (2, 3))


@pytest.mark.feature("455-22", "455-21", "455-23")
def test_kip455_example_of_a_reassignment() -> None:
    state = done(replicated((1, 2, 3)), reassign((0, (4, 3, 2))))
    assert seen(state) == ((4, 3, 2, 1), (4,), (1,), (1, 2, 3)), "in Kafka's order: the target, then who leaves"
    assert row(state).directories == ("",) * 4 and row(state).leader == 1
    done_ = with_isr(state, (1, 2, 3, 4))
    assert seen(done_) == ((4, 3, 2), (), (), (2, 3, 4))
    assert row(done_).leader == 4 and row(done_).partition_epoch == row(state).partition_epoch + 1


@pytest.mark.conformance(157, 153)
@pytest.mark.feature("455-25", "455-13", "455-02")
def test_kip455_example_of_a_cancel() -> None:
    state = done(replicated((1, 2, 3)), reassign((0, (3, 4, 5))))
    assert seen(state)[0] == (3, 4, 5, 1, 2)
    state = with_isr(state, (1, 2, 3, 4))
    epoch = row(state).leader_epoch
    back = done(state, reassign((0, None)))
    assert seen(back) == ((1, 2, 3), (), (), (1, 2, 3)), "the order from before as well, unlike Kafka"
    assert (row(back).leader, row(back).leader_epoch) == (1, epoch + 1)
    assert refused(back, reassign((0, None))) == (85, "")


@pytest.mark.conformance(150)
def test_cancel_that_needs_an_unclean_election_is_rejected() -> None:
    state = done(replicated((1, 2)), reassign((0, (3, 4))))
    state = done(done(with_isr(state, (1, 3)), lost(1)), lost(2))
    assert seen(state) == ((3, 4, 1, 2), (3, 4), (1, 2), (3,)) and row(state).leader == 3
    code, says = refused(state, reassign((0, None)))
    assert (code, says) == (
        39,
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election.",
    )
    config = {
        "do": "alter_configs",
        "kind": "topic",
        "name": "t",
        "changes": {"unclean.leader.election.enable": "true"},
    }
    allowed = done(done(state, config), reassign((0, None)))
    assert seen(allowed) == ((1, 2), (), (), (1,)) and row(allowed).leader == -1


@pytest.mark.conformance(158)
@pytest.mark.feature("455-24")
def test_second_target_keeps_in_sync_replicas_until_it_completes() -> None:
    state = with_isr(done(replicated((1, 2, 3)), reassign((0, (4, 5)))), (1, 2, 3, 4))
    state = done(state, lost(1))
    state = done(done(state, lost(2)), lost(3))
    assert row(state).leader == 4
    state = done(state, reassign((0, (3, 2, 1))))
    assert seen(state) == ((3, 2, 1, 4), (), (4,), (4,)), "4 leads and stays; 5 had nothing and is gone"
    assert row(state).assignment.original == (1, 2, 3)


def test_cancel_after_two_targets_restores_the_original_replicas() -> None:
    """Where Kafka ends with four replicas, two of them never in sync."""
    state = done(replicated((1, 2)), reassign((0, (3, 4))))
    state = done(state, reassign((0, (3, 5))))
    assert seen(state) == ((3, 5, 1, 2), (3, 5), (1, 2), (1, 2))
    assert seen(done(state, reassign((0, None)))) == ((1, 2), (), (), (1, 2))


def test_begun_reassignments_are_named_with_their_requester() -> None:
    state = replicated((1, 2), (1, 2), (1, 2))
    command = reassign((0, (3, 4)), (1, (2, 1)), (2, (1, 5)), (0, (2, 3)), principal="User:ann", client="adminclient-1")
    begun = apply(state, command).reassigned
    assert [(each.topic, each.topic_id, each.partition) for each in begun] == [
        ("t", state.topics["t"].id, index) for index in (2, 0)
    ]
    last = next(each for each in begun if each.partition == 0)
    assert (last.original, last.target, last.adding, last.removing) == ((1, 2), (2, 3), (3,), (1,))
    assert last.by == "User:ann adminclient-1"


@pytest.mark.feature("455-05")
def test_deleted_topic_ends_its_reassignments() -> None:
    state = done(replicated((1, 2), (1, 2)), reassign((0, (3, 4)), (1, (4, 5))))
    command = isr_command(state, (1, 2, 3))
    topic_id = state.topics["t"].id
    gone = done(state, {"do": "delete_topics", "names": ["t"]})
    assert list(gone.gone) == [topic_id] and not list(gone.partitions())
    assert refused(gone, command)[0] == 3
    for target in ((1, 2), None):
        assert refused(gone, reassign((0, target))) == (3, "Unable to find a topic named t.")
    again = done(gone, {"do": "create_topics", "topics": [{"name": "t", "assignment": [[1, 2]]}]})
    assert refused(again, command)[0] == 100, "a leader of the old topic has no say in the new one"
    assert not row(again).assignment.reassigning


@pytest.mark.feature("455-28")
def test_later_of_two_targets_wins_whoever_requests_them() -> None:
    state = done(replicated((1, 2)), reassign((0, (3, 4)), client="a tool"))
    change = apply(state, reassign((0, (4, 5)), client="a plan"))
    assert seen(change.state) == ((4, 5, 1, 2), (4, 5), (1, 2), (1, 2))
    assert [each.by for each in change.reassigned] == ["a plan"]
    assert apply(change.state, reassign((0, (4, 5)))).state == change.state, "asked for again, nothing changes"
    repeated = apply(change.state, reassign((0, (1, 2))))
    assert seen(repeated.state) == ((1, 2), (), (), (1, 2)) and repeated.reassigned == []


@pytest.mark.feature("455-20")
def test_reassignment_survives_a_continue_as_new() -> None:
    state = with_isr(done(replicated((1, 2)), reassign((0, (3, 4)))), (1, 2, 3))
    after = ClusterState.of(unpack(pack(state.rows())))
    assert after == state
    assert seen(with_isr(after, (1, 2, 3, 4))) == ((3, 4), (), (), (3, 4))
