"""Requests to plans' runs: start, query, update, list; each failure is one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import shlex
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from temporalio import exceptions as failures
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import describing
from ops.cli import output, waits
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves.runs import UNREADABLE, failed_as, unreadable, why
from ops.cli.plan.figures import PlanFigures, figures_of
from ops.cli.target import Target
from ops.stack.errors import OpsError, Refused, ResponseTimeout, StillRunning
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows.model import names
from workflows.model.plans import under_way
from workflows.model.plans.running import calls
from workflows.model.plans.running.plan_results import PlanProgress, PlanResult
from workflows.model.plans.running.run import PlanPhase
from workflows.model.plans.under_way import LaneReport
from workflows.model.versioned import Versioned

Returned = TypeVar("Returned", bound=Versioned)

#: Seconds after which a plan that no worker has checked is reported as one without a worker.
WORKER_PATIENCE = 20.0
#: Seconds after which a command no longer waits until a plan has been compared with the cluster.
CHECK_PATIENCE = 600.0
QUERY_SECONDS = 10.0
UPDATE_SECONDS = 30.0
#: Open lanes whose figures one command reads, and how many at a time.
MOST_LANES, LANES_AT_ONCE = 200, 16
#: Seconds for the response of a broker.
KAFKA_SECONDS = 15.0


def cluster_of(target: Target, named: str | None, seconds: float = KAFKA_SECONDS) -> str:
    """Return the cluster of the plans: by option, environment or stack, else Kafka's own id. Raises `OpsError` if no
    broker responds within `seconds`.
    """
    if named or target.stack is not None or target.cluster != "rehome":
        return target.cluster
    with KafkaAdmin(target.need_kafka(), seconds) as admin:
        return admin.cluster()[0]


def me() -> str:
    """Return who submits or approves, unless an option says so."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


async def submit(client: Client, cluster: str, name: str, parameter: Mapping[str, Any]) -> str:
    """Start a plan's run; return its workflow id. Raises `OpsError` if one of that name is open."""
    workflow_id = names.plan_id(cluster, name)
    try:
        await client.start_workflow(
            names.REASSIGNMENT_PLAN,
            dict(parameter),
            id=workflow_id,
            task_queue=names.plans_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=f"plan {name}, submitted by {parameter.get('submitted_by') or 'an unnamed person'}",
        )
    except failures.WorkflowAlreadyStartedError as error:
        raise Refused(f"the plan {name} is open already; see: rehome plan show {shlex.quote(name)}") from error
    return workflow_id


async def checked(client: Client, workflow_id: str, cluster: str) -> PlanProgress:
    """Wait until the plan has been compared with the cluster; return its progress.

    Raises `OpsError` with the problems of a plan that is refused, or if no worker serves the plan, or the comparison
    takes longer than `CHECK_PATIENCE`.
    """
    begun, due = time.monotonic(), waits.Due()
    plan = workflow_id.removeprefix(names.plan_id(cluster, ""))
    while True:
        found = await progress(client, workflow_id)
        if found is not None and found.phase not in ("", PlanPhase.CHECKING):
            return found
        run = await describing.describe_run(client, workflow_id)
        if run is not None and run.ended is not None and run.ended is not WorkflowExecutionStatus.COMPLETED:
            await result(client, workflow_id)
        if found is not None and run is not None and run.ended is not None:
            return found
        passed, quoted = time.monotonic() - begun, shlex.quote(plan)
        if passed >= WORKER_PATIENCE and found is None:
            raise StillRunning(
                f"the plan is submitted as {workflow_id}, but no worker checks it: is one running? start it with: "
                f"worker.py orchestrator --command-config FILE --cluster {cluster}"
            )
        if passed >= CHECK_PATIENCE:
            raise StillRunning(
                f"the plan is submitted as {workflow_id}, and its worker has not compared it with the cluster within "
                f"{CHECK_PATIENCE:g} s: do the brokers respond to the worker? watch it with: rehome plan watch "
                f"{quoted}, or cancel it with: rehome plan cancel {quoted}"
            )
        if due():
            output.say(
                f"the plan {plan} is being compared with the cluster ({output.duration(passed)}); Ctrl-C leaves it: "
                f"watch it then with: rehome plan watch {quoted}, or cancel it with: rehome plan cancel {quoted}"
            )
        await asyncio.sleep(0.2)


def silent(workflow_id: str) -> str:
    """Return a sentence about a run for which no worker responds."""
    return f"{workflow_id} is open, but no worker responds for it: is one running? Ctrl-C ends only this command"


async def progress(client: Client, workflow_id: str) -> PlanProgress | None:
    """Return a plan's progress; None if no worker responds. Raises `OpsError` for a plan that does not exist."""
    return await progress_of(client, workflow_id, PlanProgress)


async def progress_of(client: Client, workflow_id: str, kind: type[Returned]) -> Returned | None:
    """Return a run's response to `progress`; None if no worker responds. Raises `OpsError` for a run that does not
    exist, and for a response that is not readable.
    """
    handle = client.get_workflow_handle(workflow_id)
    try:
        found: Returned = await handle.query("progress", result_type=kind, rpc_timeout=timedelta(seconds=QUERY_SECONDS))
    except UNREADABLE as error:
        raise OpsError(unreadable(f"the progress of {workflow_id}", error)) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise OpsError(f"the plan {workflow_id} does not exist; see: rehome plan list") from error
        return None
    except failures.TemporalError:
        return None
    return found


