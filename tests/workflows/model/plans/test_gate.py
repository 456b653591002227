"""The health gate: what holds a plan, and what its own moves may cause."""

from __future__ import annotations

from tests.workflows.model.plans.support import cluster, tp, with_state
from workflows.model.plans.gate import held_by

VIEW = cluster({f"t-{number}": ["1:/a", "2:/a"] for number in range(9)})


def test_healthy_cluster_holds_nothing() -> None:
    assert held_by(VIEW, set()) == ()
    moving = with_state(VIEW, "t-0", replicas=(1, 3, 2), adding=(3,), removing=(2,), isr=(1, 2))
    assert held_by(moving, set()) == (), "an added replica that catches up is no sign of a fault"


def test_under_replicated_partition_holds_unless_it_is_of_the_plan() -> None:
    view = with_state(VIEW, "t-4", isr=(1,))
    assert held_by(view, set()) == ("1 partition is outside the plan under-replicated: t-4",)
    assert held_by(view, {tp("t-4")}) == ()


def test_isr_below_the_minimum_holds_also_for_the_plan() -> None:
    view = with_state(VIEW, "t-4", isr=(1,), min_isr=2)
    assert held_by(view, {tp("t-4")}) == ("1 partition is with an ISR below min.insync.replicas: t-4",)
    single = with_state(VIEW, "t-4", replicas=(1,), isr=(1,), min_isr=2)
    assert held_by(single, set()) == (), "a partition with one replica cannot have two in its ISR"


def test_partition_without_a_leader_holds() -> None:
    view = with_state(VIEW, "t-4", leader=-1)
    assert held_by(view, {tp("t-4")}) == ("1 partition is without a leader: t-4",)


def test_first_partitions_are_named_and_all_counted() -> None:
    view = VIEW
    for number in (8, 3, 5, 1, 7):
        view = with_state(view, f"t-{number}", isr=(1,))
    assert held_by(view, set()) == ("5 partitions are outside the plan under-replicated: t-1, t-3, t-5 and 2 more",)
