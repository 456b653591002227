"""Lanes: small moves with the same disks together, big ones alone, in the order of the plan's rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workflows.model.plans.support import MB, cluster, directory_move, disk, tp, with_state
from workflows.model.plans.lanes import drained_disks, pack
from workflows.model.plans.options import DEFAULT_ORDER, OrderRule, PlanOptions
from workflows.model.plans.values import UNKNOWN_SIZE, Lane, MoveKind, PlannedMove

NAMES = [f"t-{number}" for number in range(200)]
VIEW = cluster({name: ["1:/a", "2:/a"] for name in NAMES})


def names(lanes: tuple[Lane, ...]) -> list[list[str]]:
    return [[move.key for move in lane.moves] for lane in lanes]


def test_small_moves_with_the_same_disks_share_a_lane() -> None:
    moves = [directory_move(name, "1:/a", "1:/b") for name in NAMES[:120]]
    lanes = pack(moves, VIEW, PlanOptions())
    assert [len(lane.moves) for lane in lanes] == [50, 50, 20] and [lane.number for lane in lanes] == [0, 1, 2]
    assert [len(lane.moves) for lane in pack(moves, VIEW, PlanOptions(lane_bytes=30 * MB))] == [30] * 4


def test_other_disks_big_moves_and_unknown_sizes_have_lanes_of_their_own() -> None:
    moves = [
        directory_move("t-0", "1:/a", "1:/b"),
        directory_move("t-1", "1:/a", "1:/c"),
        directory_move("t-2", "1:/a", "1:/b", 101 * MB),
        directory_move("t-3", "1:/a", "1:/b", UNKNOWN_SIZE),
        directory_move("t-4", "1:/a", "1:/b", 100 * MB - MB),
    ]
    lanes = pack(moves, VIEW, PlanOptions(lane_bytes=100 * MB))
    assert names(lanes) == [["t-0@1", "t-4@1"], ["t-1@1"], ["t-2@1"], ["t-3@1"]]


LEADS = directory_move("t-0", "1:/a", "1:/b", 1 * MB)
FOLLOWS = directory_move("t-1", "2:/a", "2:/b", 9 * MB)
BEHIND = directory_move("t-2", "2:/a", "2:/b", 5 * MB)
LEAVES = directory_move("t-3", "3:/a", "3:/b", 7 * MB)
ELECTS = PlannedMove(
    MoveKind.REPLICAS, tp("t-4"), 2 * MB, before=(1, 2), after=(2, 3), reads=(disk("1:/a"),), writes=(disk("3:/b"),)
)
ROWS = {"t-0": ["1:/a", "2:/a"], "t-1": ["1:/a", "2:/a"], "t-2": ["1:/a", "2:/a"], "t-3": ["1:/a", "3:/a"]}
MIXED = with_state(cluster(ROWS | {"t-4": ["1:/a", "2:/b"]}), "t-2", isr=(1,))


@pytest.mark.parametrize(
    ("order", "first_to_last", "groups"),
    [
        ((), ["t-0@1", "t-1@2", "t-2@2", "t-3@3", "t-4"], [0, 0, 0, 0, 0]),
        (("drain_first",), ["t-3@3", "t-0@1", "t-1@2", "t-2@2", "t-4"], [0, 1, 1, 1, 1]),
        (("under_replicated_first",), ["t-2@2", "t-0@1", "t-1@2", "t-3@3", "t-4"], [0, 1, 1, 1, 1]),
        (("leaders_last",), ["t-1@2", "t-2@2", "t-3@3", "t-0@1", "t-4"], [0, 0, 0, 1, 1]),
        (("small_first",), ["t-0@1", "t-4", "t-2@2", "t-3@3", "t-1@2"], [0, 0, 0, 0, 0]),
        (("large_first",), ["t-1@2", "t-3@3", "t-2@2", "t-4", "t-0@1"], [0, 0, 0, 0, 0]),
        (("leaders_last", "large_first"), ["t-1@2", "t-3@3", "t-2@2", "t-4", "t-0@1"], [0, 0, 0, 1, 1]),
        (DEFAULT_ORDER, ["t-3@3", "t-2@2", "t-1@2", "t-0@1", "t-4"], [0, 1, 2, 3, 3]),
    ],
)
def test_order_rules(order: tuple[str, ...], first_to_last: list[str], groups: list[int]) -> None:
    options = PlanOptions(order=tuple(map(OrderRule, order)), lane_moves=1)
    lanes = pack([LEADS, FOLLOWS, BEHIND, LEAVES, ELECTS], MIXED, options)
    assert [key for (key,) in names(lanes)] == first_to_last and [lane.group for lane in lanes] == groups


def test_directory_is_drained_when_all_replicas_leave_and_none_arrives() -> None:
    view = cluster({"t-0": ["1:/a"], "t-1": ["1:/a", "2:/a"], "t-2": ["1:/b"]})
    first, second = directory_move("t-0", "1:/a", "1:/b"), directory_move("t-1", "1:/a", "1:/b")
    assert drained_disks([first], view) == frozenset()
    assert drained_disks([first, second], view) == {disk("1:/a")}
    assert drained_disks([first, second, directory_move("t-2", "1:/b", "1:/a")], view) == frozenset()
    away = PlannedMove(MoveKind.REPLICAS, tp("t-1"), MB, before=(1, 2), after=(2, 3), writes=(disk("3:/a"),))
    assert drained_disks([first, away], view) == {disk("1:/a")}


_moves = st.lists(
    st.tuples(st.sampled_from(["1:/a", "1:/b"]), st.sampled_from(["1:/c", "1:/d"]), st.integers(-1, 300)),
    max_size=150,
)


@given(_moves, st.integers(1, 60), st.randoms())
def test_every_move_is_in_one_lane_within_its_limits(held: list[Any], most: int, chance: Any) -> None:
    moves = [directory_move(f"t-{at}", source, target, size) for at, (source, target, size) in enumerate(held)]
    options = PlanOptions(lane_moves=most, lane_bytes=200)
    lanes = pack(moves, VIEW, options)
    assert sorted(key for lane in names(lanes) for key in lane) == sorted(move.key for move in moves)
    for lane in lanes:
        assert len(lane.reads) == len(lane.writes) == 1
        assert len(lane.moves) == 1 or (len(lane.moves) <= most and lane.size <= 200)
    chance.shuffle(moves)
    assert pack(moves, VIEW, options) == lanes
