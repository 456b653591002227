"""Sends what a person requests to the runs: updates, and cancels. Each run has an outcome of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from temporalio import exceptions as failures
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import describing
from ops.cli import output
from ops.cli.control.selecting import Candidate, Matched, Scope, Wanted, listed, select, some, wanted
from ops.cli.moves import runs
from ops.cli.moves.open_runs import OpenRuns
from ops.cli.show.reading import parameter_of, partitions_of
from ops.stack.errors import ExitCode, OpsError, StillRunning
from storage_node.model.error_types import ErrorType
from storage_node.model.moves import Phase
from workflows.model import names

#: Seconds for the response to an update.
SECONDS = 30.0
#: Types of runs whose partitions are searched, besides the lanes of plans.
_TYPES = (names.MOVE_REPLICA, names.PARTITION_REASSIGNMENT)


class Verb(StrEnum):
    """What is requested of a run."""

    PAUSE = "pause"
    RESUME = "resume"
    THROTTLE = "throttle"
    RETARGET = "retarget"
    CANCEL = "cancel"


#: The update of each type of run for a verb; without one the run cannot carry it out. A cancel needs none.
UPDATES: Mapping[str, Mapping[Verb, str]] = {
    names.MOVE_REPLICA: {
        Verb.PAUSE: "pause",
        Verb.RESUME: "resume",
        Verb.THROTTLE: "set_throttle",
        Verb.RETARGET: "set_target",
    },
    names.PARTITION_REASSIGNMENT: {Verb.PAUSE: "pause", Verb.RESUME: "resume", Verb.THROTTLE: "set_throttle"},
    names.REASSIGNMENT_PLAN: {Verb.PAUSE: "pause", Verb.RESUME: "resume", Verb.CANCEL: "cancel"},
}
#: Types that end by a cancel of their run. The controller, leases and records of failures are not for people to cancel.
_CANCELLED = (*_TYPES, names.EVACUATE_DIRECTORY, names.THROTTLE_LEASE, names.EXPORT_HISTORY)


@dataclass(frozen=True, slots=True)
class Order:
    """A request: its verb, the rate in bytes per second (None: no limit), the directory, and for a cancel the seconds
    to wait for the runs' ends (None: not at all).
    """

    verb: Verb
    rate: int | None = None
    directory: str = ""
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a request to one run: `status` is what holds now, `code` is OK unless it was not carried out."""

    run: Matched
    status: str
    code: ExitCode = ExitCode.OK
    message: str = ""

    @property
    def line(self) -> str:
        """Return the line for people."""
        part = "" if self.run.whole else f" ({listed(self.run.partitions)})"
        return f"{self.run.run.workflow_id}{part}: {self.message or self.status}"

    def as_json(self) -> dict[str, Any]:
        """Return the row of --json."""
        return {
            "id": self.run.run.workflow_id,
            "run_id": self.run.run.run_id,
            "type": self.run.run.type,
            "partitions": [str(each) for each in self.run.partitions],
            "status": self.status,
            "code": self.code.word,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """The runs that are meant. `many`: they were searched by more than one partition's name.

    `unread` are the ids of open runs whose first event Temporal did not return: these may be meant too.
    """

    runs: tuple[Matched, ...]
    many: bool = False
    unread: tuple[str, ...] = ()

    @property
    def missed(self) -> list[str]:
        """Return a sentence for the runs that were not read."""
        if not self.unread:
            return []
        return [
            f"Temporal did not return which partitions are moved by {some(self.unread)}; try again, or pass a run's id"
        ]


async def by_id(client: Client, what: str) -> Found | None:
    """Return the run with this id; None if there is none. Raises RPCError."""
    if not names.is_workflow_id(what):
        return None
    described = await describing.describe_run(client, what)
    if described is None:
        return None
    kind = described.raw.workflow_execution_info.type.name
    held = partitions_of(kind, await parameter_of(client, what, described.run_id))
    return Found((Matched(Candidate(what, described.run_id, kind, frozenset(held)), tuple(sorted(held))),))


async def search(client: Client, cluster: str, of_plans: str, what: str) -> Found:
    """Return the open runs of a partition, a topic or a prefix, by the name of the cluster's controller and by that of
    its plans. Raises `OpsError` if there is none, `PartialAnswer` if none is among those that were read.
    """
    asked = wanted(what)
    candidates, unread = await _candidates(client, cluster, of_plans, asked)
    found = Found(tuple(select(asked, candidates)), asked.scope is not Scope.PARTITION, tuple(sorted(unread)))
    if not found.runs:
        output.need_whole(found.missed)
        raise OpsError(f"no open run moves {what}; see: rehome moves, rehome reassignments")
    return found


async def _candidates(client: Client, cluster: str, of_plans: str, asked: Wanted) -> tuple[list[Candidate], list[str]]:
    """Return the runs of one of the partitions, and the ids of those whose parameter was not read."""
    found: list[Candidate] = []
    unread: list[str] = []

    def add(workflow_id: str, run_id: str, kind: str, parameter: Any, plan: str = "") -> None:
        if parameter is None:
            unread.append(workflow_id)
            return
        held = partitions_of(kind, parameter)
        if any(asked.has(each) for each in held):
            found.append(Candidate(workflow_id, run_id, kind, frozenset(held), plan))

    for kind in _TYPES:
        for run in await OpenRuns(client, cluster, kind).read(lambda _: False):
            add(run.workflow_id, run.run_id, kind, run.parameter)
    lanes = [lane async for lane in describing.open_runs(client, names.plans_queue(of_plans), names.PLAN_LANE)]
    read = await runs.at_once(lambda lane: parameter_of(client, lane.workflow_id, lane.run_id), lanes)
    for lane, parameter in zip(lanes, read, strict=True):
        plan = str(parameter.get("plan", "")) if isinstance(parameter, Mapping) else ""
        add(lane.workflow_id, lane.run_id, names.PLAN_LANE, parameter, plan)
    return found, unread


async def send(client: Client, order: Order, found: Sequence[Matched]) -> list[Sent]:
    """Carry out a request for each run, at most `runs.AT_ONCE` at a time."""
    return await runs.at_once(lambda run: _one(client, order, run), found)


async def _one(client: Client, order: Order, run: Matched) -> Sent:
    verb, kind = order.verb, run.run.type
    if run.run.plan:
        plan = run.run.plan
        return _refused(run, f"it is a lane of the plan {plan}; use: rehome plan {verb} {shlex.quote(plan)}")
    update = UPDATES.get(kind, {}).get(verb)
    if verb is Verb.CANCEL and kind in _CANCELLED:
        return await _cancel(client, order, run)
    if update is None:
        return _refused(run, f"a run of {kind} has no {verb}")
    if verb is Verb.RETARGET:
        if not run.partitions:
            why = "Temporal did not return which partitions it moves; try again, or retarget them by their names"
            return _refused(run, why)
        return await _each(client, run, update, f"to {order.directory}", directory=order.directory)
    if not run.whole:
        return _refused(run, f"it also moves {listed(run.others)}; {verb} all of it by its id")
    given: Mapping[Verb, Sequence[Any]] = {
        Verb.THROTTLE: [{"rate": order.rate}],
        Verb.CANCEL: [{"rollback": False}],
    }
    done = {Verb.PAUSE: "paused", Verb.RESUME: "resumed", Verb.CANCEL: "cancelling"}
    return await _update(
        client, run, update, given.get(verb, ()), done.get(verb, "throttled" if order.rate else "unthrottled")
    )


async def _cancel(client: Client, order: Order, run: Matched) -> Sent:
    """Cancel a run and wait for its end; of a move of several replicas those that are meant, by updates."""
    if not run.whole:
        if run.run.type == names.MOVE_REPLICA:
            return await _each(client, run, "drop", "cancelled")
        return _refused(run, f"it also reassigns {listed(run.others)}; cancel all of it by its id")
    try:
        status = await runs.cancel(client, run.run.workflow_id, wait_seconds=order.wait)
    except StillRunning as error:
        return Sent(run, Phase.CANCELLING, error.exit_code, str(error))
    except OpsError as error:
        return Sent(run, "unchanged", error.exit_code, str(error))
    except RPCError as error:
        why = f"Temporal did not carry out the request: {error.message}; whether it takes effect is unknown; try again"
        return Sent(run, "unknown", ExitCode.TIMEOUT, why)
    completed = "completed before the cancel request arrived: the replica has moved"
    return Sent(run, status, message=completed if status == "completed" else "")


async def _each(client: Client, run: Matched, update: str, done: str, **more: Any) -> Sent:
    """Send an update for each replica that is meant; the first that is not carried out ends it."""
    changed = False
    for partition in run.partitions:
        argument = {"topic": partition.topic, "partition": partition.partition, **more}
        sent = await _update(client, run, update, [argument], done)
        if sent.code is not ExitCode.OK:
            return sent
        changed = changed or sent.status == done
    return Sent(run, done if changed else "unchanged", message="" if changed else f"{done} already")


async def _update(client: Client, run: Matched, update: str, arguments: Sequence[Any], done: str) -> Sent:
    handle = client.get_workflow_handle(run.run.workflow_id, run_id=run.run.run_id)
    try:
        await handle.execute_update(update, args=list(arguments), rpc_timeout=timedelta(seconds=SECONDS))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        message = cause.message if isinstance(cause, failures.ApplicationError) else str(cause)
        if isinstance(cause, failures.ApplicationError) and cause.type == ErrorType.NOTHING_TO_CHANGE:
            return Sent(run, "unchanged", message=message)
        return _refused(run, message)
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
        return _silent(run, update)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return _refused(run, "it has ended")
        return _silent(run, update)
    return Sent(run, done)


def _refused(run: Matched, why: str) -> Sent:
    return Sent(run, "unchanged", ExitCode.REFUSED, why)


def _silent(run: Matched, update: str) -> Sent:
    why = f"no response to {update} within {SECONDS:g} s; does a worker serve the run?"
    return Sent(run, "unknown", ExitCode.TIMEOUT, why)
