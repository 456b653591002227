"""The source of histories: raw calls to Temporal, which accept a status that this SDK does not know.

The SDK's own list converts a status to an enum, and raises for an unknown one (such as that of a paused run).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

#: The maximum page size of the server's lists.
LIST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the server lists it. `closed_at` is None while it is open; `status` is the server's number."""

    workflow_id: str
    run_id: str
    workflow_type: str
    status: int
    started_at: datetime
    closed_at: datetime | None
    history_length: int

    @property
    def key(self) -> tuple[str, str]:
        """Return workflow id and run id, which identify the run in its namespace."""
        return self.workflow_id, self.run_id


class HistorySource(Protocol):
    """The histories that an export reads. Raises RPCError if the server is unavailable."""

    def list_runs(self, query: str) -> AsyncIterator[Run]:
        """Yield all runs that match the query."""

    async def retention(self) -> timedelta | None:
        """Return for how long the namespace keeps closed runs, None if it does not say."""

    async def history(self, run: Run) -> History | None:
        """Return the run's history so far, None if the server no longer has it."""

    async def pending(self, run: Run) -> dict[str, Any] | None:
        """Return what the server describes beside an open run's history, None if it no longer has the run."""


class TemporalSource:
    """Histories of one namespace of a Temporal server."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read `namespace`; `client` may be connected to any namespace."""
        self._service = client.workflow_service
        self._namespace = namespace

    async def list_runs(self, query: str) -> AsyncIterator[Run]:
        """Yield all runs that match the visibility query, page by page."""
        token = b""
        while True:
            page = await self._service.list_workflow_executions(
                ListWorkflowExecutionsRequest(
                    namespace=self._namespace, query=query, page_size=LIST_PAGE, next_page_token=token
                ),
                retry=True,
            )
            for info in page.executions:
                yield Run(
                    info.execution.workflow_id,
                    info.execution.run_id,
                    info.type.name,
                    int(info.status),
                    instant(info.start_time),
                    instant(info.close_time) if info.HasField("close_time") else None,
                    info.history_length,
                )
            token = page.next_page_token
            if not token:
                return

    async def retention(self) -> timedelta | None:
        """Return the retention of the namespace; None if the client may not describe it: an export does not need it."""
        try:
            described = await self._service.describe_namespace(DescribeNamespaceRequest(namespace=self._namespace))
        except RPCError:
            return None
        return described.config.workflow_execution_retention_ttl.ToTimedelta() or None

    async def history(self, run: Run) -> History | None:
        """Return all events so far; the server returns at most 256 of them per call."""
        history = History()
        token = b""
        try:
            while True:
                page = await self._service.get_workflow_execution_history(
                    GetWorkflowExecutionHistoryRequest(
                        namespace=self._namespace,
                        execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id),
                        next_page_token=token,
                    ),
                    retry=True,
                )
                history.events.extend(page.history.events)
                token = page.next_page_token
                if not token:
                    return history
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def pending(self, run: Run) -> dict[str, Any] | None:
        """Return pending activities with attempts, heartbeat details and last failure, as the server's JSON."""
        try:
            described = await self._service.describe_workflow_execution(
                DescribeWorkflowExecutionRequest(
                    namespace=self._namespace,
                    execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id),
                ),
                retry=True,
            )
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        return {"activities": [MessageToDict(activity) for activity in described.pending_activities]}


def instant(stamp: Timestamp) -> datetime:
    """Return a protobuf time stamp as an aware UTC time, to the microsecond."""
    return stamp.ToDatetime(tzinfo=UTC)
