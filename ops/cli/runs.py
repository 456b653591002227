"""The runs behind the moves: what the commands ask Temporal, with one sentence per failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import exceptions as failures
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities import connection, describing, temporal_errors
from activities.temporal_errors import BadConfiguration, Kind
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model import names

T = TypeVar("T")

CONNECT_SECONDS = 8.0
PROGRESS_SECONDS = 3.0
AT_ONCE = 16  # runs that are asked side by side


class RunCancelled(OpsError):
    """A run ended as cancelled."""


def with_temporal(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a connected client. Raises `OpsError` where Temporal does not answer."""
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
        """Run `work` with the client. Raises `OpsError` where Temporal does not respond."""
        return self._runner.run(self._work(work))

    async def _work(self, work: Callable[[Client], Awaitable[T]]) -> T:
        if self._client is None:
            self._client = await connect(self._target)
        try:
            return await work(self._client)
        except RPCError as error:
            raise OpsError(f"Temporal at {self._target.temporal_address} refused: {error.message}") from error


async def _with_client(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    client = await connect(target)
    try:
        return await work(client)
    except RPCError as error:
        raise OpsError(f"Temporal at {target.temporal_address} refused: {error.message}") from error


async def connect(target: Target) -> Client:
    """A client for the target's Temporal. Raises `OpsError`."""
    address = target.need_temporal()
    overrides = {"target_host": address, "namespace": target.namespace}
    try:
        return await asyncio.wait_for(Client.connect(**connection.settings("cli", None, overrides)), CONNECT_SECONDS)
    except (BadConfiguration, RuntimeError, OSError, TimeoutError) as error:
        problem = temporal_errors.classify(error)
        if problem.kind is Kind.UNREACHABLE:
            why_not = problem.detail or "no response"
            raise OpsError(
                f"cannot reach Temporal at {address}: {why_not}; is it running? see: rehome stack status"
            ) from error
        raise OpsError(temporal_errors.sentence(problem, address, target.namespace)) from error


async def queried(client: Client, cluster: str, kind: str) -> list[dict[str, Any]]:
    """Return the responses of a type's open runs to the query `progress`, of those that respond in time.

    Each query costs the worker a replay of the run: for a command that needs it once, not for a page that reads
    repeatedly, which uses `open_runs`.
    """
    found = [(run.workflow_id, run.run_id) async for run in describing.open_runs(client, cluster, kind)]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(workflow_id: str, run_id: str) -> dict[str, Any] | None:
        async with gate:
            return await progress_of(client, workflow_id, run_id)

    responses = await asyncio.gather(*(one(*run) for run in found))
    return [each for each in responses if each is not None]


async def progress_of(client: Client, workflow_id: str, run_id: str) -> dict[str, Any] | None:
    """Return one run's response to the query; None if none comes in time. It costs the worker a replay."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        response = await asyncio.wait_for(handle.query("progress"), PROGRESS_SECONDS)
    except Exception as error:
        # A query that the run rejects (it has just started, or is of another version) is no reason to show nothing.
        logging.getLogger(__name__).debug("no progress of %s: %s", workflow_id, error)
        return None
    return response if isinstance(response, dict) else None


async def start_move(
    client: Client, cluster: str, workflow_id: str, parameter: Any, kind: str = names.MOVE_REPLICA
) -> str:
    """Start one MoveReplica (or a run of another type); its run id. Raises `OpsError` when one with that id is open."""
    try:
        handle = await client.start_workflow(
            kind,
            parameter,
            id=workflow_id,
            task_queue=names.cluster_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
    except failures.WorkflowAlreadyStartedError as error:
        raise OpsError(f"a run with the id {workflow_id} is open already; see: rehome moves") from error
    return handle.first_execution_run_id or handle.result_run_id or ""


async def result_of(client: Client, workflow_id: str, run_id: str | None = None) -> Any:
    """Wait for a run's result. Raises `OpsError` with the reason of a run that did not complete: `RunCancelled` for one
    that was cancelled.
    """
    try:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).result()
    except WorkflowFailureError as error:
        kind = RunCancelled if isinstance(error.cause, failures.CancelledError) else OpsError
        raise kind(f"{workflow_id} {why(error)}") from error


def why(error: BaseException) -> str:
    """One sentence out of a chain of failures: the innermost that says something."""
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


async def cancel(client: Client, workflow_id: str, *, wait_seconds: float | None) -> str:
    """Ask a run to cancel; with `wait_seconds` wait until it has ended. The status it has then, in lower case."""
    handle = client.get_workflow_handle(workflow_id)
    try:
        before = await describing.describe_run(client, workflow_id)
        if before is None:
            raise OpsError(f"the run {workflow_id} does not exist; see: rehome moves")
        if before.ended is not None:
            raise OpsError(f"{workflow_id} cannot be cancelled: it has ended already ({before.ended.name.lower()})")
        await handle.cancel()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise OpsError(f"the run {workflow_id} does not exist; see: rehome moves") from error
        raise
    if wait_seconds is None:
        return "cancelling"
    try:
        await asyncio.wait_for(handle.result(), wait_seconds)
    except TimeoutError as error:
        raise OpsError(
            f"{workflow_id} was asked to cancel but is still open after {wait_seconds:.0f} s: "
            "it waits for its node to clean up; see: rehome moves"
        ) from error
    except WorkflowFailureError as error:
        if isinstance(error.cause, failures.CancelledError):
            return "cancelled"
        raise OpsError(f"{workflow_id} {why(error)}") from error
    return "completed"
