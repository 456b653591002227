"""The state machine of a group: who is answered what, in every phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_node.errors import ErrorCode
from storage_node.groups.group import Group
from storage_node.groups.values import GroupState, Leaving, Sync
from tests.storage_node.groups.scene import LIMITS, REBALANCE, SESSION, Scene, ask, subscription

NONE = ErrorCode.NONE


def test_a_member_is_told_an_id_and_joins_with_it() -> None:
    scene = Scene()
    id_ = scene.name()
    assert id_ == "client-1"
    assert scene.group.state is GroupState.EMPTY
    assert scene.join("a", ask(id_)) is None
    scene.pass_time(2.9)
    assert scene.joined("a") is None
    scene.pass_time(0.2)
    answer = scene.joined("a")
    assert answer is not None
    assert (answer.error, answer.member_id, answer.generation, answer.leader) == (NONE, id_, 1, id_)
    assert (answer.protocol_type, answer.protocol) == ("consumer", "range")
    assert [(one.member_id, one.metadata) for one in answer.members] == [(id_, subscription("t"))]
    assert scene.group.state is GroupState.COMPLETING
    synced = scene.sync("s", id_, 1, client_1=b"all")
    assert synced is not None
    assert (synced.error, synced.assignment, synced.protocol) == (NONE, b"all", "range")
    assert scene.group.state is GroupState.STABLE


def test_an_id_that_nobody_uses_is_forgotten() -> None:
    scene = Scene()
    id_ = scene.name()
    scene.pass_time(SESSION + 0.1)
    assert scene.group.idle
    answer = scene.join("a", ask(id_))
    assert answer is not None and answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_generation_waits_for_others_that_come() -> None:
    """group.initial.rebalance.delay.ms begins anew with each newcomer, up to the rebalance timeout."""
    scene = Scene()
    assert scene.join("a", ask(named=False)) is None
    for token in "bcd":
        scene.pass_time(2.0)
        assert scene.join(token, ask(named=False)) is None
    assert scene.joined("a") is None
    scene.pass_time(6.1)
    answers = [scene.joined(token) for token in "abcd"]
    assert all(answer is not None and answer.generation == 1 for answer in answers)
    assert [len(answer.members) for answer in answers if answer is not None] == [4, 0, 0, 0]


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    scene = Scene()
    scene.join("first", ask(named=False))
    for index in range(20):
        scene.pass_time(2.0)
        if scene.joined("first") is not None:
            break
        scene.join(f"t{index}", ask(named=False))
    assert scene.joined("first") is not None
    assert scene.now - 1000.0 <= REBALANCE + 2


def test_a_newcomer_makes_everybody_join_again() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    assert scene.join("c", ask(scene.name())) is None
    assert scene.group.state is GroupState.PREPARING
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.group.may_commit(a, None, 1, scene.now) is NONE, "what was read is committed before joining again"
    for token, id_ in (("a", a), ("b", b)):
        scene.join(token, ask(id_))
    answers = {token: scene.joined(token) for token in "abc"}
    assert {token: answer.generation for token, answer in answers.items() if answer} == {"a": 2, "b": 2, "c": 2}
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.ILLEGAL_GENERATION
    assert scene.group.heartbeat(a, None, 2, scene.now) is NONE
    assert scene.group.may_commit(a, None, 2, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.group.may_commit(a, None, 1, scene.now) is ErrorCode.ILLEGAL_GENERATION


def test_a_generation_waits_for_an_id_that_was_handed_out() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    late = scene.name()
    assert scene.join("a", ask(a)) is None, "somebody is on the way"
    assert scene.join("late", ask(late)) is not None
    answer = scene.joined("a")
    assert answer is not None and answer.generation == 2 and len(answer.members) == 2


def test_who_does_not_join_again_is_out_after_the_rebalance_timeout() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    scene.join("c", ask(named=False))
    scene.join("a", ask(a))
    for _ in range(9):
        scene.pass_time(3.0)
        assert scene.group.heartbeat(b, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.joined("a") is None
    scene.pass_time(3.1)
    answer = scene.joined("a")
    assert answer is not None and {one.member_id for one in answer.members} == {a, "client-3"}
    assert scene.group.heartbeat(b, None, 2, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_not_heard_of_is_out_after_its_session_timeout() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    for _ in range(4):
        scene.pass_time(3.0)
        error = scene.group.heartbeat(a, None, 1, scene.now)
    assert error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(scene.group.members) == {a}
    assert scene.join("b", ask(b)) is not None, "unknown by now"
    answer = scene.join("a", ask(a))
    assert answer is not None and answer.generation == 2


def test_a_commit_counts_as_a_sign_of_life() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    for _ in range(5):
        scene.pass_time(SESSION - 1)
        assert scene.group.may_commit(a, None, 1, scene.now) is NONE
    assert scene.group.state is GroupState.STABLE


def test_who_does_not_sync_is_out_after_the_rebalance_timeout() -> None:
    scene = Scene()
    for token in "ab":
        scene.join(token, ask(named=False))
    scene.pass_time(3.1)
    scene.pass_time(3.1)
    first = scene.joined("a")
    assert first is not None
    assert scene.sync("s", "client-2", 1) is None, "the leader has not handed in the assignments"
    for _ in range(8):
        scene.pass_time(4.0)
        scene.group.heartbeat(first.member_id, None, 1, scene.now)
    waiting = scene.synced("s")
    assert waiting is not None and waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(scene.group.members) == {"client-2"}
    scene.pass_time(SESSION + REBALANCE)
    assert scene.group.idle, "it was told to join again and did not"


def test_who_waited_for_an_assignment_must_be_heard_of_again() -> None:
    """A static member, too: its waiting ends with the rebalance, and its session timeout begins."""
    scene = Scene()
    scene.join("a", ask(instance="one", named=False))
    scene.join("b", ask(instance="two", named=False))
    scene.pass_time(6.2)
    second = scene.joined("b")
    assert second is not None
    asked = Sync(second.member_id, "two", 1)
    assert scene.group.sync(asked, "s", scene.now) == []
    scene.join("c", ask(named=False))
    waiting = scene.synced("s")
    assert waiting is not None and waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    scene.pass_time(SESSION + 0.1)
    assert second.member_id not in scene.group.members


def test_a_member_that_leaves_makes_the_others_join_again() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    assert scene.leave(b) is NONE
    assert scene.leave(b) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    answer = scene.join("a", ask(a))
    assert answer is not None and (answer.generation, len(answer.members)) == (2, 1)


def test_the_last_one_that_leaves_leaves_the_group_empty() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    results, _ = scene.group.leave([Leaving(a), Leaving(b)], scene.now)
    assert results == [NONE, NONE]
    assert scene.group.state is GroupState.EMPTY and scene.group.generation == 2
    assert scene.group.idle and scene.group.dirty
    assert scene.group.deadline is None
    assert scene.group.may_commit("", None, -1, scene.now) is NONE, "an admin may reset offsets now"


def test_who_commits_to_a_group_with_members_must_be_one() -> None:
    scene = Scene()
    scene.stable(None)
    assert scene.group.may_commit("", None, -1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.may_commit("stranger", None, 1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.may_commit("", "instance", -1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_leads_and_joins_again_begins_a_generation() -> None:
    """So a leader that sees new partitions has them assigned; anybody else is told the generation that is."""
    scene = Scene()
    a, b = scene.stable(None, None)
    same = scene.join("b", ask(b))
    assert same is not None and (same.generation, same.members) == (1, ())
    assert scene.join("a", ask(a)) is None
    assert scene.group.state is GroupState.PREPARING


def test_another_subscription_begins_a_generation() -> None:
    scene = Scene()
    _, b = scene.stable(None, None)
    assert scene.join("b", ask(b, metadata=subscription("other"))) is None
    assert scene.group.state is GroupState.PREPARING


def test_a_lost_answer_is_given_again() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.pass_time(3.1)
    again = scene.join("again", ask("client-1"))
    assert again is not None and (again.generation, len(again.members)) == (1, 1)
    assert scene.sync("s", "client-1", 1, client_1=b"x") is not None
    lost = scene.sync("s2", "client-1", 1)
    assert lost is not None and lost.assignment == b"x"


# Protocols


def test_the_protocol_is_one_that_all_have_by_most_first_choices() -> None:
    scene = Scene()
    for token, protocols in (("a", ("x", "y", "z")), ("b", ("y", "z")), ("c", ("z", "y", "x"))):
        assert scene.join(token, ask(named=False, protocols=protocols)) is None
    scene.pass_time(10)
    answer = scene.joined("a")
    assert answer is not None and answer.protocol == "y"


@pytest.mark.parametrize(
    "other",
    [ask(named=False, protocols=("other",)), ask(named=False, kind="connect"), ask(named=False, protocols=())],
)
def test_who_has_no_common_protocol_is_refused(other: object) -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    refused = scene.join("b", other)  # type: ignore[arg-type]
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(scene.group.members) == 1


def test_an_empty_group_takes_any_protocol_but_none() -> None:
    scene = Scene()
    for nothing in (ask(named=False, kind=""), ask(named=False, protocols=())):
        refused = scene.join("a", nothing)
        assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.join("b", ask(named=False, kind="connect")) is None


@pytest.mark.parametrize(("kind", "name"), [("other", None), (None, "other")])
def test_a_sync_of_another_protocol_is_refused(kind: str | None, name: str | None) -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    (_, answer) = scene.group.sync(Sync(a, None, 1, kind, name), "s", scene.now)[0]
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_syncs_that_come_at_the_wrong_time() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    for member, generation, error in (
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (a, 7, ErrorCode.ILLEGAL_GENERATION),
    ):
        answer = scene.sync("s", member, generation)
        assert answer is not None and answer.error is error
    scene.join("b", ask(named=False))
    answer = scene.sync("s", a, 1)
    assert answer is not None and answer.error is ErrorCode.REBALANCE_IN_PROGRESS


# Static members (KIP-345)


def test_a_static_member_that_comes_back_disturbs_nobody() -> None:
    scene = Scene()
    a, b = scene.stable("one", "two")
    answer = scene.join("again", ask(instance="two", named=False))
    assert answer is not None
    assert (answer.error, answer.generation, answer.leader, answer.members) == (NONE, 1, a, ())
    assert answer.member_id not in (a, b)
    assert scene.group.state is GroupState.STABLE and scene.group.dirty
    synced = scene.sync("s", answer.member_id, 1)
    assert synced is not None and synced.error is NONE and synced.assignment == b.encode()
    for error in (
        scene.group.heartbeat(b, "two", 1, scene.now),
        scene.group.may_commit(b, "two", 1, scene.now),
        scene.leave(b, "two"),
    ):
        assert error is ErrorCode.FENCED_INSTANCE_ID
    assert scene.group.heartbeat(answer.member_id, "two", 1, scene.now) is NONE


def test_a_static_leader_that_comes_back_need_not_assign_anew() -> None:
    scene = Scene()
    a, _ = scene.stable("one", "two")
    old = scene.join("old", ask(instance="one", named=False))
    assert old is not None and old.leader == a != old.member_id and not old.members
    new = scene.join("new", ask(instance="one", named=False, can_skip=True))
    assert new is not None
    assert (new.leader, new.skip, len(new.members)) == (new.member_id, True, 2)


def test_a_static_member_that_is_away_stays_through_a_rebalance() -> None:
    scene = Scene()
    a, b = scene.stable("one", "two")
    scene.join("c", ask(named=False))
    scene.join("a", ask(a, instance="one"))
    for _ in range(10):
        scene.pass_time(3.0)
        scene.group.heartbeat(b, "two", 1, scene.now)
    answer = scene.joined("a")
    assert answer is not None and b in {one.member_id for one in answer.members}


def test_a_static_member_leaves_by_its_name_alone() -> None:
    scene = Scene()
    a, _ = scene.stable("one", "two")
    assert scene.leave("", "two") is NONE
    assert set(scene.group.members) == {a}
    assert scene.leave("", "two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.leave("", None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_same_static_member_twice_fences_the_first() -> None:
    scene = Scene()
    scene.join("a", ask(instance="one", named=False))
    scene.join("b", ask(instance="one", named=False))
    first = scene.joined("a")
    assert first is not None and first.error is ErrorCode.FENCED_INSTANCE_ID
    scene.pass_time(10)
    second = scene.joined("b")
    assert second is not None and second.error is NONE


# Limits, and ends


def test_a_full_group_takes_nobody_else() -> None:
    scene = Scene(limits=replace(LIMITS, max_size=2))
    a, b = scene.stable(None, None)
    full = scene.join("c", ask(named=False))
    assert full is not None and (full.error, full.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    scene.leave(b)
    scene.join("a", ask(a))
    scene.join("c", ask(named=False))
    assert scene.join("a", ask(a)) is not None
    full = scene.join("d", ask(named=False))
    assert full is not None and full.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_without_an_id_that_hangs_up_is_gone() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.take(scene.group.gone("a", scene.now))
    assert not scene.group.members
    scene.pass_time(3.1)
    assert scene.group.idle


def test_a_member_that_hangs_up_has_its_session_timeout_to_come_back() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    scene.join("a", ask(a))
    scene.take(scene.group.gone("a", scene.now))
    scene.join("b", ask(b))
    scene.pass_time(SESSION - 1)
    assert scene.joined("b") is None
    assert scene.join("back", ask(a)) is not None
    assert len(scene.group.members) == 2


def test_who_asks_again_over_another_connection_leaves_nobody_waiting() -> None:
    scene = Scene()
    a, _ = scene.stable(None, None)
    scene.join("a", ask(a))
    scene.join("a2", ask(a))
    first = scene.joined("a")
    assert first is not None and first.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_that_is_given_up_tells_everybody() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.take(scene.group.abandon(ErrorCode.NOT_COORDINATOR))
    answer = scene.joined("a")
    assert answer is not None and answer.error is ErrorCode.NOT_COORDINATOR
    assert scene.group.heartbeat("client-1", None, 0, scene.now) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.group.deadline is None


def test_assignments_that_could_not_be_kept_are_made_again() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    scene.take(scene.group.rebalance(scene.now))
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_comes_back_from_its_row() -> None:
    scene = Scene()
    a, b = scene.stable("one", None)
    back = Group.restored("g", LIMITS, scene.group.row(), scene.now)
    assert (back.state, back.generation, back.protocol, back.leader) == (GroupState.STABLE, 1, "range", a)
    assert back.heartbeat(a, "one", 1, scene.now) is NONE
    assert back.row() == scene.group.row()
    back.tick(scene.now + SESSION)
    assert back.heartbeat(b, None, 1, scene.now + SESSION) is ErrorCode.UNKNOWN_MEMBER_ID
    empty = Group.restored("g", LIMITS, back.row(), scene.now)
    assert empty.row()[0] == back.generation


def test_which_topics_a_group_reads() -> None:
    scene = Scene()
    scene.stable(None)
    assert scene.group.subscribes("t") and not scene.group.subscribes("u")
    unreadable = Scene()
    unreadable.join("a", ask(named=False, metadata=b"\0\1"))
    assert unreadable.group.subscribes("anything"), "it may read it"
    connect = Scene()
    connect.join("a", ask(named=False, kind="connect"))
    assert not connect.group.subscribes("t") and not connect.group.may_delete_offsets()
