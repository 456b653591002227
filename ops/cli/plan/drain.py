"""rehome drain: empties a log directory of a broker, and says when its disk can be pulled."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from temporalio import exceptions as failures
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from activities.temporal import describing, search_attributes
from ops.cli import output, waits
from ops.cli.moves.runs import UNREADABLE, Session, failed_as, unreadable, why
from ops.cli.options import Json
from ops.cli.plan import given, runs
from ops.cli.plan.place import Place, at_place
from ops.stack.errors import OpsError, Refused, StillRunning, UsageError
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows.model import names
from workflows.model.move.parameter import absolute
from workflows.model.phases import ENDED
from workflows.model.plans.running.plan_results import EvacuationPhase, EvacuationProgress, EvacuationResult

#: Phases in which the cluster may still refuse the evacuation; nothing is changed in them.
_UNDECIDED = ("", EvacuationPhase.PLANNING)
#: Seconds between two queries.
LOOK = 1.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(drain)


@at_place
def drain(
    place: Place,
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, help="The broker's id.")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="One of its log.dirs.")],
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the directory is empty.")] = False,
    throttle_between_directories: given.BetweenDirectories = None,
    throttle_between_brokers: given.BetweenBrokers = None,
    slots_per_disk: given.SlotsPerDisk = None,
    window: given.Window = None,
    deadline: given.Deadline = None,
    priority: given.Priority = None,
    alerts: given.Alerts = None,
    health_gate: given.HealthGate = None,
    json: Json = False,
) -> None:
    """Empty the log directory DIR of BROKER as a durable run, so that its disk can be pulled.

    Its replicas go to the broker's other directories, or to other brokers. The run survives this command; a second call
    finds it, and waits for it with --wait.
    """
    path = _directory(directory)
    chosen = given.chosen(
        throttle_between_directories=throttle_between_directories,
        throttle_between_brokers=throttle_between_brokers,
        slots_per_disk=slots_per_disk,
        window=window,
        deadline=deadline,
        priority=priority,
        alerts=alerts,
        health_gate=health_gate,
    )
    given.read(chosen)  # so that a mistake is reported before a run is started
    parameter = {"version": 1, "broker": broker, "directory": path, "options": chosen}
    target, of_cluster = place.target, place.cluster
    workflow_id = names.evacuation_id(of_cluster, broker, path)
    if not names.is_workflow_id(workflow_id):
        raise UsageError(f"{path} is too long: the run's id would have more than {names.LONGEST_ID} bytes")
    with Session(target) as session:
        started = session.run(lambda client: _start(client, workflow_id, of_cluster, parameter))
        _announce(workflow_id, started, with_options=bool(chosen))
        progress, result = session.run(lambda client: _accepted(client, workflow_id, of_cluster))
        if not wait:
            if json:
                output.print_json({"started": started, "workflow_id": workflow_id} | _as_json(progress, result))
            elif result is not None:
                _print(result)
            elif progress is not None:
                end = f"rehome drain {broker} {shlex.quote(path)} --wait"
                typer.echo(f"{_summary(progress)}; wait for its end with: {end}")
            return
        _follow(session, workflow_id)
        result = session.run(lambda client: _result(client, workflow_id))
    if json:
        output.print_json(asdict(result))
        return
    _print(result)


def _as_json(progress: EvacuationProgress | None, result: EvacuationResult | None) -> dict[str, Any]:
    """Return the progress, and the result of a run that has ended."""
    found = {} if progress is None else asdict(progress)
    return found if result is None else found | {"phase": ENDED, "result": asdict(result)}


def _print(result: EvacuationResult) -> None:
    for line in certified(result):
        typer.echo(line)


def _directory(text: str) -> str:
    try:
        return absolute(text, "DIR", any_allowed=False)
    except BadField as problem:
        raise UsageError(f"{text!r} is not a valid log directory: {problem}") from problem


async def _start(client: Client, workflow_id: str, cluster: str, parameter: Mapping[str, Any]) -> bool:
    """Start the run; return False if one of that directory is open already."""
    await search_attributes.register(client)
    try:
        await client.start_workflow(
            names.EVACUATE_DIRECTORY,
            dict(parameter),
            id=workflow_id,
            task_queue=names.plans_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=f"empty {parameter['directory']} of broker {parameter['broker']}",
        )
    except failures.WorkflowAlreadyStartedError:
        return False
    return True


def _announce(workflow_id: str, started: bool, *, with_options: bool) -> None:
    if started:
        output.say(f"started {workflow_id}")
        return
    output.say(f"an evacuation of the directory is open already: {workflow_id}")
    if with_options:
        output.say("it keeps its own options: those of this call are not applied")


async def _accepted(
    client: Client, workflow_id: str, cluster: str
) -> tuple[EvacuationProgress | None, EvacuationResult | None]:
    """Return the run's progress once the cluster has accepted the evacuation, and its result if it has ended.

    Raises `OpsError` with the reason of one that is refused, or if no worker serves the run.
    """
    until = time.monotonic() + runs.WORKER_PATIENCE
    while True:
        found = await runs.progress_of(client, workflow_id, EvacuationProgress)
        if found is not None and (found.phase not in _UNDECIDED or found.rounds):
            return found, await _result(client, workflow_id) if found.phase == ENDED else None
        run = await describing.describe_run(client, workflow_id)
        if run is not None and run.ended is not None:
            return found, await _result(client, workflow_id)
        if time.monotonic() >= until:
            if found is not None:
                return found, None  # The cluster is slow to respond: the run repeats the request.
            raise StillRunning(
                f"the evacuation is started as {workflow_id}, but no worker serves it: is one running? start it with: "
                f"worker.py orchestrator --command-config FILE --cluster {cluster}"
            )
        await asyncio.sleep(0.2)


def _follow(session: Session, workflow_id: str) -> None:
    """Print the progress to standard error whenever it changes, and every 30 seconds, until the run has ended."""
    shown, due = "", waits.Due()
    while True:
        run = session.run(lambda client: describing.describe_run(client, workflow_id))
        if run is None or run.ended is not None:
            return
        progress = session.run(lambda client: runs.progress_of(client, workflow_id, EvacuationProgress))
        line = _summary(progress) if progress is not None else shown
        if line != shown or due():
            output.say(line if progress is not None else runs.silent(workflow_id))
            due.printed()
            shown = line
        time.sleep(LOOK)


def _summary(progress: EvacuationProgress) -> str:
    """Return one line about an evacuation."""
    phase = "cancelling" if progress.cancelling else progress.phase
    line = f"{phase}: round {progress.rounds}"
    if progress.plan:
        line += f", plan {progress.plan}"
    line += f"; {progress.moved} moved, {output.size(progress.bytes_copied)}"
    if progress.left:
        line += f"; left: {progress.left[0]}"
    return line


async def _result(client: Client, workflow_id: str) -> EvacuationResult:
    """Wait for the certificate. Raises `OpsError` with the reason of a run that fails, and for an unreadable result."""
    handle = client.get_workflow_handle(workflow_id, result_type=EvacuationResult)
    try:
        found: EvacuationResult = await handle.result()
    except UNREADABLE as error:
        raise OpsError(unreadable(f"the result of {workflow_id}", error)) from error
    except WorkflowFailureError as error:
        failure = Refused if failed_as(error) == ErrorType.PLAN_REFUSED else OpsError
        raise failure(f"{workflow_id} {why(error)}; the directory is not certified as empty") from error
    return found


def certified(result: EvacuationResult) -> list[str]:
    """Return what people read about an empty directory."""
    lines = [
        f"{result.moved} moved, {output.size(result.bytes_copied)}, in {result.rounds} "
        f"round{'' if result.rounds == 1 else 's'}",
        f"certificate: {result.certificate.path}",
        f"safe to pull: log directory {result.directory} of broker {result.broker} is empty",
    ]
    why = (
        "the cordon from before is restored"
        if result.cordoned
        else "the broker cannot cordon its directories (KIP-1066)"
    )
    lines.append(f"{why}: remove the directory from log.dirs before new replicas land there")
    return lines
