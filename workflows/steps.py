"""Starts a step of a move on its node, and turns its result or failure into rows. Keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError
from temporalio.workflow import ActivityHandle

from storage_node.model import fields
from storage_node.model.error_types import FINAL, ErrorType
from storage_node.model.fields import BadField
from storage_node.model.moves import Phase
from workflows.model import results
from workflows.model.calls import MoveCall, MoveRow
from workflows.model.move import moves
from workflows.model.move.moves import MovingReplica
from workflows.step_specs import SPECS, start


@dataclass(frozen=True, slots=True)
class Stopped:
    """The step did not complete: it was interrupted, no worker picked it up in time (`unclaimed`), or its attempt died
    with its node (`died`). The run decides again which step is next.
    """

    unclaimed: bool = False
    died: bool = False


def start_step(
    phase: Phase,
    node: int,
    group: Sequence[MovingReplica],
    throttle: int | None,
    reason: str,
    *,
    patient: bool,
    accepted: bool,
    report_deaths: bool,
) -> ActivityHandle[Any]:
    """Start the activity of a phase for these replicas; `rows_of` reads what it returns.

    A cancel waits until the activity has ended, so that nothing is undone while it writes. `patient`: wait for the node
    for ever, instead of requesting after a while whether it exists. `accepted`: the node accepted the move itself, and
    may take longer before it is missed. `report_deaths`: end the step when a copy's attempt dies, instead of having
    the server retry it.
    """
    info = workflow.info()
    call = MoveCall(
        info.workflow_id,
        info.run_id,
        node,
        [replica.move for replica in group],
        throttle,
        reason,
        [asdict(replica.row) for replica in group],
    )
    activity = moves.STEPS[phase]
    spec = SPECS[activity]
    if patient:
        spec = spec.patient()
    elif accepted:
        spec = spec.accepted()
    if not report_deaths:
        spec = spec.retried_in_silence()
    return start(activity, call, spec=spec, node=node, summary=_summary(group))


def _summary(group: Sequence[MovingReplica]) -> str:
    first = f"{group[0].move.topic}-{group[0].move.partition}"
    return first if len(group) == 1 else f"{first} and {len(group) - 1} more"


def rows_of(phase: Phase, node: int, found: Any, group: Sequence[MovingReplica]) -> list[MoveRow]:
    """Return the rows in the result of a phase's activity; if it is unreadable, a failed row for every replica."""
    try:
        return results.moved(found).rows
    except BadField as problem:
        message = results.unreadable(moves.STEPS[phase], node, problem)
        workflow.logger.warning("%s", message)
        return moves.failed_rows(group, ErrorType.NODE_FAILURE, message)


def rows_after(failure: ActivityError, group: Sequence[MovingReplica], *, interrupted: bool) -> list[MoveRow] | Stopped:
    """Return the rows of a failed step, or that it stopped.

    It stopped if it was cancelled or timed out, or failed for a reason that would have been retried without the cancel
    (a dead node's attempt ends in a heartbeat timeout then, not in a cancellation). Else every replica without a row of
    its own in the failure's details failed for the failure's reason.
    """
    cause = failure.cause
    if isinstance(cause, TimeoutError):
        timeout = cause.type.name if cause.type is not None else ""
        return Stopped(unclaimed=timeout == "SCHEDULE_TO_START", died=timeout == "HEARTBEAT")
    if not isinstance(cause, ApplicationError):
        return Stopped()
    kind = cause.type or ErrorType.NODE_FAILURE
    if interrupted and kind not in FINAL:
        return Stopped()
    reported = {(row.topic, row.partition): row for row in rows_in(cause)}
    others = [replica for replica in group if replica.key not in reported]
    return [*reported.values(), *moves.failed_rows(others, kind, fields.shown(cause.message))]


def rows_in(failure: FailureError) -> list[MoveRow]:
    """Return the rows in a failure's details or last heartbeat, which are a list of them or {"rows": [...]}."""
    details: Sequence[Any] = getattr(failure, "details", ()) or getattr(failure, "last_heartbeat_details", ())
    found = details[0] if details else None
    if isinstance(found, dict):
        found = found.get("rows")
    try:
        return [results.move_row(each) for each in (found if isinstance(found, list) else [])]
    except BadField as problem:
        workflow.logger.warning("Ignored the details of a failed step: %s", problem)
        return []


def facts_of(failure: ActivityError, group: Sequence[MovingReplica]) -> dict[tuple[str, int], MoveRow]:
    """Return what an interrupted step had done so far, by replica, as far as the activity's details have it."""
    cause = failure.cause
    reported = rows_in(cause) if isinstance(cause, FailureError) else []
    keys = {replica.key for replica in group}
    return {(row.topic, row.partition): row for row in reported if (row.topic, row.partition) in keys}
