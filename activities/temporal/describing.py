"""The server's description of a run, read from its own message.

The SDK's `describe` raises ValueError for a status that it does not know, such as that of a paused run, and so does its
list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    ListWorkflowExecutionsRequest,
)
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


@dataclass(frozen=True, slots=True)
class ListedRun:
    """An open run in the server's list: its ids, whether the server has paused it, and the names in its memo."""

    workflow_id: str
    run_id: str
    paused: bool
    memo: frozenset[str]


async def open_runs(client: Client, cluster: str, kind: str) -> AsyncIterator[ListedRun]:
    """List the open runs of a workflow type on the cluster's task queue, paused runs too. Raises RPCError.

    A query for the status "Running" leaves out paused runs, and a server that cannot pause rejects one for "Paused".
    """
    query = f'WorkflowType="{kind}" AND TaskQueue="{cluster}" AND CloseTime IS NULL'
    page = b""
    while True:
        found = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(namespace=client.namespace, query=query, next_page_token=page), retry=True
        )
        for info in found.executions:
            yield ListedRun(
                workflow_id=info.execution.workflow_id,
                run_id=info.execution.run_id,
                paused=info.status == RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
                memo=frozenset(info.memo.fields),
            )
        page = found.next_page_token
        if not page:
            return


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run in the server's list, open or not; times are epoch seconds, `closed` is None for an open one."""

    workflow_id: str
    run_id: str
    type: str
    status: str
    started: float
    closed: float | None


async def runs_of_type(client: Client, queue: str, kind: str, most: int) -> AsyncIterator[FoundRun]:
    """List at most so many runs of a workflow type on a task queue, open ones first, then the newest. Runs that have
    continued as new are left out. Raises RPCError.
    """
    query = f'WorkflowType="{kind}" AND TaskQueue="{queue}" AND ExecutionStatus!="ContinuedAsNew"'
    page, count = b"", 0
    while count < most:
        found = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(
                namespace=client.namespace, query=query, page_size=most - count, next_page_token=page
            ),
            retry=True,
        )
        for info in found.executions:
            count += 1
            closed = info.HasField("close_time")
            yield FoundRun(
                workflow_id=info.execution.workflow_id,
                run_id=info.execution.run_id,
                type=info.type.name,
                status=_STATUS.get(info.status, "unknown"),
                started=info.start_time.ToMicroseconds() / 1e6,
                closed=info.close_time.ToMicroseconds() / 1e6 if closed else None,
            )
        page = found.next_page_token
        if not page:
            return


_STATUS = {
    RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING: "open",
    RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED: "open",
    RawStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED: "completed",
    RawStatus.WORKFLOW_EXECUTION_STATUS_FAILED: "failed",
    RawStatus.WORKFLOW_EXECUTION_STATUS_CANCELED: "cancelled",
    RawStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED: "terminated",
    RawStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "timed_out",
}


async def describe_run(
    client: Client, workflow_id: str, run_id: str = "", timeout: timedelta | None = None
) -> RunDescription | None:
    """Describe a run (the newest one without `run_id`); None if it does not exist. Raises RPCError."""
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


async def without_open_run(client: Client, workflow_ids: list[str]) -> list[str]:
    """Return those of some workflow ids that have no open run. Raises RPCError."""
    found = [(each, await describe_run(client, each)) for each in workflow_ids]
    return [each for each, run in found if run is None or run.ended is not None]


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
    except ValueError:  # A status that this SDK does not know cannot be that of a requested cancel.
        return WorkflowExecutionStatus.FAILED
