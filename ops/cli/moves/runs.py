"""Requests of the commands to Temporal, which start, query and cancel runs; each failure is one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from temporalio import exceptions as failures
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import connection, describing, errors
from activities.temporal.errors import BadConfiguration, Kind
from ops.cli.target import Target
from ops.stack.errors import OpsError, Refused, ResponseTimeout, StillRunning
from storage_node.model.moves import Phase
from workflows.model import names
from workflows.model.run_progress import ReassignmentProgress

T = TypeVar("T")
S = TypeVar("S")

CONNECT_SECONDS = 8.0
PROGRESS_SECONDS = 3.0
#: Concurrent queries.
AT_ONCE = 16
#: What the data converter raises for a payload that does not have the requested type.
UNREADABLE = (TypeError, ValueError, RuntimeError)


class RunCancelled(OpsError):
    """A run ended as cancelled."""


def with_temporal(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a connected client. Raises `OpsError` if Temporal does not respond."""
    with connection.silent_sdk():
        return asyncio.run(_with_client(target, work))


class Session:
    """A connection to Temporal for a command that reads repeatedly. Use as a context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._runner = asyncio.Runner()
        self._client: Client | None = None
        self._silent = contextlib.ExitStack()

    def __enter__(self) -> Session:
        self._silent.enter_context(connection.silent_sdk())
        return self

    def __exit__(self, *exc: object) -> None:
        self._silent.close()
        self._runner.close()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run `work` with the client. Raises `OpsError` if Temporal does not respond."""
        return self._runner.run(self._work(work))

    async def _work(self, work: Callable[[Client], Awaitable[T]]) -> T:
        if self._client is None:
            self._client = await connect(self._target)
        try:
            return await work(self._client)
        except RPCError as error:
            raise OpsError(
                f"Temporal at {self._target.temporal_address} rejected the request: {error.message}"
            ) from error


