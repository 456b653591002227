"""The ISR as its leaders change it: what is taken, what is refused, and what follows from nodes that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflows.model.replicated import elect, isr_command, isr_row, reassign, replicated, row, with_isr
from tests.workflows.model.support import apply, done, lost, refused, registration
from workflows.model.metadata.state import ClusterState


def seen(state: ClusterState, index: int = 0) -> tuple[int, tuple[int, ...], int]:
    """Leader, ISR and leader epoch."""
    held = row(state, index)
    return held.leader, held.isr, held.leader_epoch


def test_leader_shrinks_and_expands_its_isr() -> None:
    state = replicated((1, 2, 3))
    assert seen(state) == (1, (1, 2, 3), 0)
    change = apply(state, isr_command(state, (1, 2)))
    assert seen(change.state) == (1, (1, 2), 0), "the leader epoch stays while nobody is elected"
    assert change.results == [{"value": row(state).partition_epoch + 1, "version": change.state.version}]
    assert change.quiet, "the others need not know at once"
    back = done(change.state, isr_command(change.state, (1, 2, 3)))
    assert seen(back) == (1, (1, 2, 3), 0)


def test_batch_of_changes_is_one_version_for_each_topic() -> None:
    state = replicated(*[(1, 2, 3)] * 50)
    rows = [isr_row(state, (1, 2), index) for index in range(50)]
    change = apply(state, {"do": "alter_partitions", "node": 1, "partitions": rows})
    assert not any(result.get("error") for result in change.results) and len(change.results) == 50
    assert change.state.version == state.version + 1


@pytest.mark.parametrize(
    ("isr", "other", "error"),
    [
        ((1, 2), {"leader_epoch": -1}, 74),
        ((1, 2), {"leader_epoch": 5}, 75),
        ((1, 2), {"partition_epoch": 7}, 95),
        ((1, 2), {"topic_id": "another"}, 100),
        ((1, 2), {"epoch": 1}, 107),
        ((1, 2), {"node": 2}, 42),
        ((), {}, 42),
        ((2, 3), {}, 42),
        ((1, 4), {}, 42),
        ((1, 1), {}, 42),
    ],
)
def test_alter_partition_with_an_invalid_isr_is_rejected(
    isr: tuple[int, ...], other: dict[str, Any], error: int
) -> None:
    state = replicated((1, 2, 3))
    assert refused(state, isr_command(state, isr, **other))[0] == error
    unknown = isr_command(state, (1,))
    unknown["partitions"][0][1] = 9
    assert refused(state, unknown)[0] == 3


def test_alter_partition_with_an_old_partition_epoch_is_rejected() -> None:
    """The leader had not heard of what the controller changed meanwhile, and would undo it."""
    before = replicated((1, 2, 3))
    state = done(before, lost(3))
    held = row(state)
    assert held.isr == (1, 2) and held.partition_epoch == row(before).partition_epoch + 1
    late = isr_command(state, (1,), partition_epoch=held.partition_epoch - 1)
    assert refused(state, late)[0] == 95
    back = done(state, registration(3, "again"))
    assert refused(back, isr_command(back, (1, 2, 3), partition_epoch=held.partition_epoch - 1))[0] == 95


def test_alter_partition_without_a_broker_epoch_is_accepted() -> None:
    state = replicated((1, 2, 3))
    assert seen(done(state, isr_command(state, (1, 3), epoch=-1)))[1] == (1, 3)


def test_alter_partition_with_the_current_isr_succeeds_unchanged() -> None:
    state = replicated((1, 2, 3))
    command = isr_command(state, (1, 2))
    after = done(state, command)
    again = apply(after, command)
    assert again.state is after and again.results[0]["value"] == row(after).partition_epoch


def test_fenced_or_offline_replica_is_ineligible_for_the_isr() -> None:
    state = done(replicated((1, 2, 3)), lost(3))
    assert seen(state) == (1, (1, 2), 0)
    assert refused(state, isr_command(state, (1, 2, 3)))[0] == 107
    told = {"do": "assign_directories", "node": 3, "replicas": [["t", 0, "", "d3", 0]]}
    state = done(done(done(state, registration(3, "again")), told), registration(3, "again", online=False))
    assert refused(state, isr_command(state, (1, 2, 3)))[0] == 107


def test_fenced_node_leaves_the_isrs_and_the_next_replica_leads() -> None:
    state = replicated((1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 4, 5), (4, 5))
    after = apply(state, lost(1)).state
    assert [seen(after, index)[:2] for index in range(5)] == [
        (2, (2, 3)),
        (2, (2, 3)),
        (3, (3, 2)),
        (4, (4, 5)),
        (4, (4, 5)),
    ]
    assert [seen(after, index)[2] for index in range(5)] == [1, 0, 0, 1, 0]
    assert after.version == state.version + 2, "the node's row and one for the topic"


def test_last_isr_member_stays_and_only_it_leads_again() -> None:
    state = done(done(replicated((1, 2)), lost(2)), lost(1))
    assert seen(state) == (-1, (1,), 0)
    state = done(state, registration(2, "again"))
    assert seen(state) == (-1, (1,), 0), "who was not in sync does not lead"
    state = done(state, registration(1, "again"))
    assert seen(state) == (1, (1,), 1)
    state = with_isr(state, (1, 2))
    assert seen(state) == (1, (1, 2), 1)


def test_restarted_node_leaves_the_isr() -> None:
    """What it had not flushed may be lost: it follows until it has everything again."""
    state = done(replicated((1, 2, 3)), registration(1, "restarted before anyone noticed"))
    assert seen(state) == (2, (2, 3), 1)
    alone = done(replicated((1, 2)), isr_command(replicated((1, 2)), (1,), topic_id=""))
    assert seen(done(alone, registration(1, "restarted"))) == (1, (1,), 1)


def test_replicas_of_an_offline_directory_leave_the_isr() -> None:
    state = replicated((1, 2, 3), (1, 2, 3), (1,))
    for node in (1, 2, 3):
        rows = [["t", 0, "", f"d{node}", 0], ["t", 1, "", f"e{node}", 0], ["t", 2, "", f"d{node}", 0]]
        rows = [each for each in rows if node in row(state, int(each[1])).replicas]
        state = done(state, {"do": "assign_directories", "node": node, "replicas": rows})
    notice = {
        "do": "directory_failed",
        "node": 1,
        "incarnation": "i1",
        "directory": "/a",
        "directory_id": "d1",
        "reason": "dead",
        "noticed": 1.0,
        "replicas": [["t", state.topics["t"].id, [[0, 0], [2, 0]]]],
    }
    state = done(state, notice)
    assert [seen(state, index) for index in range(3)] == [(2, (2, 3), 1), (1, (1, 2, 3), 0), (-1, (1,), 0)]


def test_unclean_election_needs_its_config_and_leaves_one_isr_member() -> None:
    state = done(done(replicated((1, 2, 3)), isr_command(replicated((1, 2, 3)), (1,), topic_id="")), lost(1))
    assert seen(state) == (-1, (1,), 0)
    allow = {"changes": {"unclean.leader.election.enable": "true"}}
    for where in ({"kind": "topic", "name": "t"}, {"kind": "broker", "name": ""}):
        allowed = done(state, {"do": "alter_configs", **where, **allow})
        assert seen(allowed) == (2, (2,), 1), "at once, not at the next failure"
    never = done(
        state,
        {"do": "alter_configs", "kind": "topic", "name": "t"}
        | {"changes": {"unclean.leader.election.enable": "false"}},
    )
    assert seen(done(never, {"do": "alter_configs", "kind": "broker", "name": "", **allow}))[0] == -1
    before = done(replicated((1, 2)), {"do": "alter_configs", "kind": "topic", "name": "t", **allow})
    before = done(done(before, isr_command(before, (1,))), lost(1))
    assert seen(before) == (2, (2,), 1), "as well when the last one goes"


def test_elect_leaders_elects_the_preferred_replica() -> None:
    state = done(done(replicated((1, 2, 3), (2, 3), (3, 1)), lost(1)), registration(1, "again"))
    state = with_isr(state, (2, 3, 1))
    change = apply(state, elect(0, 1, 7))
    assert [result.get("error", 0) for result in change.results] == [0, 84, 3]
    assert seen(change.state) == (1, (2, 3, 1), 2)
    assert change.results[2]["message"] == "No such partition as t-7"
    assert apply(state, elect(2)).results[0]["error"] == 84
    gone = done(state, lost(1, "again"))
    assert refused(gone, elect(0))[0] == 80, "the preferred one is away"
    assert refused(gone, elect(0, unclean=True))[0] == 84, "somebody leads"


def test_elect_leaders_unclean_elects_any_live_replica() -> None:
    state = replicated((1, 2))
    state = done(done(state, isr_command(state, (1,))), lost(1))
    assert refused(state, elect(0))[0] == 80
    assert seen(done(state, elect(0, unclean=True))) == (2, (2,), 1)
    assert refused(done(state, lost(2)), elect(0, unclean=True))[0] == 83


def test_alter_partition_rejects_single_rows_and_malformed_commands() -> None:
    state = replicated((1, 2), (1, 2))
    rows = [isr_row(state, (1,), 0), isr_row(state, (1,), 1, leader_epoch=4)]
    change = apply(state, {"do": "alter_partitions", "node": 1, "partitions": rows})
    assert [result.get("error", 0) for result in change.results] == [0, 75]
    for bad in (["t"], ["t", 0, "", 0, 0, [1]], ["t", 0, "", 0, 0, [[1]]], ["t", -1, "", 0, 0, []]):
        assert refused(state, {"do": "alter_partitions", "node": 1, "partitions": [bad]})[0] == 42
    assert refused(state, {"do": "elect_leaders", "partitions": [["t"]]})[0] == 42
    assert refused(state, {"do": "alter_reassignments", "partitions": [["t", 0]]})[0] == 42


@pytest.mark.conformance(154)
def test_alter_partition_that_completes_a_reassignment_elects_another_leader() -> None:
    state = done(replicated((1, 2)), reassign((0, (3, 4))))
    assert seen(state) == (1, (1, 2), 0)
    half = with_isr(state, (1, 2, 3))
    assert row(half).assignment.reassigning
    change = apply(half, isr_command(half, (1, 2, 3, 4)))
    assert change.results[0]["error"] == 108 and change.results[0]["value"] == row(change.state).partition_epoch
    held = row(change.state)
    assert (held.replicas, held.isr, held.leader, held.leader_epoch) == ((3, 4), (3, 4), 3, 1)
    assert not change.quiet
    assert refused(change.state, isr_command(half, (1, 2, 3, 4), node=1))[0] == 74
