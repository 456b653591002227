"""rehome plan: checks, submits and controls plans, on any Kafka cluster."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from ops.cli import output
from ops.cli.moves.runs import with_temporal
from ops.cli.options import Bootstrap, Data, Json, group
from ops.cli.plan import following, generate, given, runs, submitting, view
from ops.cli.plan.kafka import CommandConfig, settings_of, view_of
from ops.cli.plan.place import Place, at_place
from ops.cli.target import resolve
from ops.stack.errors import OpsError, ResponseTimeout, UsageError
from workflows.model.plans.running import plan_results
from workflows.model.plans.verify import certificate
from workflows.model.run_results import Paused
from workflows.model.versioned import Versioned

app = group("Check, submit and control plans of reassignments, on any Kafka cluster.")
generate.register(app)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The JSON of kafka-reassign-partitions (KIP-113, KIP-455).")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The plan's name.")]

PlanDir = Annotated[
    Path | None,
    typer.Option(
        "--plan-dir",
        metavar="DIR",
        help="For a FILE above 1 MB, or 190 kB packed: the folder that the workers of plans share (default: "
        "REHOME_PLAN_DIR, then the stack's).",
        file_okay=False,
    ),
]


@app.command()
def check(
    file: File,
    command_config: CommandConfig = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Compare FILE with the cluster, and show what it would move: a dry run that changes nothing.

    Needs no Temporal and no worker. Fails with all problems at once.
    """
    planned = submitting.read(file)
    found = submitting.checked(planned, settings_of(resolve(data, bootstrap), command_config))
    submitting.need_possible(found, file)
    if json:
        output.print_json({"version": 1} | asdict(found))
    else:
        output.console().print(view.checked(found))


