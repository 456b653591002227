"""NodeLease: one incarnation of a node is alive while this run's activity is held on it."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from workflows import errors, handlers, options
from workflows.model import calls, messages, names
from workflows.model.calls import LeaseCall
from workflows.model.fields import BadField


@workflow.defn(name=names.NODE_LEASE)
class NodeLease:
    """Holds the lease until the node cannot renew it, then tells the controller by the signal `lease_ended`.

    A lease that ends says nothing yet: after a standstill of the server all of them do. The controller asks the node
    itself before it fences it, and gives it a new lease when it answers. The run outlives the controller's
    continue-as-new.
    """

    @workflow.run
    async def run(self, *given: Any) -> str:
        """Return why the lease ended; fails with InvalidPlan when the parameter, a LeaseCall, cannot be used."""
        try:
            call = messages.lease(handlers.only(given))
        except BadField as bad:
            raise errors.invalid_plan(bad) from bad
        reason = await self._hold(call)
        controller = workflow.get_external_workflow_handle(names.cluster_id(call.cluster))
        try:
            await controller.signal(
                "lease_ended", {"node": call.node, "incarnation": call.incarnation, "reason": reason}
            )
        except ApplicationError as problem:
            # No controller runs: the next one starts without leases and makes its own.
            workflow.logger.warning("Nobody to tell that the lease ended: %s", problem)
        return reason

    async def _hold(self, call: LeaseCall) -> str:
        try:
            await workflow.execute_activity(
                calls.HOLD_LEASE,
                call,
                task_queue=names.node_queue(call.cluster, call.node),
                heartbeat_timeout=options.LEASE_HEARTBEAT_TIMEOUT,
                schedule_to_start_timeout=options.LEASE_PICK_UP_TIMEOUT,
                start_to_close_timeout=options.LEASE_ATTEMPT_TIMEOUT,
                retry_policy=options.LEASE_RETRY,
            )
        except ActivityError as failed:
            if is_cancelled_exception(failed):
                return "cancelled"
            if isinstance(failed.cause, TimeoutError):
                return f"the node did not renew it ({failed.cause.type.name if failed.cause.type else 'timeout'})"
            return str(failed.cause or failed)
        return "the node gave it back"
