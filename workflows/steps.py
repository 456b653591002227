"""Carrying out one step of a move on its node: its queue and limits, and what a failure means. Keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from workflows import errors, options
from workflows.model import calls, fields, moves, names, results
from workflows.model.calls import MoveCall, MoveRow
from workflows.model.fields import BadField
from workflows.model.moves import Replica


@dataclass(frozen=True, slots=True)
class Stopped:
    """The step did not end by itself: it was interrupted, nobody picked it up in time (`unclaimed`), or its attempt
    died with its node (`died`). It is decided anew what comes next.
    """

    unclaimed: bool = False
    died: bool = False


def start_step(
    phase: str,
    node: int,
    group: Sequence[Replica],
    throttle: int | None,
    reason: str,
    *,
    patient: bool,
    accepted: bool,
    telling: bool,
) -> ActivityHandle[Any]:
    """Start the activity of a phase for these replicas; `rows_of` reads what it returns.

    A cancel waits until the activity has really ended, so that nothing is undone under a writer. `patient`: wait for
    the node for ever, instead of asking after a while whether it exists. `accepted`: the node accepted the move itself,
    and may take longer before it is missed. `telling`: end the step when a copy's attempt dies, instead of having the
    server try again in silence.
    """
    info = workflow.info()
    cluster = info.task_queue
    activity = moves.STEPS[phase]
    copying = activity == calls.COPY
    pick_up = options.ACCEPTED_PICK_UP_TIMEOUT if accepted else options.PICK_UP_TIMEOUT
    call = MoveCall(
        info.workflow_id,
        info.run_id,
        node,
        [replica.move for replica in group],
        throttle,
        reason,
        [asdict(replica.row) for replica in group],
    )
    return workflow.start_activity(
        activity,
        call,
        task_queue=names.moves_queue(cluster, node) if copying else names.node_queue(cluster, node),
        schedule_to_start_timeout=None if patient or copying else pick_up,
        start_to_close_timeout=options.COPY_TIMEOUT if copying else options.SHORT_STEP_TIMEOUT,
        heartbeat_timeout=options.COPY_HEARTBEAT_TIMEOUT if copying else None,
        retry_policy=options.COPY_RETRY if copying and telling else options.MOVE_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=_summary(group),
    )


def _summary(group: Sequence[Replica]) -> str:
    first = f"{group[0].move.topic}-{group[0].move.partition}"
    return first if len(group) == 1 else f"{first} and {len(group) - 1} more"


def rows_of(phase: str, node: int, found: Any, group: Sequence[Replica]) -> list[MoveRow]:
    """The rows that the activity of a phase has returned; where they cannot be read, every replica failed for that."""
    try:
        return results.moved(found).rows
    except BadField as problem:
        message = results.unreadable(moves.STEPS[phase], node, problem)
        workflow.logger.warning("%s", message)
        return moves.failed_rows(group, errors.NODE_FAILURE, message)


def rows_after(failure: ActivityError, group: Sequence[Replica], *, interrupted: bool) -> list[MoveRow] | Stopped:
    """What a failed step means for its replicas.

    Cancelled, or timed out, or failed for a reason that would have been retried had no cancel been asked for (a dead
    node's attempt ends in a heartbeat timeout then, not in a cancellation): the step stopped. Else every replica
    without a row of its own in the failure's details failed for the failure's reason.
    """
    cause = failure.cause
    if isinstance(cause, TimeoutError):
        timeout = cause.type.name if cause.type is not None else ""
        return Stopped(unclaimed=timeout == "SCHEDULE_TO_START", died=timeout == "HEARTBEAT")
    if not isinstance(cause, ApplicationError):
        return Stopped()
    kind = cause.type or errors.NODE_FAILURE
    if interrupted and kind not in errors.FINAL:
        return Stopped()
    told = {(row.topic, row.partition): row for row in rows_in(cause)}
    others = [replica for replica in group if replica.key not in told]
    return [*told.values(), *moves.failed_rows(others, kind, fields.shown(cause.message))]


def rows_in(failure: FailureError) -> list[MoveRow]:
    """The rows that a failure carries in its details, or in its last heartbeat: a list of them, or {"rows": [...]}."""
    details: Sequence[Any] = getattr(failure, "details", ()) or getattr(failure, "last_heartbeat_details", ())
    found = details[0] if details else None
    if isinstance(found, dict):
        found = found.get("rows")
    try:
        return [results.move_row(each) for each in (found if isinstance(found, list) else [])]
    except BadField as problem:
        workflow.logger.warning("Ignored the details of a failed step: %s", problem)
        return []


def facts_of(failure: ActivityError, group: Sequence[Replica]) -> dict[tuple[str, int], MoveRow]:
    """What an interrupted step had done so far, by replica: a cancelled activity may say it in its details."""
    cause = failure.cause
    told = rows_in(cause) if isinstance(cause, FailureError) else []
    keys = {replica.key for replica in group}
    return {(row.topic, row.partition): row for row in told if (row.topic, row.partition) in keys}
