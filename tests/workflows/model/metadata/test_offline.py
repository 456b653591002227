"""Replicas that are reported offline alone: who leads, who is in sync, and what brings them back, in every order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from storage_node.model.command_rows import MAX_FILE, MAX_REASON
from storage_node.model.command_rows import decode as decode_command
from storage_node.model.fields import BadField
from storage_node.model.image import decode
from storage_node.model.image_rows import partition_row
from storage_node.model.metadata import OfflineReplica
from storage_node.model.packing import pack, unpack
from tests.workflows.model.replicated import elect, isr_command, reassign, replicated, row, with_isr
from tests.workflows.model.support import apply, done, lost, refused, registration, topics_after
from workflows.model.controller.controller import Controller
from workflows.model.metadata import image, offline
from workflows.model.metadata.state import ClusterState

WHY = "creating a segment failed: Operation not permitted"
FILE = "/a/t-0/00000000000000000042.log"


def reported(state: ClusterState, node: int, reason: str = WHY, **other: Any) -> dict[str, Any]:
    """The report of a node about its replica of t-0; `other` overrides what it names."""
    epoch = other.get("epoch", state.nodes[node].broker_epoch if node in state.nodes else 0)
    where, generation = other.get("directory", f"d{node}"), other.get("generation", 0)
    file = FILE if reason else ""
    return {
        "do": "report_replicas",
        "node": node,
        "epoch": epoch,
        "replicas": [["t", other.get("index", 0), other.get("topic_id", ""), where, generation, reason, file]],
    }


def seen(state: ClusterState) -> tuple[int, tuple[int, ...], set[int]]:
    """Leader, ISR, and the nodes whose replicas are reported offline."""
    held = row(state)
    return held.leader, held.isr, {each.node for each in held.offline}


def placed(state: ClusterState, *nodes: int) -> ClusterState:
    """The state in which the replicas of t-0 are in the first directories of their nodes."""
    for node in nodes:
        rows = [["t", 0, "", f"d{node}", 0]]
        state = done(state, {"do": "assign_directories", "node": node, "replicas": rows})
    return state


def test_offline_report_of_the_leader_elects_another_isr_member_in_one_step() -> None:
    state = placed(replicated((1, 2, 3)), 1, 2, 3)
    before = row(state)
    change = apply(state, reported(state, 1))
    after = row(change.state)
    assert seen(change.state) == (2, (2, 3), {1}) and not change.quiet
    assert (after.partition_epoch, after.leader_epoch) == (before.partition_epoch + 1, before.leader_epoch + 1)
    assert after.offline == (OfflineReplica(1, WHY, FILE),)
    assert change.results == [{"value": after.partition_epoch, "version": change.state.version}]
    assert apply(change.state, reported(change.state, 1)).state == change.state, "reported twice"


def test_offline_report_of_a_follower_shrinks_the_isr_urgently() -> None:
    state = replicated((1, 2, 3))
    change = apply(state, reported(state, 3))
    assert seen(change.state) == (1, (1, 2), {3}) and not change.quiet
    assert row(change.state).leader_epoch == row(state).leader_epoch, "nobody is elected"


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_last_isr_member_reported_offline_stays_without_a_leader(replicas: tuple[int, ...]) -> None:
    state = replicated(replicas)
    state = with_isr(state, (1,)) if len(replicas) > 1 else state
    gone = done(state, reported(state, 1))
    assert seen(gone) == (-1, (1,), {1})
    back = done(gone, reported(gone, 1, ""))
    assert seen(back) == (1, (1,), set())
    assert row(back).leader_epoch == row(state).leader_epoch + 1


def test_offline_replica_neither_joins_the_isr_nor_leads() -> None:
    state = replicated((1, 2, 3))
    state = done(state, reported(state, 1))
    error, message = refused(state, isr_command(state, (1, 2, 3)))
    assert error == 107 and WHY in message
    assert refused(state, elect(0))[0] == 80, "the preferred leader is not available"
    dead = done(done(state, lost(2)), lost(3))
    assert seen(dead) == (-1, (3,), {1}), "the last in sync is waited for"
    assert refused(dead, elect(0, unclean=True))[0] == 83


def test_replica_reported_online_joins_as_a_follower() -> None:
    state = replicated((1, 2, 3))
    state = done(state, reported(state, 1))
    back = done(state, reported(state, 1, ""))
    assert seen(back) == (2, (2, 3), set())
    assert seen(with_isr(back, (1, 2, 3)))[1] == (1, 2, 3)


def test_reassignment_removes_the_report_with_its_replica() -> None:
    state = replicated((1, 2, 3))
    state = done(state, reported(state, 1))
    state = done(state, reassign((0, (2, 3))))
    assert seen(state) == (2, (2, 3), set()) and row(state).replicas == (2, 3)
    error, message = refused(state, reported(state, 1))
    assert error == 9 and "holds no replica" in message


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"epoch": 99}, 77),
        ({"topic_id": "another"}, 100),
        ({"index": 7}, 3),
    ],
)
def test_report_that_does_not_fit_changes_nothing(other: dict[str, Any], error: int) -> None:
    state = replicated((1, 2, 3))
    assert refused(state, reported(state, 1, **other))[0] == error


def test_offline_report_of_an_earlier_incarnation_is_rejected() -> None:
    state = replicated((1, 2, 3))
    late = reported(state, 1)
    state = done(state, registration(1, "again"))
    error, message = refused(state, late)
    assert error == 77 and f"at broker epoch {state.nodes[1].broker_epoch}" in message
    assert refused(state, {**late, "node": 9})[0] == 77


@pytest.mark.parametrize("wrong", [["t"], ["t", 0, "", "d1", 0, 5, ""], ["t", 0, "", "d1", 0, WHY, None]])
def test_malformed_offline_report_is_rejected_with_the_path(wrong: list[Any]) -> None:
    state = replicated((1, 2, 3))
    error, message = refused(state, {**reported(state, 1), "replicas": [wrong]})
    assert error == 42 and "$.replicas[0]" in message
    with pytest.raises(BadField) as bad:
        decode_command({**registration(1), "offline": [wrong]})
    assert bad.value.path.startswith("$.offline[0]")


def test_offline_reports_texts_are_bounded() -> None:
    state = replicated((1, 2, 3))
    command = reported(state, 1, "x" * 10_000)
    command["replicas"][0][6] = "/" + "y" * 10_000
    (held,) = row(done(state, command)).offline
    assert (len(held.reason), len(held.file)) == (MAX_REASON, MAX_FILE)


def test_offline_report_records_the_directory_unless_a_move_raised_the_generation() -> None:
    state = replicated((1, 2, 3))
    told = row(done(state, reported(state, 1, directory="e1", generation=4)))
    assert (told.directories[0], told.generations[0]) == ("e1", 4)
    moving = {"do": "raise_generations", "node": 1, "replicas": [["t", 0, "", "d1", 0]]}
    state = done(placed(state, 1), moving)
    held = row(done(state, reported(state, 1, directory="d1", generation=0)))
    assert held.generations[0] == 1 and held.leader == 2, "the replica that failed is the one before the move"


def test_registration_replaces_the_nodes_offline_reports() -> None:
    state = replicated((1, 2, 3))
    state = done(state, reported(state, 1))
    named = reported(state, 1)["replicas"]
    still = done(state, registration(1, "again") | {"offline": named})
    assert seen(still) == (2, (2, 3), {1})
    assert done(still, registration(1, "again") | {"offline": named}) == still
    back = done(still, registration(1, "third"))
    assert seen(back) == (2, (2, 3), set()), "what a start does not name it has opened"
    alone = replicated((1,))
    dead = done(alone, registration(1, "again") | {"offline": named})
    assert seen(dead) == (-1, (1,), {1}), "no moment in which it leads"
    assert seen(done(dead, registration(1, "third")))[0] == 1


def test_rows_and_images_keep_what_is_reported() -> None:
    state = replicated((1, 2, 3), (2, 3))
    after = done(state, reported(state, 1))
    assert ClusterState.of(unpack(pack(after.rows()))) == after
    (told,) = image.since(after, *state.pair)
    assert topics_after(state.topics, decode(told))["t"].partitions == after.topics["t"].partitions
    assert [(topic, held.index, each.node) for topic, held, each in offline.offline_replicas(after)] == [("t", 0, 1)]
    assert len(partition_row(row(after, 1))) == len(partition_row(row(state))), (
        "a row says nothing of it where nothing is reported"
    )


def test_recovered_controller_learns_offline_replicas_from_registrations() -> None:
    state = replicated((1, 2), nodes=2)
    state = done(state, reported(state, 1))
    it = Controller.start("c", None)
    (whole,) = image.whole(state)

    def register(node: int, **more: Any) -> dict[str, Any]:
        command = registration(node) | {"image": whole, **more}
        batch = {"node": node, "incarnation": f"i{node}", "generation": 1, "version": state.version}
        return it.submit({**batch, "commands": [command]}, str)

    register(2)
    register(1, offline=reported(state, 1)["replicas"])
    assert it.state is not None and seen(it.state) == (2, (2,), {1})


def test_every_order_of_report_repair_death_and_return() -> None:
    """The leader's file is bad, another node dies, one is started again, it is repaired: whatever comes first."""

    def report(state: ClusterState) -> ClusterState:
        return apply(state, reported(state, 1)).state

    def repair(state: ClusterState) -> ClusterState:
        return apply(state, reported(state, 1, "")).state

    def death(state: ClusterState) -> ClusterState:
        return apply(state, lost(2, state.nodes[2].incarnation)).state

    def new_epoch(state: ClusterState) -> ClusterState:
        named = reported(state, 1)["replicas"] if row(state).offline_on(1) else []
        return apply(state, registration(1, state.nodes[1].incarnation + "x") | {"offline": named}).state

    def back(state: ClusterState) -> ClusterState:
        return apply(state, registration(2, state.nodes[2].incarnation + "x")).state

    def join(state: ClusterState) -> ClusterState:
        held = row(state)
        if held.leader == -1:
            return state
        bad = {each.node for each in held.offline}
        able = [node for node in held.replicas if not state.nodes[node].fenced and node not in bad]
        return with_isr(state, able)

    for begin in ((1, 2, 3), (1, 2), (1,)):
        for order in permutations((report, repair, death, new_epoch, back, join)):
            state = replicated(begin)
            for step in order:
                before, state = row(state), step(state)
                held = row(state)
                bad = {each.node for each in held.offline}
                can = {node for node in held.replicas if not state.nodes[node].fenced} - bad
                assert held.isr and set(held.isr) <= set(held.replicas)
                assert held.leader in can & set(held.isr) if held.leader != -1 else not can & set(held.isr)
                assert set(held.isr) <= can or not set(held.isr) & can, "only as the last is it in sync"
                assert held.leader_epoch >= before.leader_epoch
                assert (held == before) == (held.partition_epoch == before.partition_epoch)
            state = join(repair(back(state)))
            assert row(state).leader != -1 and row(state).isr == tuple(begin), "after all is mended all are in sync"
