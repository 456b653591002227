"""rehome show: the timeline of one run, or the runs of a partition."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated

import typer
from temporalio.client import Client

from activities.temporal import describing
from ops.cli import output
from ops.cli.moves.move import as_replica
from ops.cli.moves.runs import with_temporal
from ops.cli.options import Json
from ops.cli.plan.place import Place, at_place
from ops.cli.show import reading, text
from ops.cli.show.reading import RunRow
from ops.cli.show.timeline import Timeline
from ops.stack.errors import OpsError
from storage_node.model.ids import TopicPartition
from workflows.model import names

#: The runs of a partition, the newest first, and whether all runs of the server were searched.
Runs = tuple[TopicPartition, list[RunRow], bool]


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("show")(show)


@at_place
def show(
    place: Place,
    what: Annotated[
        str,
        typer.Argument(metavar="ID|PARTITION", help="A workflow id, a plan's name, or a partition such as orders-3."),
    ],
    json: Json = False,
) -> None:
    """Show what has happened to a run: phases, steps with their attempts, updates, what it waits for, its outcome.

    Reads Temporal's server alone: no worker has to run. A partition shows its runs, the newest first.
    """
    found: Timeline | Runs | None = with_temporal(place.target, lambda client: _by_id(client, what))
    if found is None:
        of_plans = place.searched
        found = with_temporal(place.target, lambda client: _find(client, place.target.cluster, of_plans, what))
    if isinstance(found, Timeline):
        if json:
            output.print_json(found.as_json())
        else:
            for line in text.lines(found):
                typer.echo(line)
        return
    partition, rows, whole = found
    if json:
        value = {"version": 1, "partition": str(partition), "runs": [row.as_json() for row in rows], "complete": whole}
        output.print_json(value)
        return
    output.console().print(output.table(("run", "type", "status", "started", "took"), [_cells(row) for row in rows]))
    if not whole:
        output.say(f"the {reading.SEARCHED} newest runs of each type were searched")
    typer.echo(f"see one with: rehome show {shlex.quote(rows[0].id)}")


def _cells(row: RunRow) -> list[str]:
    took = output.duration(row.closed - row.started) if row.closed is not None else "-"
    return [row.id, row.type, row.status, f"{datetime.fromtimestamp(row.started):%Y-%m-%d %H:%M:%S}", took]


async def _by_id(client: Client, workflow_id: str) -> Timeline | None:
    """Return the run with this id; None if there is none."""
    if not names.is_workflow_id(workflow_id):
        return None
    described = await describing.describe_run(client, workflow_id)
    return None if described is None else await reading.read(client, described, workflow_id)


async def _find(client: Client, cluster: str, of_plans: str, what: str) -> Timeline | Runs:
    """Find the plan of this name, or the runs of this partition, by the name of the cluster's controller and by that of
    its plans. Raises `OpsError`.
    """
    plan = await _by_id(client, names.plan_id(of_plans, what))
    if plan is not None:
        return plan
    partition = as_replica(what)
    if partition is not None:
        rows, whole = await reading.runs_of(client, cluster, of_plans, partition)
        if rows:
            return partition, rows, whole
    runs = f", and no run of the partition {partition} was found" if partition is not None else ""
    raise OpsError(
        f"the run {what} does not exist{runs}; see: rehome moves, rehome reassignments, rehome plan list --all"
    )
