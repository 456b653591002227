"""The steps of plans: starts their activities on the plans' queue, and reads what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from temporalio.exceptions import ActivityError, ApplicationError

from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows import cancellation, options
from workflows.model.plans.running import calls
from workflows.model.plans.running.calls import KeepCall
from workflows.step_specs import start

T = TypeVar("T")


async def run_step(cluster: str, activity: str, call: Any) -> Any:
    """Return what an activity returns, even if the run is cancelled meanwhile. Raises ActivityError."""
    return await cancellation.shielded(_awaited(start(activity, call, cluster=cluster)))


async def run_with_texts(cluster: str, activity: str, call: Any, texts: Callable[[], Iterable[str]]) -> Any:
    """Return what an activity returns; a worker that lacks a stored text is sent all packed `texts` first.

    Raises the activity's ApplicationError, or InvalidPlan if the run has no text to send.
    """
    sent = 0
    while True:
        try:
            return await run_step(cluster, activity, call)
        except ActivityError as failure:
            cause = failure.cause
            if not isinstance(cause, ApplicationError):
                raise
            if cause.type != ErrorType.PLAN_NOT_STORED or sent == options.PLAN_SENDS:
                raise cause from failure
            await _send(cluster, list(filter(None, texts())), cause)
            sent += 1


async def _send(cluster: str, texts: list[str], missing: ApplicationError) -> None:
    if not texts:
        raise ApplicationError(
            f"No worker has the plan's text: {missing.message}. Submit the plan again, or let all workers share "
            "one plan folder.",
            type=ErrorType.INVALID_PLAN,
            non_retryable=True,
        ) from None
    for packed in texts:
        await run_step(cluster, calls.KEEP_PLAN, KeepCall(packed))


async def _awaited(handle: Any) -> Any:
    return await handle


def readable(activity: str, read: Callable[[Any], T], value: Any) -> T:
    """Return an activity's result as `read` returns it. Raises a final ApplicationError for one that cannot be read."""
    try:
        return read(value)
    except BadField as problem:
        raise ApplicationError(
            f"The result of {activity} cannot be read: {problem}. Do all workers run the same version?",
            type=ErrorType.NODE_FAILURE,
            non_retryable=True,
        ) from problem
