"""The space of each disk before, at the worst moment and after a plan."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.model.plans.support import MB, cluster, directory_move, disk, tp, with_directory, with_state
from workflows.model.move.parameter import ANY
from workflows.model.plans import space as spaces
from workflows.model.plans.lanes import pack
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.space import free_of, overfull, space_of
from workflows.model.plans.values import UNKNOWN_SIZE, MoveKind, PlacedReplica, PlannedMove

ONE = PlanOptions(lane_moves=1)


def test_source_and_target_both_hold_the_replica_until_the_move_ends() -> None:
    view = cluster({"t-0": ["1:/a"], "t-1": ["1:/b"]}, sizes={"t-0": 30 * MB, "t-1": 20 * MB}, total=100 * MB)
    moves = [directory_move("t-0", "1:/a", "1:/b", 30 * MB), directory_move("t-1", "1:/b", "1:/a", 20 * MB)]
    lanes = pack(moves, view, replace(ONE, slots_per_disk=2))
    a, b = space_of(lanes, view, replace(ONE, slots_per_disk=2)).disks
    assert (a.disk, a.used_before, a.usable_before) == (disk("1:/a"), 30 * MB, 70 * MB)
    assert (a.used_worst, a.usable_worst, a.used_after, a.usable_after) == (50 * MB, 50 * MB, 20 * MB, 80 * MB)
    assert (b.used_worst, b.used_after) == (50 * MB, 30 * MB)
    a, b = space_of(lanes, view, ONE).disks
    assert (a.used_worst, b.used_worst) == (50 * MB, 30 * MB), "one after the other, the smaller one first"


def test_reassignment_frees_the_removed_replica_and_fills_the_added_ones() -> None:
    view = cluster({"t-0": ["1:/a", "2:/a"]}, sizes={"t-0": 40 * MB}, total=100 * MB)
    move = PlannedMove(
        MoveKind.REPLICAS,
        tp("t-0"),
        40 * MB,
        before=(1, 2),
        after=(2, 3),
        reads=(disk("1:/a"),),
        writes=(disk("3:/b"),),
    )
    rows = {each.disk: each for each in space_of(pack([move], view, ONE), view, ONE).disks}
    assert (rows[disk("1:/a")].used_after, rows[disk("3:/b")].used_after) == (0, 40 * MB)


def test_disk_that_would_be_overfilled_is_named_with_its_numbers() -> None:
    sizes = {f"t-{number}": 40 * MB for number in range(3)}
    view = cluster({name: ["1:/a"] for name in sizes}, sizes=sizes, total=120 * MB)
    view = with_directory(view, "1:/b", total=120 * MB, usable=100 * MB)
    lanes = pack([directory_move(name, "1:/a", "1:/b", 40 * MB) for name in sizes], view, ONE)
    (words,) = overfull(space_of(lanes, view, ONE), lanes)
    assert "disk 1:/b would be overfilled: 100000000 bytes are usable" in words
    assert "120000000 more are needed" in words and "another target for 20000000 bytes" in words
    assert overfull(space_of(lanes[:2], view, ONE), lanes) == ()
    (words,) = overfull(space_of(lanes[:2], view, ONE), lanes, reserve=30 * MB)
    assert "of which 30000000 are to be kept" in words and "target for 10000000 bytes" in words


@pytest.mark.parametrize("most", [3_000, 1], ids=["with slots", "without slots"])
def test_exchange_between_full_disks_is_reported_as_lanes_that_never_begin(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "MOST_LANES", most)
    view = cluster({"t-0": ["1:/a"], "t-1": ["1:/b"]}, sizes={"t-0": 90 * MB, "t-1": 90 * MB}, total=100 * MB)
    moves = [directory_move("t-0", "1:/a", "1:/b", 90 * MB), directory_move("t-1", "1:/b", "1:/a", 90 * MB)]
    lanes = pack(moves, view, ONE)
    space = space_of(lanes, view, ONE)
    assert space.stuck == (0, 1)
    words = overfull(space, lanes)
    assert len(words) == 2 and "disk 1:/a: 1 lane of the plan would never begin" in words[0]
    assert "90000000 bytes are needed at once, 10000000 are usable" in words[0]


@pytest.mark.parametrize("most", [3_000, 1], ids=["with slots", "without slots"])
def test_space_that_another_lane_frees_first_is_used(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "MOST_LANES", most)
    view = cluster({"t-0": ["1:/a"], "t-1": ["1:/b"]}, sizes={"t-0": 90 * MB, "t-1": 95 * MB}, total=100 * MB)
    view = with_directory(view, "3:/a", total=100 * MB, usable=100 * MB)
    away = PlannedMove(
        MoveKind.REPLICAS, tp("t-1"), 95 * MB, before=(1,), after=(3,), reads=(disk("1:/b"),), writes=(disk("3:/a"),)
    )
    lanes = pack([directory_move("t-0", "1:/a", "1:/b", 90 * MB), away], view, ONE)
    space = space_of(lanes, view, ONE)
    assert space.stuck == () and overfull(space, lanes) == ()


def test_broker_that_chooses_the_directory_is_checked_as_a_whole() -> None:
    view = cluster({"t-0": ["1:/a"]}, sizes={"t-0": 60 * MB}, total=50 * MB, disks=["1:/a", "2:/a", "2:/b"])
    move = PlannedMove(
        MoveKind.REPLICAS,
        tp("t-0"),
        60 * MB,
        before=(1,),
        after=(2,),
        reads=(disk("1:/a"),),
        writes=(disk(f"2:{ANY}"),),
    )
    lanes = pack([move], view, ONE)
    space = space_of(lanes, view, ONE)
    assert space.stuck == (0,) and space.disks[-1].usable_before == 100 * MB
    assert any("broker 2, which chooses the directory," in each for each in overfull(space, lanes))


def test_unknown_space_is_not_checked() -> None:
    view = cluster({"t-0": ["1:/a"]}, sizes={"t-0": 60 * MB})
    view = with_directory(view, "1:/b", total=UNKNOWN_SIZE, usable=UNKNOWN_SIZE)
    lanes = pack([directory_move("t-0", "1:/a", "1:/b", 60 * MB)], view, ONE)
    space = space_of(lanes, view, ONE)
    assert space.stuck == () and overfull(space, lanes) == () and disk("1:/b") not in free_of(view)
    assert [each.usable_worst for each in space.disks if each.disk == disk("1:/b")] == [UNKNOWN_SIZE]


def test_copies_of_other_clients_keep_the_space_that_they_have_yet_to_fill() -> None:
    view = cluster({"t-0": ["1:/a"], "t-1": ["2:/a", "3:/a"]}, sizes={"t-0": 60 * MB, "t-1": 9 * MB}, total=100 * MB)
    view = replace(view, futures={(1, tp("t-0")): PlacedReplica("/b", 20 * MB)})
    view = with_state(view, "t-1", replicas=(2, 3), adding=(3,))
    view = replace(view, replicas={**view.replicas, (3, tp("t-1")): PlacedReplica("/a", 2 * MB)})
    free = free_of(view)
    assert (free[disk("1:/b")], free[disk("3:/a")], free[disk("2:/a")]) == (60 * MB, 84 * MB, 91 * MB)
    own = pack([directory_move("t-0", "1:/a", "1:/b", 60 * MB)], view, ONE)
    assert free_of(view, own)[disk("1:/b")] == 100 * MB, "its own lane counts the whole replica"


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_bytes_are_kept_and_no_disk_is_beyond_its_space_unless_it_is_named(chance: random.Random, count: int) -> None:
    names = [f"t-{number}" for number in range(count)]
    sizes = {name: chance.randint(1, 40) * MB for name in names}
    placed = {name: chance.choice("abc") for name in names}
    view = cluster(
        {name: [f"1:/{placed[name]}"] for name in names}, sizes=sizes, total=1_500 * MB, disks=["1:/a", "1:/b", "1:/c"]
    )
    moves = [
        directory_move(
            name, f"1:/{placed[name]}", f"1:/{chance.choice(sorted({*'abc'} - {placed[name]}))}", sizes[name]
        )
        for name in names
    ]
    for each in "abc":
        view = with_directory(view, f"1:/{each}", total=2_000 * MB, usable=chance.randint(0, 300) * MB)
    lanes = pack(moves, view, ONE)
    space = space_of(lanes, view, ONE)
    assert sum(each.used_after - each.used_before for each in space.disks) == 0
    assert all(each.used_worst >= max(each.used_before, each.used_after) for each in space.disks)
    beyond = [each for each in space.disks if each.usable_worst < 0]
    assert bool(beyond or space.stuck) == bool(overfull(space, lanes))