async def lanes(client: Client, workflow_id: str, numbers: Iterable[int]) -> dict[int, LaneReport]:
    """Return how far the open lanes of a plan are, by the last heartbeats of their steps on the server: that costs the
    runs no query. Of a lane whose step has reported nothing yet there is none; at most `MOST_LANES` are read.
    """
    gate = asyncio.Semaphore(LANES_AT_ONCE)

    async def one(number: int) -> tuple[int, LaneReport | None]:
        async with gate:
            try:
                run = await describing.describe_run(
                    client, names.plan_lane_id(workflow_id, number), timeout=timedelta(seconds=QUERY_SECONDS)
                )
            except RPCError:
                return number, None
        for pending in run.raw.pending_activities if run is not None else ():
            if pending.activity_type.name == calls.FOLLOW_MOVES and pending.heartbeat_details.payloads:
                (details, *_) = await client.data_converter.decode(pending.heartbeat_details.payloads)
                with contextlib.suppress(BadField):  # A worker of another version.
                    return number, under_way.read(details)
        return number, None

    found = await asyncio.gather(*(one(number) for number in islice(numbers, MOST_LANES)))
    return {number: report for number, report in found if report is not None}


async def now(client: Client, workflow_id: str) -> tuple[PlanProgress, PlanFigures] | None:
    """Return a plan's progress, and the figures of its moves under way; None if no worker responds. Raises `OpsError`
    for a plan that does not exist.
    """
    found = await progress(client, workflow_id)
    if found is None:
        return None
    reports = await lanes(client, workflow_id, [lane.lane for lane in found.lanes_running])
    return found, figures_of(found, reports, time.time())


async def is_open(client: Client, workflow_id: str) -> bool:
    """Return whether a plan has not ended. Raises `OpsError` for one that does not exist."""
    run = await describing.describe_run(client, workflow_id)
    if run is None:
        raise OpsError(f"the plan {workflow_id} does not exist; see: rehome plan list")
    return run.ended is None


async def update(
    client: Client, workflow_id: str, name: str, kind: type[Returned], *argument: Any, of: str = "the plan"
) -> Returned:
    """Send an update; return its response. Raises `OpsError` with the reason why the run (`of`) rejects it."""
    handle = client.get_workflow_handle(workflow_id)
    try:
        found: Returned = await handle.execute_update(
            name, *argument, result_type=kind, rpc_timeout=timedelta(seconds=UPDATE_SECONDS)
        )
    except UNREADABLE as error:
        raise OpsError(unreadable(f"the response of {workflow_id} to {name}", error)) from error
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        message = cause.message if isinstance(cause, failures.ApplicationError) else str(cause)
        raise Refused(f"{of} rejects it: {message}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise _no_response(name, f"does a worker serve {of}?") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise OpsError(f"the plan {workflow_id} does not exist or has ended; see: rehome plan list") from error
        raise _no_response(name, f"{error.message}; try again") from error
    except TimeoutError as error:
        raise _no_response(name, f"does a worker serve {of}?") from error
    return found


def _no_response(name: str, why_not: str) -> ResponseTimeout:
    return ResponseTimeout(f"no response to {name} within {UPDATE_SECONDS:g} s; {why_not}")


async def result(client: Client, workflow_id: str) -> PlanResult:
    """Wait for a plan's result. Raises `OpsError` with the reason of a run that fails, and for an unreadable result."""
    try:
        found: PlanResult = await client.get_workflow_handle(workflow_id, result_type=PlanResult).result()
    except UNREADABLE as error:
        raise OpsError(unreadable(f"the result of {workflow_id}", error)) from error
    except WorkflowFailureError as error:
        failure = Refused if failed_as(error) == ErrorType.PLAN_REFUSED else OpsError
        raise failure(f"the plan {workflow_id} {why(error)}", where=workflow_id) from error
    return found


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """A plan's run in the server's list; times are epoch seconds, `closed` is None for an open one."""

    name: str
    workflow_id: str
    status: str
    started: float
    closed: float | None


async def listed(client: Client, cluster: str, *, every: bool) -> list[ListedPlan]:
    """Return the cluster's plans, the newest first; only open ones unless `every`."""
    query = f'WorkflowType="{names.REASSIGNMENT_PLAN}" AND TaskQueue="{names.plans_queue(cluster)}"'
    if not every:
        query += " AND CloseTime IS NULL"
    prefix = names.plan_id(cluster, "")
    found: dict[str, ListedPlan] = {}
    async for run in client.list_workflows(query):
        if run.status is WorkflowExecutionStatus.CONTINUED_AS_NEW or run.id in found:
            continue
        found[run.id] = ListedPlan(
            run.id.removeprefix(prefix),
            run.id,
            run.status.name.lower() if run.status else "unknown",
            run.start_time.timestamp(),
            run.close_time.timestamp() if run.close_time else None,
        )
    return sorted(found.values(), key=lambda each: -each.started)
