"""The state machine of a group: the responses in every phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_node.groups.group import Group
from storage_node.groups.values import GroupState, Leaving, Sync
from storage_node.model.error_codes import ErrorCode
from tests.storage_node.groups.scene import LIMITS, REBALANCE, SESSION, Scene, ask, subscription

NONE = ErrorCode.NONE


def test_member_receives_an_id_and_joins_with_it() -> None:
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


def test_unused_pending_id_is_removed() -> None:
    scene = Scene()
    id_ = scene.name()
    scene.pass_time(SESSION + 0.1)
    assert scene.group.idle
    answer = scene.join("a", ask(id_))
    assert answer is not None and answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_first_generation_waits_for_more_members() -> None:
    """Each new member restarts group.initial.rebalance.delay.ms, up to the rebalance timeout."""
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


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    scene = Scene()
    scene.join("first", ask(named=False))
    for index in range(20):
        scene.pass_time(2.0)
        if scene.joined("first") is not None:
            break
        scene.join(f"t{index}", ask(named=False))
    assert scene.joined("first") is not None
    assert scene.now - 1000.0 <= REBALANCE + 2


def test_new_member_makes_all_members_join_again() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    assert scene.join("c", ask(scene.name())) is None
    assert scene.group.state is GroupState.PREPARING
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.group.may_commit(a, None, 1, scene.now) is NONE, "a member commits its offsets before it joins again"
    for token, id_ in (("a", a), ("b", b)):
        scene.join(token, ask(id_))
    answers = {token: scene.joined(token) for token in "abc"}
    assert {token: answer.generation for token, answer in answers.items() if answer} == {"a": 2, "b": 2, "c": 2}
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.ILLEGAL_GENERATION
    assert scene.group.heartbeat(a, None, 2, scene.now) is NONE
    assert scene.group.may_commit(a, None, 2, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.group.may_commit(a, None, 1, scene.now) is ErrorCode.ILLEGAL_GENERATION


def test_generation_waits_for_a_pending_id() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    late = scene.name()
    assert scene.join("a", ask(a)) is None, "a member with a pending id has not joined yet"
    assert scene.join("late", ask(late)) is not None
    answer = scene.joined("a")
    assert answer is not None and answer.generation == 2 and len(answer.members) == 2


def test_member_that_does_not_rejoin_is_removed_after_the_rebalance_timeout() -> None:
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


def test_silent_member_is_removed_after_its_session_timeout() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    for _ in range(4):
        scene.pass_time(3.0)
        error = scene.group.heartbeat(a, None, 1, scene.now)
    assert error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(scene.group.members) == {a}
    assert scene.join("b", ask(b)) is not None, "the member was removed"
    answer = scene.join("a", ask(a))
    assert answer is not None and answer.generation == 2


def test_commit_extends_the_session() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    for _ in range(5):
        scene.pass_time(SESSION - 1)
        assert scene.group.may_commit(a, None, 1, scene.now) is NONE
    assert scene.group.state is GroupState.STABLE


def test_member_that_does_not_sync_is_removed_after_the_rebalance_timeout() -> None:
    scene = Scene()
    for token in "ab":
        scene.join(token, ask(named=False))
    scene.pass_time(3.1)
    scene.pass_time(3.1)
    first = scene.joined("a")
    assert first is not None
    assert scene.sync("s", "client-2", 1) is None, "the leader has not sent the assignments"
    for _ in range(8):
        scene.pass_time(4.0)
        scene.group.heartbeat(first.member_id, None, 1, scene.now)
    waiting = scene.synced("s")
    assert waiting is not None and waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(scene.group.members) == {"client-2"}
    scene.pass_time(SESSION + REBALANCE)
    assert scene.group.idle, "the member had to join again and did not"


def test_session_begins_when_the_wait_for_an_assignment_ends() -> None:
    """Also a static member: the rebalance ends its wait, and its session timeout begins."""
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


def test_member_that_leaves_makes_the_others_join_again() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    assert scene.leave(b) is NONE
    assert scene.leave(b) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS
    answer = scene.join("a", ask(a))
    assert answer is not None and (answer.generation, len(answer.members)) == (2, 1)


def test_group_is_empty_after_its_last_member_leaves() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    results, _ = scene.group.leave([Leaving(a), Leaving(b)], scene.now)
    assert results == [NONE, NONE]
    assert scene.group.state is GroupState.EMPTY and scene.group.generation == 2
    assert scene.group.idle and scene.group.dirty
    assert scene.group.deadline is None
    assert scene.group.may_commit("", None, -1, scene.now) is NONE, "an admin may reset offsets now"


def test_commit_to_a_group_with_members_requires_membership() -> None:
    scene = Scene()
    scene.stable(None)
    assert scene.group.may_commit("", None, -1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.may_commit("stranger", None, 1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.may_commit("", "instance", -1, scene.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_rejoining_leader_begins_a_generation() -> None:
    """A leader joins again for new partitions to be assigned; another member gets the current generation."""
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


def test_lost_response_is_sent_again() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.pass_time(3.1)
    again = scene.join("again", ask("client-1"))
    assert again is not None and (again.generation, len(again.members)) == (1, 1)
    assert scene.sync("s", "client-1", 1, client_1=b"x") is not None
    lost = scene.sync("s2", "client-1", 1)
    assert lost is not None and lost.assignment == b"x"


# Protocols


def test_protocol_is_common_to_all_members_with_the_most_votes() -> None:
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
def test_member_without_a_common_protocol_is_rejected(other: object) -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    refused = scene.join("b", other)  # type: ignore[arg-type]
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(scene.group.members) == 1


def test_empty_group_accepts_any_protocol_but_none() -> None:
    scene = Scene()
    for nothing in (ask(named=False, kind=""), ask(named=False, protocols=())):
        refused = scene.join("a", nothing)
        assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.join("b", ask(named=False, kind="connect")) is None


@pytest.mark.parametrize(("kind", "name"), [("other", None), (None, "other")])
def test_sync_with_another_protocol_is_rejected(kind: str | None, name: str | None) -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    (_, answer) = scene.group.sync(Sync(a, None, 1, kind, name), "s", scene.now)[0]
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_invalid_sync_is_rejected() -> None:
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


def test_returning_static_member_triggers_no_rebalance() -> None:
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


def test_returning_static_leader_need_not_assign() -> None:
    scene = Scene()
    a, _ = scene.stable("one", "two")
    old = scene.join("old", ask(instance="one", named=False))
    assert old is not None and old.leader == a != old.member_id and not old.members
    new = scene.join("new", ask(instance="one", named=False, can_skip=True))
    assert new is not None
    assert (new.leader, new.skip, len(new.members)) == (new.member_id, True, 2)


def test_absent_static_member_stays_through_a_rebalance() -> None:
    scene = Scene()
    a, b = scene.stable("one", "two")
    scene.join("c", ask(named=False))
    scene.join("a", ask(a, instance="one"))
    for _ in range(10):
        scene.pass_time(3.0)
        scene.group.heartbeat(b, "two", 1, scene.now)
    answer = scene.joined("a")
    assert answer is not None and b in {one.member_id for one in answer.members}


def test_static_member_leaves_by_its_instance_id() -> None:
    scene = Scene()
    a, _ = scene.stable("one", "two")
    assert scene.leave("", "two") is NONE
    assert set(scene.group.members) == {a}
    assert scene.leave("", "two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.leave("", None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_same_static_member_twice_fences_the_first() -> None:
    scene = Scene()
    scene.join("a", ask(instance="one", named=False))
    scene.join("b", ask(instance="one", named=False))
    first = scene.joined("a")
    assert first is not None and first.error is ErrorCode.FENCED_INSTANCE_ID
    scene.pass_time(10)
    second = scene.joined("b")
    assert second is not None and second.error is NONE


# Limits, and ends


def test_full_group_rejects_new_members() -> None:
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


def test_member_without_an_id_is_removed_when_it_disconnects() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.take(scene.group.gone("a", scene.now))
    assert not scene.group.members
    scene.pass_time(3.1)
    assert scene.group.idle


def test_disconnected_member_may_return_within_its_session_timeout() -> None:
    scene = Scene()
    a, b = scene.stable(None, None)
    scene.join("a", ask(a))
    scene.take(scene.group.gone("a", scene.now))
    scene.join("b", ask(b))
    scene.pass_time(SESSION - 1)
    assert scene.joined("b") is None
    assert scene.join("back", ask(a)) is not None
    assert len(scene.group.members) == 2


def test_request_repeated_over_another_connection_ends_the_first_wait() -> None:
    scene = Scene()
    a, _ = scene.stable(None, None)
    scene.join("a", ask(a))
    scene.join("a2", ask(a))
    first = scene.joined("a")
    assert first is not None and first.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_abandoned_group_responds_to_all_waiting_members() -> None:
    scene = Scene()
    scene.join("a", ask(named=False))
    scene.take(scene.group.abandon(ErrorCode.NOT_COORDINATOR))
    answer = scene.joined("a")
    assert answer is not None and answer.error is ErrorCode.NOT_COORDINATOR
    assert scene.group.heartbeat("client-1", None, 0, scene.now) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.group.deadline is None


def test_failed_write_of_assignments_begins_a_rebalance() -> None:
    scene = Scene()
    (a,) = scene.stable(None)
    scene.take(scene.group.rebalance(scene.now))
    assert scene.group.heartbeat(a, None, 1, scene.now) is ErrorCode.REBALANCE_IN_PROGRESS


def test_group_is_restored_from_its_row() -> None:
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


def test_topics_to_which_a_group_subscribes() -> None:
    scene = Scene()
    scene.stable(None)
    assert scene.group.subscribes("t") and not scene.group.subscribes("u")
    unreadable = Scene()
    unreadable.join("a", ask(named=False, metadata=b"\0\1"))
    assert unreadable.group.subscribes("anything"), "it may subscribe to it"
    connect = Scene()
    connect.join("a", ask(named=False, kind="connect"))
    assert not connect.group.subscribes("t") and not connect.group.may_delete_offsets()
