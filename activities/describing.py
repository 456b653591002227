"""What the server reports of a run, read from its own message.

The SDK's `describe` raises ValueError for a status that it does not know, such as that of a paused run, and so does its
list.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run: its id, the first of its chain, its events, and how it ended (None while it is open)."""

    run_id: str
    first: str
    length: int
    ended: WorkflowExecutionStatus | None
    paused: bool
    raw: DescribeWorkflowExecutionResponse


async def describe_run(
    client: Client, workflow_id: str, run_id: str = "", timeout: timedelta | None = None
) -> RunDescription | None:
    """Describe a run (the newest one without `run_id`); None when it does not exist. Raises RPCError otherwise."""
    request = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    )
    try:
        found = await client.workflow_service.describe_workflow_execution(request, retry=True, timeout=timeout)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return read(found)


def read(found: DescribeWorkflowExecutionResponse) -> RunDescription:
    """Return the server's message as a value; a run without a close time is open."""
    info = found.workflow_execution_info
    run_id = info.execution.run_id
    return RunDescription(
        run_id=run_id,
        first=info.first_run_id or run_id,
        length=info.history_length,
        ended=_ended(info.status) if info.HasField("close_time") else None,
        paused=info.status == RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
        raw=found,
    )


def _ended(status: int) -> WorkflowExecutionStatus:
    try:
        return WorkflowExecutionStatus(status)
    except ValueError:  # a status that this SDK does not know cannot be a requested cancel
        return WorkflowExecutionStatus.FAILED