@app.command()
def verify(
    file: File,
    command_config: CommandConfig = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Compare the cluster with FILE as a plan's certificate does: replicas, directories, ISR, nothing under way.

    Needs no Temporal and no worker. Fails if anything differs.
    """
    planned, target = submitting.read(file), resolve(data, bootstrap)
    config = settings_of(target, command_config)
    found = certificate(planned, view_of(config))
    if json:
        output.print_json({"version": 1, "ok": found.ok, "differences": list(found.problems)})
    if not found.ok:
        listed = "".join(f"\n  {each}" for each in found.problems[:20])
        more = f"\n  ... and {len(found.problems) - 20} more" if len(found.problems) > 20 else ""
        raise OpsError(f"the cluster differs from {file}:{listed}{more}")
    if not json:
        typer.echo(f"the cluster agrees with {file}: {len(planned.partitions)} partitions compared")


@app.command()
@at_place
def submit(
    place: Place,
    file: File,
    name: Annotated[
        str | None, typer.Option("--name", help="The plan's name (default: the file's and the time).")
    ] = None,
    throttle_between_brokers: given.BetweenBrokers = None,
    throttle_between_directories: given.BetweenDirectories = None,
    slots_per_disk: given.SlotsPerDisk = None,
    window: given.Window = None,
    deadline: given.Deadline = None,
    approval: Annotated[
        str | None, typer.Option(metavar="WHO", help="none, required, or two_persons: wait for rehome plan approve.")
    ] = None,
    priority: given.Priority = None,
    alerts: given.Alerts = None,
    health_gate: given.HealthGate = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the plan ends; fail if it does.")] = False,
    command_config: CommandConfig = None,
    plan_dir: PlanDir = None,
    json: Json = False,
) -> None:
    """Check FILE, and start it as a durable run. A large FILE is stored in --plan-dir, where the workers read it.

    The run survives this command, its workers, Temporal and the brokers. A plan of the same name that is open is left
    alone.
    """
    chosen_options = given.chosen(
        throttle_between_brokers=throttle_between_brokers,
        throttle_between_directories=throttle_between_directories,
        slots_per_disk=slots_per_disk,
        window=window,
        deadline=deadline,
        approval=approval,
        priority=priority,
        alerts=alerts,
        health_gate=health_gate,
    )
    planned = submitting.with_options(submitting.read(file), chosen_options)
    target = place.target
    found = submitting.checked(planned, settings_of(target, command_config))
    submitting.need_possible(found, file)
    handed_over = submitting.handed_over(planned, file, submitting.folder_of(target, plan_dir))
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    chosen = name or f"{file.stem}-{stamp}"
    progress = submitting.start(target, place.cluster, chosen, planned, found.cluster_id, handed_over)
    submitting.report(target, chosen, progress, wait=wait, as_json=json)


@app.command()
@at_place
def show(
    place: Place,
    name: Name,
    json: Json = False,
) -> None:
    """Show a plan: phase, bytes, percent, rate and time to go, what holds it, and what failed.

    The figures are also those of each move under way, and of the disks and brokers that these use.
    """
    workflow_id = place.plan(name)
    found = with_temporal(place.target, lambda client: runs.now(client, workflow_id))
    if found is None:
        raise ResponseTimeout(f"no worker responds for {workflow_id}; is one running?")
    progress, figures = found
    if json:
        output.print_json(asdict(progress) | {"now": asdict(figures)})
    else:
        output.console().print(view.shown(progress, figures, time.time()))


@app.command("list")
@at_place
def list_plans(
    place: Place,
    every: Annotated[bool, typer.Option("--all", help="Plans that have ended as well.")] = False,
    json: Json = False,
) -> None:
    """List the cluster's plans."""
    target, of_cluster = place.target, place.cluster
    found = with_temporal(target, lambda client: runs.listed(client, of_cluster, every=every))
    rows = [[each.name, each.status, f"{datetime.fromtimestamp(each.started):%Y-%m-%d %H:%M:%S}"] for each in found]
    output.show([asdict(each) for each in found], json, ("plan", "status", "started"), rows, "no plans")


@app.command()
@at_place
def watch(
    place: Place,
    name: Name,
    json: Json = False,
) -> None:
    """Show a plan's progress until it ends; Ctrl-C leaves the plan as it is."""
    workflow_id = place.plan(name)
    following.until_ended(place.target, workflow_id, json)


@app.command()
@at_place
def approve(
    place: Place,
    name: Name,
    by: Annotated[str | None, typer.Option("--by", help="Who approves (default: your user and host).")] = None,
    json: Json = False,
) -> None:
    """Approve a plan that waits for it."""
    _update(place, name, "approve", plan_results.PlanApproved, {"by": by or runs.me()}, json)


@app.command()
@at_place
def pause(
    place: Place,
    name: Name,
    cancel_moves: Annotated[
        bool, typer.Option("--cancel-moves", help="Cancel the moves under way; they begin again on resume.")
    ] = False,
    json: Json = False,
) -> None:
    """Begin no further moves; those under way finish."""
    mode = {"mode": "cancel" if cancel_moves else "finish"}
    _update(place, name, "pause", plan_results.PlanPaused, mode, json)


@app.command()
@at_place
def resume(
    place: Place,
    name: Name,
    json: Json = False,
) -> None:
    """Resume a paused plan."""
    _update(place, name, "resume", Paused, None, json)


@app.command()
@at_place
def cancel(
    place: Place,
    name: Name,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Take what is done back as well, directories included.")
    ] = False,
    json: Json = False,
) -> None:
    """Cancel a plan: the moves under way are cancelled, those that are done stay."""
    argument = {"rollback": rollback}
    _update(place, name, "cancel", plan_results.PlanCancelling, argument, json)


@app.command()
@at_place
def rollback(
    place: Place,
    name: Name,
    json: Json = False,
) -> None:
    """Take a plan back: cancel it if it is open, then move everything to where it was before, directories included.

    A plan that has ended is taken back by a plan of its own, NAME-rollback.
    """
    workflow_id, of_cluster = place.plan(name), place.cluster
    if with_temporal(place.target, lambda client: runs.is_open(client, workflow_id)):
        _update(place, name, "cancel", plan_results.PlanCancelling, {"rollback": True}, json)
        return
    back = f"{name.rpartition('/')[2]}-rollback"

    async def work(client: Client) -> plan_results.PlanProgress:
        ended = await runs.result(client, workflow_id)
        if not ended.rollback_ref:
            raise OpsError(f"the plan {workflow_id} has moved nothing that could be taken back")
        parameter = {"version": 1, "plan": ended.rollback_ref, "undoes": ended.plan, "submitted_by": runs.me()}
        return await runs.checked(client, await runs.submit(client, of_cluster, back, parameter), of_cluster)

    progress = with_temporal(place.target, work)
    if json:
        output.print_json({"name": back} | asdict(progress))
    else:
        if progress.check is not None:
            output.console().print(view.checked(progress.check))
        typer.echo(f"submitted {progress.workflow_id}; watch it with: rehome plan watch {shlex.quote(back)}")


