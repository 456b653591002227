"""What holds for a plan at one moment: its window, its throttles by the hour, its deadline."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workflows.model.plans.conditions import Conditions, conditions, unknown_zones
from workflows.model.plans.options import PlanOptions, read

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday


def options(**values: object) -> PlanOptions:
    return read(values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Conditions()),
        ({"throttle_between_brokers": 5}, Conditions(between_brokers=5)),
        ({"window": "11:00-13:00 UTC"}, Conditions()),
        ({"window": "22:00-06:00 UTC"}, Conditions(opens_in=36_000.0)),
        ({"window": "13:00-14:00 Europe/Berlin"}, Conditions()),
        (
            {
                "throttle_between_directories": 5,
                "calendar_between_directories": [{"window": "10:00-14:00 UTC", "rate": 9}],
            },
            Conditions(between_directories=9, changes_in=7_200.0),
        ),
        (
            {"throttle_between_brokers": 5, "calendar_between_brokers": [{"window": "13:00-14:00 UTC", "rate": 9}]},
            Conditions(between_brokers=5, changes_in=3_600.0),
        ),
    ],
)
def test_conditions_at_noon(given: dict[str, object], expected: Conditions) -> None:
    assert conditions(options(**given), NOON) == expected


@pytest.mark.parametrize(
    ("deadline", "left", "rate", "part"),
    [
        ("2026-03-02T13:00:00+00:00", 3_600_000, 1_000.0, ""),
        ("2026-03-02T13:00:00+00:00", 7_200_000, 1_000.0, "2.0 kB/s would meet it"),
        ("2026-03-02T13:00:00+00:00", 7_200_000, 0.0, ""),  # the rate is unknown: nothing is claimed
        ("2026-03-02T11:00:00+00:00", 1, 0.0, "has passed"),
    ],
)
def test_deadline_that_will_be_missed_is_reported_with_the_rate_that_meets_it(
    deadline: str, left: int, rate: float, part: str
) -> None:
    warning = conditions(options(deadline=deadline), NOON, left, rate).warning
    assert part in warning if part else not warning


def test_zone_that_this_machine_does_not_know_is_named() -> None:
    given = options(
        window="22:00-06:00 Mars/Olympus",
        calendar_between_brokers=[
            {"window": "01:00-02:00 UTC", "rate": 1},
            {"window": "03:00-04:00 No/Where", "rate": 1},
        ],
    )
    found = unknown_zones(given)
    assert [text.split()[0] for text in found] == ["'Mars/Olympus'", "'No/Where'"]
    assert not unknown_zones(options(window="22:00-06:00 Europe/Berlin"))
