"""The rows of a plan's results hold what the values have that they are made of."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from workflows.model.plans import options
from workflows.model.plans.running.calls import CheckResult
from workflows.model.plans.running.plan_results import OptionsRow

GIVEN = {
    "throttle_between_brokers": "20MB",
    "slots_per_broker": 3,
    "order": ["large_first"],
    "calendar_between_brokers": [{"window": "22:00-06:00 Europe/Berlin", "rate": "200MB"}],
    "calendar_between_directories": [{"window": "00:00-24:00 UTC", "rate": 1}],
    "adaptive_between_brokers": {"low": "10MB", "high": "200MB"},
    "on_drift": "approval",
    "alerts": "oncall",
}


def test_options_of_a_response_are_those_of_the_parameter() -> None:
    for given in ({}, GIVEN):
        chosen = options.read(given)
        shown = asdict(OptionsRow.of(chosen))
        assert shown == chosen.as_json() and options.read(shown) == chosen


def test_shown_check_lacks_the_texts_alone() -> None:
    check = CheckResult("k", 2, 1, lanes_packed="x", rollback_packed="y", searchable=True)
    of_a_rollback: dict[str, Any] = {"plan": "", "plan_packed": "", "outcomes": {}, "failures": []}
    assert asdict(check) == asdict(check.shown) | {"lanes_packed": "x", "rollback_packed": "y"} | of_a_rollback
    assert not any(each.name.endswith("_packed") for each in fields(check.shown))