@app.command()
@at_place
def skip(
    place: Place,
    name: Name,
    moves: Annotated[list[str], typer.Argument(metavar="MOVE...", help="Keys of moves: orders-0, or orders-0@1.")],
    json: Json = False,
) -> None:
    """Leave moves out that have not begun."""
    _update(place, name, "skip", plan_results.PlanSkipped, {"moves": moves}, json)


@app.command()
@at_place
def retry(
    place: Place,
    name: Name,
    json: Json = False,
) -> None:
    """Try the moves that failed once more."""
    _update(place, name, "retry", plan_results.PlanRetried, None, json)


@app.command("set")
@at_place
def set_options(
    place: Place,
    name: Name,
    throttle_between_brokers: given.BetweenBrokers = None,
    throttle_between_directories: given.BetweenDirectories = None,
    slots_per_disk: given.SlotsPerDisk = None,
    slots_per_broker: given.SlotsPerBroker = None,
    slots_cluster: given.SlotsOfCluster = None,
    priority: given.Priority = None,
    window: given.Window = None,
    deadline: given.Deadline = None,
    health_gate: given.HealthGate = None,
    json: Json = False,
) -> None:
    """Change a plan's throttles, slots, priority, window, deadline or health gate while it runs."""
    changes = given.chosen(
        throttle_between_brokers=throttle_between_brokers,
        throttle_between_directories=throttle_between_directories,
        slots_per_disk=slots_per_disk,
        slots_per_broker=slots_per_broker,
        slots_cluster=slots_cluster,
        priority=priority,
        window=window,
        deadline=deadline,
        health_gate=health_gate,
    )
    if not changes:
        raise UsageError("nothing to set; see: rehome plan set --help")
    _update(place, name, "set_options", plan_results.PlanOptionsSet, changes, json)


@app.command()
@at_place
def throttle(
    place: Place,
    name: Name,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Bytes per second and broker, such as 20MB; none.")],
    between: Annotated[
        given.Between | None,
        typer.Option("--between", help="Only moves between brokers, or between the directories of one; both."),
    ] = None,
    json: Json = False,
) -> None:
    """Set a plan's throttle while it runs: it changes at once, also for the moves under way.

    What was configured before the plan is restored at its end all the same.
    """
    _set(place, name, "set_throttle", given.throttle(rate, between), json)


@app.command()
@at_place
def slots(
    place: Place,
    name: Name,
    per_disk: given.PerDisk = None,
    per_broker: given.PerBroker = None,
    whole_cluster: given.WholeCluster = None,
    json: Json = False,
) -> None:
    """Set how many lanes of a plan use a disk, a broker and the cluster at a time: of what begins next.

    Moves under way continue, also if there are more of them.
    """
    _set(place, name, "set_slots", given.slots(per_disk=per_disk, per_broker=per_broker, cluster=whole_cluster), json)


# --- what the commands share


def _set(place: Place, name: str, update: str, argument: Mapping[str, Any], json: bool) -> None:
    workflow_id, kind = place.plan(name), plan_results.PlanOptionsSet
    found = with_temporal(place.target, lambda client: runs.update(client, workflow_id, update, kind, dict(argument)))
    if json:
        output.print_json(asdict(found))
    else:
        typer.echo(f"{workflow_id}: {view.limits(found.options)}")


def _update(
    place: Place, name: str, update: str, kind: type[Versioned], argument: Mapping[str, Any] | None, json: bool
) -> None:
    workflow_id = place.plan(name)
    arguments = () if argument is None else (dict(argument),)
    found = asdict(
        with_temporal(place.target, lambda client: runs.update(client, workflow_id, update, kind, *arguments))
    )
    if json:
        output.print_json(found)
    else:
        del found["format_version"]
        typer.echo(f"{workflow_id}: {_said(found)}")


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')}: {_said(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
