"""The arguments of a plan's updates and signals, strictly read."""

from __future__ import annotations

from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
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
    "slots_per_disk",
    "slots_per_broker",
    "slots_cluster",
    "priority",
    "window",
    "deadline",
    "health_gate",
    "verify",
)


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
