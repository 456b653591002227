"""The arguments by which an operator changes a running plan's throttle and slots."""

from __future__ import annotations

from typing import Any

import pytest

from storage_node.model.fields import BadField
from workflows.model.plans import options
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running import orders
from workflows.model.plans.window import read_rates

HELD = PlanOptions(
    throttle_between_brokers=1_000, throttle_between_directories=2_000, slots_per_disk=3, slots_cluster=9
)
CALENDAR = read_rates([{"window": "22:00-06:00 UTC", "rate": "5MB"}], "$")


def changed(changes: dict[str, Any]) -> PlanOptions:
    return options.read(HELD.as_json() | changes, "$")


@pytest.mark.parametrize(
    ("argument", "between_brokers", "between_directories"),
    [
        ({"rate": "20MB"}, 20_000_000, 20_000_000),
        ({"rate": None}, None, None),
        ({"between_brokers": 5}, 5, 2_000),
        ({"between_directories": None}, 1_000, None),
        ({"between_brokers": "1kB", "between_directories": "2MiB"}, 1_000, 2 << 20),
    ],
    ids=str,
)
def test_throttle_sets_what_it_names_and_leaves_all_else(
    argument: dict[str, Any], between_brokers: int | None, between_directories: int | None
) -> None:
    found = changed(orders.throttle(argument))
    assert (found.throttle_between_brokers, found.throttle_between_directories) == (
        between_brokers,
        between_directories,
    )
    assert (found.slots_per_disk, found.slots_cluster) == (3, 9)


@pytest.mark.parametrize(
    ("argument", "slots"),
    [
        ({"per_disk": 1}, (1, None, 9)),
        ({"per_broker": 4, "cluster": None}, (3, 4, None)),
        ({"per_disk": None}, (1, None, 9)),
    ],
    ids=str,
)
def test_slots_set_what_they_name_and_leave_all_else(argument: dict[str, Any], slots: tuple[Any, ...]) -> None:
    found = changed(orders.slots(argument))
    assert (found.slots_per_disk, found.slots_per_broker, found.slots_cluster) == slots
    assert found.throttle_between_brokers == 1_000


@pytest.mark.parametrize(
    ("read", "argument", "why"),
    [
        (orders.throttle, {}, "$ is empty, but must have rate, between_brokers or between_directories"),
        (orders.throttle, {"speed": 1}, "$.speed"),
        (orders.throttle, "20MB", "$ "),
        (orders.throttle, {"rate": 1, "between_brokers": 2}, "beside between_brokers"),
        (orders.slots, {}, "$ is empty, but must have per_disk or per_broker or cluster"),
        (orders.slots, {"slots_per_disk": 1}, "$.slots_per_disk"),
        (orders.slots, 3, "$ "),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_argument_that_is_not_valid_is_named(read: Any, argument: Any, why: str) -> None:
    with pytest.raises(BadField) as raised:
        read(argument)
    assert why in str(raised.value)


def test_throttle_by_hand_is_rejected_where_a_calendar_takes_its_place() -> None:
    held = PlanOptions(calendar_between_brokers=CALENDAR)
    with pytest.raises(BadField, match="the plan's calendar_between_brokers takes its place"):
        orders.by_hand(orders.throttle({"rate": 1}), held)
    alone = orders.throttle({"between_directories": 1})
    assert orders.by_hand(alone, held) == alone
