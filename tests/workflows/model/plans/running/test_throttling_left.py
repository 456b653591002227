"""Which throttles a plan has left behind, beside those of other plans and other clients."""

from __future__ import annotations

from workflows.model.plans.running.keeper_results import Holding
from workflows.model.plans.running.throttling import Current, HeldEntry, HeldValue, Leases, left_by
from workflows.model.throttles import LISTS, RATES

PLAN = "c/plan/p"
RATE, OTHER_RATE = RATES
LIST = LISTS[0]
OURS = HeldValue("7", (), "100", ours=("100",))


def left(leases: Leases, rates: dict[str, str], listed: list[str] | None = None, silent: tuple[str, ...] = ()) -> str:
    found = left_by(PLAN, leases, Current({"1": rates}, {"t": {LIST: listed or []}}, silent))
    return "; ".join([*found.left, *(f"awaited: {each}" for each in found.awaited)])


def test_value_of_the_plan_is_left_and_the_one_from_before_is_not() -> None:
    leases = Leases(values={("1", RATE): OURS})
    assert left(leases, {RATE: "100"}) == f"broker 1: {RATE}=100"
    assert left(leases, {RATE: "7"}) == left(leases, {}) == ""
    assert left(leases, {}, silent=("1",)) == f"awaited: broker 1: {RATE}=100"


def test_throttles_of_other_plans_and_clients_are_not_left() -> None:
    other = {"c/plan/q": Holding({"1": {RATE: "100"}}), "c/plan/q/lane-0": Holding(entries={"t": {LIST: ["0:1"]}})}
    leases = Leases(other, {("1", RATE): OURS}, {("t", LIST, "0:1"): HeldEntry(("c/plan/q/lane-0",), tried=True)})
    assert left(leases, {RATE: "100", OTHER_RATE: "5"}, ["0:1", "0:2"]) == ""
    theirs = Leases(values={("1", RATE): HeldValue("7", (), "100", True, ("100",))})
    assert left(theirs, {RATE: "100"}) == ""


def test_entry_of_a_lane_of_the_plan_is_left() -> None:
    lane = f"{PLAN}/lane-0"
    leases = Leases({lane: Holding(entries={"t": {LIST: ["0:1"]}})}, {}, {("t", LIST, "0:1"): HeldEntry((lane,))})
    assert left(leases, {}, ["0:1"]) == f"topic t: {LIST} lists 0:1" and left(leases, {}, []) == ""
