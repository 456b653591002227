"""The options of a plan: strictly read, and written as they are read."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.model.plans.options import Approval, OrderRule, PlanOptions, read
from workflows.model.plans.problems import PlanProblems


def test_options_are_read_and_written() -> None:
    options = read(
        {
            "throttle_between_brokers": "20MB",
            "throttle_between_directories": 1_000,
            "slots_per_disk": 2,
            "slots_per_broker": 3,
            "slots_cluster": 4,
            "lane_moves": 5,
            "lane_bytes": "1GiB",
            "order": ["drain_first", "large_first"],
            "approval": "required",
            "verify": False,
            "health_gate": False,
        }
    )
    assert (options.throttle_between_brokers, options.lane_bytes) == (20_000_000, 1 << 30)
    assert options.order == (OrderRule.DRAIN_FIRST, OrderRule.LARGE_FIRST) and options.approval == Approval.REQUIRED
    assert (options.verify, options.health_gate) == (False, False)
    for each in (options, PlanOptions()):
        assert read(each.as_json()) == each
    assert read({}) == PlanOptions()


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ([], "$.options"),
        ({"speed": 1}, "$.options.speed"),
        ({"throttle_between_brokers": "fast"}, "$.options.throttle_between_brokers"),
        ({"throttle_between_directories": 0}, "$.options.throttle_between_directories"),
        ({"slots_per_disk": 0}, "$.options.slots_per_disk"),
        ({"slots_per_broker": True}, "$.options.slots_per_broker"),
        ({"slots_cluster": 10_001}, "$.options.slots_cluster"),
        ({"lane_moves": 1_001}, "$.options.lane_moves"),
        ({"order": "small_first"}, "$.options.order"),
        ({"order": ["small_first", "small_first"]}, "$.options.order[1]"),
        ({"order": ["small_first", "large_first"]}, "$.options.order"),
        ({"order": [1]}, "$.options.order[0]"),
        ({"priority": 101}, "$.options.priority"),
        ({"approval": "three_persons"}, "$.options.approval"),
        ({"verify": 1}, "$.options.verify"),
        ({"health_gate": "yes"}, "$.options.health_gate"),
        ({"deadline": 7}, "$.options.deadline"),
    ],
)
def test_invalid_option_is_rejected_with_the_path(wrong: Any, path: str) -> None:
    with pytest.raises(PlanProblems) as caught:
        read(wrong)
    assert [bad.path for bad in caught.value.problems] == [path]
