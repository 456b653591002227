"""NodeLease: one incarnation of a node is alive while this run's activity is held on it."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from storage_node.model.fields import BadField
from workflows import errors, handlers
from workflows.model import calls, messages, names
from workflows.model.calls import LeaseCall
from workflows.model.run_results import NodeLeaseResult
from workflows.step_specs import start


@workflow.defn(name=names.NODE_LEASE)
class NodeLease:
    """Hold the lease until the node cannot renew it, then signal `lease_ended` to the controller.

    A lease that ends does not prove that its node is dead: after a Temporal outage all of them end. The controller
    probes the node before it fences it, and starts a new lease if the node responds. The run outlives the controller's
    continue-as-new.
    """

    @workflow.run
    async def run(self, *given: Any) -> NodeLeaseResult:
        """Return why the lease ended; fails with InvalidPlan if the parameter, a LeaseCall, is invalid."""
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
            # No controller runs: the next one starts without leases and creates its own.
            workflow.logger.warning("No controller runs that the end of the lease could be reported to: %s", problem)
        return NodeLeaseResult(reason)

    async def _hold(self, call: LeaseCall) -> str:
        try:
            await start(calls.HOLD_LEASE, call, cluster=call.cluster, node=call.node)
        except ActivityError as failed:
            if is_cancelled_exception(failed):
                return "cancelled"
            if isinstance(failed.cause, TimeoutError):
                return f"the node did not renew it ({failed.cause.type.name if failed.cause.type else 'timeout'})"
            return str(failed.cause or failed)
        return "the node gave it back"
