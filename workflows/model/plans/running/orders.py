"""The arguments of a plan's updates and signals, strictly read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running.calls import PlanMoveRow, move_rows
from workflows.model.plans.running.lane_request import workflow_id
from workflows.model.plans.running.run import MOST_SKIPPED, PauseMode

_LONGEST_NAME = 200
#: A topic's 249 characters, a partition, and a broker.
_LONGEST_KEY = 280

#: Options that may change while a plan runs.
CHANGEABLE = (
    "throttle_between_brokers",
    "throttle_between_directories",
    "adaptive_between_brokers",
    "adaptive_between_directories",
    "calendar_between_brokers",
    "calendar_between_directories",
    "slots_per_disk",
    "slots_per_broker",
    "slots_cluster",
    "priority",
    "window",
    "deadline",
    "health_gate",
    "verify",
)

#: The fields of `set_throttle` for one kind of move each, and the options that they set; `rate` sets all of them.
THROTTLES = {"between_brokers": "throttle_between_brokers", "between_directories": "throttle_between_directories"}
_RATE = "rate"
#: The fields of `set_slots`, and the options that they set.
SLOTS = {"per_disk": "slots_per_disk", "per_broker": "slots_per_broker", "cluster": "slots_cluster"}


def throttle(value: Any) -> dict[str, Any]:
    """Return the options that `set_throttle` changes: {rate} of both kinds of moves, or {between_brokers,
    between_directories}; null is no limit. Raises BadField; the rates are read with the options.
    """
    row = fields.an_object(value, "$", (_RATE, *THROTTLES))
    if _RATE in row:
        if len(row) > 1:
            raise BadField(
                "$", f"has {_RATE}, the throttle of all moves, beside {' and '.join(sorted(set(row) - {_RATE}))}"
            )
        return dict.fromkeys(THROTTLES.values(), row[_RATE])
    return _set(row, THROTTLES, f"{_RATE}, {' or '.join(THROTTLES)}")


def slots(value: Any) -> dict[str, Any]:
    """Return the options that `set_slots` changes: {per_disk, per_broker, cluster}; null is the default, which is no
    limit but for a disk. Raises BadField; the numbers are read with the options.
    """
    return _set(fields.an_object(value, "$", tuple(SLOTS)), SLOTS, " or ".join(SLOTS))


def _set(row: Mapping[str, Any], options: Mapping[str, str], needed: str) -> dict[str, Any]:
    if not row:
        raise BadField("$", f"is empty, but must have {needed}")
    return {options[name]: each for name, each in row.items()}


def by_hand(changes: Mapping[str, Any], held: PlanOptions) -> dict[str, Any]:
    """Return throttles that an operator sets at once. Raises BadField where the plan's calendar takes their place."""
    for name in changes:
        calendar = name.replace("throttle", "calendar")
        if getattr(held, calendar):
            raise BadField(
                "$", f"sets {name}, but the plan's {calendar} takes its place by the hour: change that by set_options"
            )
    return dict(changes)


def mode(value: Any) -> PauseMode:
    """Return what becomes of the moves under way: {mode}, finish by default. Raises BadField."""
    row = fields.an_object(value, "$", ("mode",))
    found = fields.a_string(row.get("mode") or PauseMode.FINISH, "$.mode")
    if found not in set(PauseMode):
        raise BadField("$.mode", f"is {fields.shown(found)!r}, but must be one of {', '.join(PauseMode)}")
    return PauseMode(found)


def rollback(value: Any) -> bool:
    """Return whether what is done is taken back: {rollback}, false by default. Raises BadField."""
    row = fields.an_object(value, "$", ("rollback",))
    return fields.a_flag(row.get("rollback", False), "$.rollback")


def person(value: Any) -> str:
    """Return who approves: {by}. Raises BadField."""
    row = fields.an_object(value, "$", ("by",))
    by = fields.a_string(fields.need(row, "by", "$"), "$.by").strip()
    if not 1 <= len(by) <= _LONGEST_NAME:
        raise BadField("$.by", f"must be a name of 1 to {_LONGEST_NAME} characters")
    return by


def holder(value: Any) -> str:
    """Return the plan that releases its slots: {holder}. Raises BadField."""
    return workflow_id(fields.need(fields.an_object(value, "$", ("holder",)), "holder", "$"), "$.holder")


def keys(value: Any) -> list[str]:
    """Return the keys of moves: {moves}. Raises BadField."""
    row = fields.an_object(value, "$", ("moves",))
    found = fields.a_list(fields.need(row, "moves", "$"), "$.moves")
    if not 1 <= len(found) <= MOST_SKIPPED:
        raise BadField("$.moves", f"has {len(found)} entries, but must have 1 to {MOST_SKIPPED}")
    for at, each in enumerate(found):
        if len(fields.a_string(each, f"$.moves[{at}]")) > _LONGEST_KEY:
            raise BadField(f"$.moves[{at}]", f"has {len(each)} characters, but must have at most {_LONGEST_KEY}")
    return list(found)


def lane_rows(value: Any) -> tuple[int, list[PlanMoveRow]]:
    """Return the number and the rows of a lane that has ended: {number, rows}. Raises BadField."""
    row = fields.an_object(value, "$", ("number", "rows"))
    return fields.a_number(fields.need(row, "number", "$"), "$.number"), move_rows(fields.need(row, "rows", "$"))