async def _with_client(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    client = await connect(target)
    try:
        return await work(client)
    except RPCError as error:
        raise OpsError(f"Temporal at {target.temporal_address} rejected the request: {error.message}") from error


async def connect(target: Target) -> Client:
    """Connect to the target's Temporal and return the client. Raises `OpsError`."""
    address = target.need_temporal()
    overrides = {"target_host": address, "namespace": target.namespace}
    try:
        return await asyncio.wait_for(Client.connect(**connection.settings("cli", None, overrides)), CONNECT_SECONDS)
    except (BadConfiguration, RuntimeError, OSError, TimeoutError) as error:
        problem = errors.classify(error)
        if problem.kind is Kind.UNREACHABLE:
            why_not = problem.detail or "no response"
            raise ResponseTimeout(
                f"cannot reach Temporal at {address}: {why_not}; is it running? see: rehome stack status",
                where=address,
            ) from error
        raise OpsError(errors.sentence(problem, address, target.namespace), where=address) from error


async def at_once(work: Callable[[S], Awaitable[T]], items: Iterable[S]) -> list[T]:
    """Run `work` for each item, for `AT_ONCE` of them at a time; return what it returns, in order. The first failure
    ends the others.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: S) -> T:
        async with gate:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def reassignments(client: Client, cluster: str) -> list[ReassignmentProgress]:
    """Return the progress of the open runs of PartitionReassignment, of those that respond in time.

    Each query costs the worker a replay of the run: for a command that needs it once, not for a page that reads
    repeatedly, which uses `open_runs`.
    """
    found = [
        (run.workflow_id, run.run_id)
        async for run in describing.open_runs(client, cluster, names.PARTITION_REASSIGNMENT)
    ]
    responses = await at_once(lambda run: progress_of(client, *run, ReassignmentProgress), found)
    return [each for each in responses if each is not None]


async def progress_of(client: Client, workflow_id: str, run_id: str, kind: type[T]) -> T | None:
    """Return one run's response to `progress`; None if no readable one comes in time. It costs the worker a replay."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        return cast(T, await asyncio.wait_for(handle.query("progress", result_type=kind), PROGRESS_SECONDS))
    except Exception as error:
        # The other runs are shown even if this one rejects the query: it has just started, or is of another version.
        logging.getLogger(__name__).debug("no progress of %s: %s", workflow_id, error)
        return None


async def start_move(
    client: Client, cluster: str, workflow_id: str, parameter: Any, kind: str = names.MOVE_REPLICA
) -> str:
    """Start a MoveReplica (or another type) and return its run id. Raises `OpsError` if a run with that id is open."""
    try:
        handle = await client.start_workflow(
            kind,
            parameter,
            id=workflow_id,
            task_queue=names.cluster_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
    except failures.WorkflowAlreadyStartedError as error:
        raise Refused(f"a run with the id {workflow_id} is already open; see: rehome moves") from error
    return handle.first_execution_run_id or handle.result_run_id or ""


async def result_of(client: Client, workflow_id: str, kind: type[T], run_id: str | None = None) -> T:
    """Wait for a run's result. Raises `OpsError` with the reason if the run does not complete or its result is
    unreadable, `RunCancelled` if it is cancelled.
    """
    try:
        return cast(T, await client.get_workflow_handle(workflow_id, run_id=run_id, result_type=kind).result())
    except UNREADABLE as error:
        raise OpsError(unreadable(f"the result of {workflow_id}", error)) from error
    except WorkflowFailureError as error:
        failure = RunCancelled if isinstance(error.cause, failures.CancelledError) else OpsError
        raise failure(f"{workflow_id} {why(error)}") from error


def unreadable(what: str, error: BaseException) -> str:
    """Return the sentence about a result that the data converter could not read as its type."""
    return f"{what} cannot be read: {error.__cause__ or error}; do this command and the controller run one version?"


def why(error: BaseException) -> str:
    """Return one sentence about a chain of failures, from the innermost one."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    last = chain[-1]
    if any(isinstance(link, failures.CancelledError) for link in chain):
        return "was cancelled"
    if isinstance(last, failures.TerminatedError):
        return f"was terminated: {last.message}"
    if isinstance(last, failures.TimeoutError):
        return f"timed out: {last.message}"
    if isinstance(last, failures.ApplicationError):
        return f"failed ({last.type}): {last.message}" if last.type else f"failed: {last.message}"
    return f"failed: {last}"


def failed_as(error: BaseException) -> str:
    """Return the error type of a failed run, "" if it has none."""
    cause = error.__cause__
    return str(cause.type or "") if isinstance(cause, failures.ApplicationError) else ""


async def cancel(client: Client, workflow_id: str, *, wait_seconds: float | None) -> str:
    """Cancel a run; with `wait_seconds` wait until it has ended. Return its status in lower case;
    a run that was cancelled already is. Raises `Refused` for one that has ended otherwise.
    """
    handle = client.get_workflow_handle(workflow_id)
    try:
        before = await describing.describe_run(client, workflow_id)
        if before is None:
            raise OpsError(f"the run {workflow_id} does not exist; see: rehome moves")
        if before.ended is not None:
            if before.ended is WorkflowExecutionStatus.CANCELED:
                return "cancelled"
            raise Refused(f"{workflow_id} cannot be cancelled: it has already ended ({before.ended.name.lower()})")
        await handle.cancel()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise OpsError(f"the run {workflow_id} does not exist; see: rehome moves") from error
        raise
    if wait_seconds is None:
        return Phase.CANCELLING
    try:
        await asyncio.wait_for(handle.result(), wait_seconds)
    except TimeoutError as error:
        raise StillRunning(
            f"the cancel of {workflow_id} was requested, but the run is still open after {wait_seconds:.0f} s: "
            "it waits for its node to clean up; see: rehome moves"
        ) from error
    except WorkflowFailureError as error:
        if isinstance(error.cause, failures.CancelledError):
            return "cancelled"
        raise OpsError(f"{workflow_id} {why(error)}") from error
    return "completed"
