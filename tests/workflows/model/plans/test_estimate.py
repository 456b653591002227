"""How long a plan takes: between the bounds of its disks and throttles, and what its deadline needs."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.model.plans.support import MB, copy, directory_move, disk
from tests.workflows.model.plans.test_schedule import random_lanes
from workflows.model.plans.estimate import (
    MOVE_OVERHEAD,
    OVERHEAD,
    RateRange,
    deadline_word,
    estimate,
    throttled_seconds,
)
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.simulate import coarse
from workflows.model.plans.values import Lane
from workflows.model.plans.window import ALWAYS, parse

GB = 1_000 * MB
COST = (OVERHEAD[0] + MOVE_OVERHEAD[0], OVERHEAD[1] + MOVE_OVERHEAD[1])


def test_range_is_that_of_the_slow_and_the_fast_rate() -> None:
    lanes = [copy(number, GB, ["1:/a"], [f"{number}:/a"]) for number in (2, 3)]
    found = estimate(lanes, PlanOptions(), default=RateRange(10 * MB, 100 * MB))
    assert (found.low, found.high) == pytest.approx((2 * (10 + COST[0]), 2 * (100 + COST[1])))
    assert found.bytes == 2 * GB
    assert estimate([], PlanOptions()).high == 0.0


def test_measured_disk_bounds_its_lanes() -> None:
    lanes = [copy(0, GB, ["1:/a"], ["2:/a"])]
    rates = {disk("2:/a"): RateRange(1 * MB, 2 * MB)}
    assert estimate(lanes, PlanOptions(), rates).low == pytest.approx(500 + COST[0])


def test_throttle_bounds_what_a_broker_sends_receives_and_copies() -> None:
    options = PlanOptions(throttle_between_brokers=10 * MB, throttle_between_directories=1 * MB, slots_per_disk=9)
    out = [copy(number, GB, ["1:/a"], [f"{number}:/a"]) for number in (2, 3)]
    assert throttled_seconds(out, options) == 200, "broker 1 sends 2 GB"
    assert throttled_seconds([copy(0, GB, ["1:/a"], ["2:/a", "3:/a"])], options) == 200
    assert throttled_seconds([Lane(0, (directory_move("t-0", "1:/a", "1:/b", GB),))], options) == 1000
    assert estimate(out, options).low >= 200
    assert throttled_seconds(out, PlanOptions()) == 0.0


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 80), st.integers(1, 3))
def test_more_bytes_take_longer_and_no_plan_is_faster_than_its_busiest_disk(
    chance: random.Random, count: int, slots: int
) -> None:
    lanes = random_lanes(chance, 3, 3, count, GB)
    options, rate = PlanOptions(slots_per_disk=slots), RateRange(10 * MB, 100 * MB)
    found = estimate(lanes, options, default=rate)
    load: dict[object, int] = {}
    for lane in lanes:
        for where, size in lane.loads.items():
            load[where] = load.get(where, 0) + size
    assert found.low >= max(load.values()) / rate.fast and found.high >= max(load.values()) / rate.slow
    assert found.low <= found.high


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(1, 20))
def test_joined_lanes_have_the_same_bytes_on_the_same_disks(chance: random.Random, count: int, most: int) -> None:
    lanes = random_lanes(chance, 2, 2, count, 10, groups=2)
    joined = coarse(lanes, most)
    assert [lane.number for lane in joined] == list(range(len(joined))) and len(joined) <= len(lanes)
    before, after = (
        sorted((move.key, lane.group, sorted(lane.reads), sorted(lane.writes)) for lane in held for move in lane.moves)
        for held in (lanes, joined)
    )
    assert before == after
    assert len(joined) <= 2 * most + len({str(row[1:]) for row in before})


NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_deadline_that_is_met_needs_no_word() -> None:
    assert deadline_word(NOW, NOW + timedelta(hours=1), 3600, 1.0, ALWAYS) is None
    assert deadline_word(NOW, None, 3600, 0.0, ALWAYS) is None
    assert deadline_word(NOW, NOW, 0, 0.0, ALWAYS) is None


@pytest.mark.parametrize(
    ("hours", "left", "rate", "window", "words"),
    [
        (2, 72 * GB, 5 * MB, "", ("2026-01-05 14:00 UTC will be missed: 72.0 GB are left at 5.0 MB/s", "until 2026-01-05 16:00 UTC", "10.0 MB/s would meet it, in the 2 h 00 min")),  # noqa: E501
        (24, 72 * GB, 1 * MB, "22:00-00:00 UTC", ("10.0 MB/s would meet it", "2 h 00 min that are left within the window", "2026-01-15 00:00")),  # noqa: E501
        (2, GB, 5 * MB, "22:00-23:00 UTC", ("the window 22:00-23:00 UTC does not open before it",)),
        (-1, GB, 5 * MB, "", ("has passed: 1.0 GB are left",)),
        (1, GB, 0, "", ("at 0 bytes/s", "does not end within a year", "277.8 kB/s would meet it")),
    ],
)  # fmt: skip
def test_deadline_that_will_be_missed_comes_with_the_rate_that_meets_it(
    hours: int, left: int, rate: float, window: str, words: tuple[str, ...]
) -> None:
    found = deadline_word(NOW, NOW + timedelta(hours=hours), left, rate, parse(window))
    assert found is not None
    for each in words:
        assert each in found


@given(st.integers(1, 100 * GB), st.integers(1, 10 * MB), st.integers(1, 72))
def test_named_rate_meets_the_deadline(left: int, rate: int, hours: int) -> None:
    window = parse("22:00-06:00 UTC")
    deadline = NOW + timedelta(hours=hours)
    found = deadline_word(NOW, deadline, left, rate, window)
    if found is None or "would meet it" not in found:
        return
    number, unit = found.split("; ")[1].split("/s would")[0].split()
    needed = float(number) * {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1}[unit]
    assert needed > rate and deadline_word(NOW, deadline, left, needed, window) is None
