"""The memory for the groups of a node: the share of one client's address."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from storage_node.config.group_limits import Limits
from storage_node.groups.group import Group
from storage_node.groups.offsets import GroupsState, Offset, offset_row
from storage_node.groups.room import Commit, Room
from storage_node.groups.values import Join

MOST = 1_000_000


def commit(group: str, host: str, partitions: int = 1, state: GroupsState | None = None) -> Commit:
    data = state.groups.get(group) if state is not None else None
    return Commit.of(group, data, [("t", at, Offset(1, -1, "", 5, "id", None, host)) for at in range(partitions)], host)


def fill(room: Room, state: GroupsState, host: str) -> int:
    """Commit to new groups until the node rejects one; returns the number of groups."""
    for number in range(100_000):
        one = commit(f"{host}-{number}", host)
        if not room.has(one.more, host):
            return number
        state.apply(["o", f"{host}-{number}", one.rows])
    raise AssertionError("nothing bounds it")


def test_one_address_takes_three_quarters_and_each_later_one_three_quarters_of_what_is_left() -> None:
    state = GroupsState()
    room = Room(MOST, lambda: state)
    for number in range(1, 5):
        assert fill(room, state, f"/10.0.0.{number}") > 0
        assert round(1 - room.weight / MOST, 2) == round(0.25**number, 2)
    assert room.weight <= MOST


def test_existing_offsets_may_change_when_their_address_has_no_room() -> None:
    state = GroupsState()
    room = Room(MOST, lambda: state)
    fill(room, state, "/a")
    again = commit("/a-0", "/a", state=state)
    assert again.more == 0 and room.has(again.more, "/a")
    assert not room.has(1_000, "/a") and room.has(1_000, "/b")


def test_offset_counts_for_the_address_that_committed_it_last() -> None:
    state = GroupsState()
    state.apply(["o", "g", commit("g", "/a", 10).rows])
    mine = state.weight_by("/a")
    state.apply(["o", "g", commit("g", "/b", 9, state).rows])
    assert state.weight_by("/a") + state.weight_by("/b") == mine == state.weight
    assert state.weight_by("/b") == 9 * Offset(1, -1, "", 5, "id").weight


def join(host: str) -> Join:
    return Join("", None, "client", host, "consumer", (("range", bytes(10)),), 10.0, 10.0)


def test_members_count_for_their_own_address_and_the_group_for_the_first() -> None:
    group = Group("g", Limits())
    room = Room(MOST, lambda: None)
    group.join(join("/a"), object(), 0.0)
    group.join(join("/b"), object(), 0.0)
    room.takes(group)
    assert room.weight == group.weight == room.weight_by("/a") + room.weight_by("/b")
    assert room.weight_by("/a") > room.weight_by("/b") > 0
    room.lets_go("g")
    assert (room.weight, room.weight_by("/a"), room.weight_by("/b")) == (0, 0, 0)


def member(host: str) -> list[Any]:
    return [f"m-{host}", None, "c", host, 10_000, 10_000, "", ""]


hosts, groups = st.sampled_from(["", "/a", "/b"]), st.sampled_from("gh")
entries = st.one_of(
    st.builds(lambda group, host, of: ["o", group, commit(group, host, of).rows], groups, hosts, st.integers(1, 3)),
    st.builds(lambda group, at: ["x", group, [["t", at]]], groups, st.integers(0, 2)),
    st.builds(lambda group, found: ["g", group, [1, "c", "range", "m", [*map(member, found)]]], groups, st.sets(hosts)),
    st.builds(lambda group: ["g", group, None], groups),
    st.builds(lambda group: ["d", group], groups),
    st.builds(lambda group, host: ["a", group, None, commit(group, host).rows], groups, hosts),
    st.just(["t", ["id"]]),
)  # fmt: skip


@given(st.lists(entries, max_size=20))
def test_weight_of_all_state_is_the_sum_over_addresses_and_the_same_for_a_copy(story: list[list[Any]]) -> None:
    state, again = GroupsState(), GroupsState()
    for entry in story:
        state.apply(entry)
        assert sum(state.weight_by(host) for host in ("", "/a", "/b")) == state.weight
    for entry in state.entries():
        again.apply(entry)
    assert again.weight == state.weight
    for entry in [["d", group] for group in list(state.groups)]:
        state.apply(entry)
    assert [state.weight_by(host) for host in ("", "/a", "/b")] == [0, 0, 0]


def test_offset_is_read_back_with_its_host() -> None:
    for expires in (None, 7):
        for host in ("", "/a"):
            state = GroupsState()
            one = Offset(1, -1, "", 5, "id", expires, host)
            state.apply(["o", "g", [offset_row("t", 0, one)]])
            assert state.groups["g"].offsets["t", 0] == one
