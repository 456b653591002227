"""Throttles that follow the cluster's health: the table of the rule, its bounds, and its signals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workflows.model.plans.support import cluster, with_state
from workflows.model.plans import options
from workflows.model.plans.adaptive import (
    BROKERS,
    DIRECTORIES,
    EVERY,
    Bounds,
    Decision,
    Signals,
    bounded,
    decide,
    decision_of,
    signals_of,
)
from workflows.model.plans.problems import PlanProblems

NOW = 1e9
BOUNDS = {BROKERS: Bounds(100, 1_100)}
HEALTHY, LOW_ISR, BEHIND = Signals(), Signals(under_min_isr=2), Signals(under_replicated=3)


@pytest.mark.parametrize(
    ("rate", "age", "signals", "after", "why"),
    [
        (None, 0, HEALTHY, 100, "begins at the lower bound"),
        (None, 0, LOW_ISR, 100, "begins at the lower bound"),
        (100, EVERY, HEALTHY, 200, "increased by a step"),
        (1_050, EVERY, HEALTHY, 1_100, "increased"),
        (1_100, EVERY, HEALTHY, 1_100, "increased"),
        (800, EVERY, LOW_ISR, 400, "halved, to the lower bound at least: partitions below min.insync.replicas: 2"),
        (800, EVERY, BEHIND, 400, "under-replicated partitions: 3"),
        (150, EVERY, BEHIND, 100, "halved"),
        (100, EVERY, BEHIND, 100, "halved"),
        (800, EVERY - 1, BEHIND, 800, ""),
        (800, EVERY - 1, HEALTHY, 800, ""),
        (5_000, EVERY - 1, HEALTHY, 1_100, ""),
        (50, EVERY - 1, HEALTHY, 100, ""),
    ],
)
def test_rate_rises_by_a_step_and_is_halved_on_trouble_within_its_bounds(
    rate: int | None, age: float, signals: Signals, after: int, why: str
) -> None:
    before = Decision() if rate is None else Decision({BROKERS: rate}, NOW - age)
    found = decide(BOUNDS, before, signals, NOW)
    assert found.rates == {BROKERS: after} and why in found.why
    if why:
        assert (found.at, found.signals) == (NOW, signals), "a decision has its inputs"
    assert decision_of(found.as_json(), "$") == found


@given(
    st.integers(1, 10_000), st.integers(0, 10_000), st.lists(st.sampled_from([HEALTHY, LOW_ISR, BEHIND]), max_size=40)
)
def test_rate_stays_within_its_bounds_and_comes_back(low: int, more: int, days: list[Signals]) -> None:
    bounds = {BROKERS: Bounds(low, low + more), DIRECTORIES: Bounds(low, low)}
    found = Decision()
    for at, signals in enumerate([*days, *[HEALTHY] * (2 * 10 + 2)]):
        found = decide(bounds, found, signals, NOW + at * EVERY)
        assert low <= found.rates[BROKERS] <= low + more and found.rates[DIRECTORIES] == low
    assert found.rates[BROKERS] == low + more


def test_signals_count_every_partition_that_lacks_a_replica_but_not_those_that_are_added() -> None:
    view = cluster({f"t-{number}": ["1:/a", "2:/a"] for number in range(4)})
    assert signals_of(view) == Signals()
    view = with_state(view, "t-0", isr=(1,), min_isr=2)
    view = with_state(view, "t-1", isr=(1,))
    view = with_state(view, "t-2", leader=-1, isr=())
    view = with_state(view, "t-3", replicas=(1, 2, 3), adding=(3,))
    assert signals_of(view) == Signals(under_min_isr=2, under_replicated=3)


def test_options_have_bounds_and_list_the_replicas_that_are_throttled() -> None:
    chosen = options.read({"adaptive_between_brokers": {"low": "1MB", "high": "20MB"}})
    assert chosen.adaptive == {BROKERS: Bounds(1_000_000, 20_000_000)} and chosen.throttled_between_brokers
    assert options.read(chosen.as_json()) == chosen
    assert not options.read({}).adaptive, "off by default"
    for wrong in ({"low": 5, "high": 4}, {"low": 5}, {"low": "x", "high": 9}, 7):
        with pytest.raises(PlanProblems, match="adaptive_between_directories"):
            options.read({"adaptive_between_directories": wrong})


def test_lower_of_a_throttle_and_the_adaptive_one_holds() -> None:
    assert [bounded(*each) for each in ((None, None), (5, None), (None, 3), (5, 3), (2, 3))] == [None, 5, 3, 3, 2]
