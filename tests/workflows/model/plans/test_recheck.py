"""Which changes of the cluster since a plan's check need a person's approval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workflows.model.plans.support import cluster, directory_move, tp, with_node, with_state
from workflows.model.plans import options
from workflows.model.plans.recheck import CHANGED_LEAST, GROWN_LEAST, Change, Recheck, large, recheck
from workflows.model.plans.values import ClusterView, MoveKind, PlannedMove

GIB = 1 << 30
COUNT = 10


def view(size: int = GIB) -> ClusterView:
    return cluster({f"t-{n}": ["1:/a"] for n in range(COUNT)}, sizes={f"t-{n}": size for n in range(COUNT)})


MOVES: list[PlannedMove] = [directory_move(f"t-{n}", "1:/a", "1:/b", GIB) for n in range(COUNT)]


def test_recheck_sums_what_is_left() -> None:
    assert recheck(MOVES, view()) == Recheck(Change(), COUNT * GIB, COUNT)
    assert recheck(MOVES[:4], view(3 * GIB)) == Recheck(Change(8 * GIB), 4 * GIB, 4)
    assert recheck(MOVES, with_node(view(), 1, responds=False)).now.lost == (1,)
    shrunk = view()
    gone = {each: state for each, state in shrunk.partitions.items() if each != tp("t-0")}
    moved = with_state(replace(shrunk, partitions=gone), "t-1", replicas=(2,))
    assert recheck(MOVES, moved).now.changed == 2


def test_reassignments_that_the_plan_itself_cancelled_are_no_changes_of_other_clients() -> None:
    """KRaft restores [1, 2] as [2, 1]."""
    names = [f"t-{number}" for number in range(COUNT)]
    before = cluster({name: ["1:/a", "2:/a"] for name in names})
    moves = [PlannedMove(MoveKind.REPLICAS, tp(name), GIB, before=(1, 2), after=(1, 3)) for name in names]
    after = before
    for name in names:
        after = with_state(after, name, replicas=(2, 1))
    assert recheck(moves, after).now.changed == 0


@pytest.mark.parametrize(
    ("now", "seen", "accepted", "says"),
    [
        (Change(grown=2 * GIB), Change(), Change(), ""),
        (Change(grown=6 * GIB), Change(), Change(), f"{6 * GIB} bytes more are left to copy"),
        (Change(grown=6 * GIB), Change(), Change(grown=5 * GIB), ""),
        (Change(grown=11 * GIB), Change(), Change(grown=5 * GIB), f"{5 * GIB} more of which were approved"),
        (Change(grown=-9 * GIB), Change(), Change(), ""),
        (Change(lost=(2,)), Change(), Change(), ""),
        (Change(lost=(2,)), Change(lost=(2,)), Change(), "broker 2, which the plan reads or writes, is lost"),
        (Change(lost=(2,)), Change(lost=(2,)), Change(lost=(2,)), ""),
        (Change(lost=(1, 2)), Change(lost=(1, 2)), Change(lost=(2,)), "broker 1, which"),
        (Change(changed=CHANGED_LEAST), Change(), Change(), ""),
        (Change(changed=CHANGED_LEAST + 1), Change(), Change(), "changed the partitions of 6 of the 10 moves left"),
        (Change(changed=CHANGED_LEAST + 1), Change(), Change(changed=3), ""),
    ],
)
def test_change_is_large_beyond_its_limit_and_what_was_accepted(
    now: Change, seen: Change, accepted: Change, says: str
) -> None:
    found = large(Recheck(now, 10 * GIB, COUNT), seen, accepted)
    assert bool(found) == bool(says) and says in "".join(found), found


def test_small_plan_may_grow_by_a_fixed_amount_and_a_large_one_by_a_part() -> None:
    assert large(Recheck(Change(GROWN_LEAST), 1, 1), Change(), Change()) == ()
    assert large(Recheck(Change(GROWN_LEAST + 1), 1, 1), Change(), Change()) != ()
    assert large(Recheck(Change(40 * GIB), 100 * GIB, 1), Change(), Change()) == ()


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, False),
        ({"approval": "required"}, True),
        ({"approval": "required", "on_drift": "continue"}, False),
        ({"on_drift": "approval"}, True),
    ],
)
def test_plan_that_was_to_be_approved_waits_again_unless_it_says_otherwise(given: dict[str, str], waits: bool) -> None:
    chosen = options.read(given)
    assert chosen.waits_on_drift == waits and options.read(chosen.as_json()) == chosen
