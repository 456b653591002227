"""PlanAlert: sends one alert of a plan to a webhook; a run of its own, so that no plan ever waits for a webhook."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers
from workflows.model import names
from workflows.model.plans.running import alerting, calls
from workflows.model.plans.running.alerting import AlertRequest
from workflows.model.plans.running.plan_results import AlertResult
from workflows.step_specs import start


@workflow.defn(name=names.PLAN_ALERT)
class PlanAlert:
    """send_alert, repeated for a while. An alert that no attempt could send fails the run with the reason."""

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._request = AlertRequest("", "", "", "", "")
        try:
            self._request = alerting.parse(handlers.only(given))
        except BadField as problem:
            self._problem = problem

    @workflow.run
    async def run(self, *given: Any) -> AlertResult:
        """Return once the webhook has accepted the alert. Fails with InvalidPlan, or with AlertNotSent."""
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        try:
            await start(calls.SEND_ALERT, self._request.as_json(), cluster=self._request.cluster)
        except ActivityError as failure:
            cause = failure.cause
            if cancellation.requested() or isinstance(cause, CancelledError):
                raise CancelledError("The alert was cancelled.") from None
            why = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise ApplicationError(fields.shown(why), type=ErrorType.ALERT_NOT_SENT, non_retryable=True) from None
        return AlertResult(self._request.webhook, self._request.event)


async def send(request: AlertRequest) -> None:
    """Start the run that sends an alert; it outlives the plan. One that was started before is not repeated."""
    try:
        handle = await cancellation.shielded(
            workflow.start_child_workflow(
                names.PLAN_ALERT,
                request.as_json(),
                id=request.id,
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{request.event}: {request.webhook}",
            )
        )
    except WorkflowAlreadyStartedError:
        return
    handle.add_done_callback(_leave)


def _leave(handle: ChildWorkflowHandle[Any, Any]) -> None:
    """Read the run's failure, which is its own: the plan continues."""
    if not handle.cancelled():
        handle.exception()
