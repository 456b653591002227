"""`rehome reassign FILE` and `rehome move --file FILE` as ways to submit a plan.

They submit one where a worker serves the cluster's plans and no controller of rehome does, which would run the file's
moves durably itself; with --plan also there. Elsewhere the command requests the changes from the brokers itself.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from activities.temporal import describing
from ops.cli import output
from ops.cli.moves.runs import with_temporal
from ops.cli.plan import following, runs, submitting
from ops.cli.plan.kafka import settings_of
from ops.cli.plan.place import Place
from ops.cli.target import Target
from ops.stack.errors import OpsError, ResponseTimeout
from workflows.model import names
from workflows.model.plans import document
from workflows.model.plans.document import PlanDocument
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running.plan_results import PlanCancelling, PlanOptionsSet

AsPlan = Annotated[
    bool | None,
    typer.Option(
        "--plan/--no-plan",
        help="Submit FILE as a plan, a durable run, or not (default: where a worker serves plans of a cluster that has "
        "no controller of rehome).",
        show_default=False,
    ),
]

#: Seconds for which a poll of a worker counts: each lasts a minute at most.
POLLED = 70.0


@dataclass(frozen=True, slots=True)
class Served:
    """Whether workers poll the queue of a cluster's plans, and that of its controller."""

    plans: bool
    controller: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to submit a plan, and the reason why not; "" where the user requested none."""

    plan: bool
    why_not: str = ""


def decide(requested: bool | None, served: Served | str) -> Choice:
    """Decide whether to submit a plan. `served` is a sentence where Temporal is unknown or does not respond.

    Raises `OpsError` if a plan was requested and cannot be submitted.
    """
    if requested is False:
        return Choice(False)
    if isinstance(served, Served) and served.plans and (requested or not served.controller):
        return Choice(True)
    if isinstance(served, Served):
        if served.controller and not requested:
            return Choice(False)  # Its runs are durable as well.
        served = "no worker serves the cluster's plans; start one with: worker.py orchestrator --command-config FILE"
    if requested:
        raise OpsError(f"no plan was submitted: {served}")
    return Choice(False, f"this is not a plan that outlives the command: {served}")


def choose(place: Place, file: Path, requested: bool | None) -> Choice:
    """Decide for a file: if its plan is open, this is the plan, whether a worker serves it now or not.

    Raises `OpsError` if a plan was requested and cannot be submitted. Unless a plan was ruled out, also if Temporal
    does not respond: the file's plan may wait for its approval or its window, and the brokers would begin at once what
    it holds back. Storage nodes begin nothing without Temporal, where their controller runs.
    """
    if requested is False:
        return decide(requested, "")
    target = place.target
    if not target.temporal_address:
        return decide(requested, "no Temporal is known; pass --temporal-address HOST:PORT")
    planned, cluster = submitting.read(file), place.cluster
    workflow_id = names.plan_id(cluster, name_of(file, planned))

    async def look(client: Client) -> Served | None:
        return None if await _is_open(client, workflow_id) else await served_by(client, cluster, target.cluster)

    try:
        served = with_temporal(target, look)
    except OpsError as error:
        if requested:
            raise
        if target.storage_nodes:
            return decide(requested, str(error))
        raise type(error)(
            f"nothing was changed, since a plan of {file} may be open: {error}; or pass --no-plan, which requests "
            "the changes from the brokers whether a plan is open or not",
            where=error.where,
        ) from error
    return Choice(True) if served is None else decide(requested, served)


async def served_by(client: Client, plans: str, controller: str) -> Served:
    """Return which workers poll a cluster's queues, by its plans' name and its controller's. Raises RPCError.

    The queue of a controller alone does not prove one: the exports of a Kafka cluster's plans are polled for there too.
    """
    of_plans, of_controller, controlled = await asyncio.gather(
        _polled(client, names.plans_queue(plans)),
        _polled(client, names.cluster_queue(controller)),
        _is_open(client, names.cluster_id(controller)),
    )
    return Served(of_plans, of_controller and controlled)


async def _polled(client: Client, queue: str) -> bool:
    found = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        retry=True,
    )
    since = time.time() - POLLED
    return any(each.last_access_time.ToMicroseconds() / 1e6 >= since for each in found.pollers)


def name_of(file: Path, planned: PlanDocument) -> str:
    """Return the name of a file's plan: the same for all calls with these partitions, so that the second finds it."""
    text = document.to_text(PlanDocument(planned.partitions, PlanOptions()))
    return f"{file.stem}-{document.sha256(text)[:8]}"


def submit(
    place: Place,
    file: Path,
    options: Mapping[str, Any],
    *,
    directories_only: bool = False,
    wait: bool = False,
    as_json: bool = False,
) -> None:
    """Submit the file as a plan with these options; a call while that plan is open sets them, and follows it.

    With `directories_only` a file that would change a partition's replicas, or their order, is refused: here, and by
    the plan's own check, which may come hours later.
    """
    only = {"directories_only": True} if directories_only else {}
    planned = submitting.with_options(submitting.read(file), {**options, **only})
    target, name = place.target, name_of(file, planned)
    cluster = place.cluster
    workflow_id = names.plan_id(cluster, name)
    if with_temporal(target, lambda client: _is_open(client, workflow_id)):
        _again(target, name, workflow_id, options, wait=wait, as_json=as_json)
        return
    settings = settings_of(target, None)
    found = submitting.checked(planned, settings)
    submitting.need_possible(found, file)
    handed_over = submitting.handed_over(planned, file, submitting.folder_of(target, None))
    progress = submitting.start(target, cluster, name, planned, found.cluster_id, handed_over)
    submitting.report(target, name, progress, wait=wait, as_json=as_json)


def _again(
    target: Target, name: str, workflow_id: str, options: Mapping[str, Any], *, wait: bool, as_json: bool
) -> None:
    output.say(f"the plan {name} of this file is open already")
    if options:
        with_temporal(
            target, lambda client: runs.update(client, workflow_id, "set_options", PlanOptionsSet, dict(options))
        )
    if wait:
        following.until_ended(target, workflow_id, as_json)
        return
    progress = with_temporal(target, lambda client: runs.progress(client, workflow_id))
    if progress is None:
        raise ResponseTimeout(f"no worker responds for {workflow_id}; is one running?")
    if as_json:
        output.print_json({"name": name} | asdict(progress))
    else:
        typer.echo(f"watch it with: rehome plan watch {shlex.quote(name)}")


def cancel(place: Place, file: Path, *, as_json: bool) -> bool:
    """Cancel the file's plan: what is under way goes back, what is done stays. Return whether it was open."""
    target, name = place.target, name_of(file, submitting.read(file))
    workflow_id = names.plan_id(place.cluster, name)
    if not with_temporal(target, lambda client: _is_open(client, workflow_id)):
        return False
    found = with_temporal(
        target, lambda client: runs.update(client, workflow_id, "cancel", PlanCancelling, {"rollback": False})
    )
    if as_json:
        output.print_json({"name": name} | asdict(found))
    else:
        typer.echo(f"{workflow_id}: cancelling; watch it with: rehome plan watch {shlex.quote(name)}")
    return True


async def _is_open(client: Client, workflow_id: str) -> bool:
    run = await describing.describe_run(client, workflow_id)
    return run is not None and run.ended is None
