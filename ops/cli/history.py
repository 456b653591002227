"""rehome export, report: the histories as files, and what Spark makes of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from ops.cli import output, runs, spark
from ops.cli.options import Cluster, Data, Json, TemporalAddress
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from workflows.model import names

EXPORT_SECONDS = 300.0


def register(app: typer.Typer) -> None:
    """Add the two commands to the root of `rehome`."""
    app.command("export")(export)
    app.command("report")(report)


def export(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Its folder (default: DATA/export)."),
    ] = None,
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Export now what is new of the histories; prints the manifest. The controller's process writes the files."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)
    result = export_now(target, export_folder(target, to))
    if json:
        output.print_json(result)
        return
    typer.echo(
        f"exported {result['closed']} closed and {result['open']} open runs, {result['events']} events, "
        f"{output.size(result['bytes'])}"
    )
    typer.echo(f"manifest: {result['manifest'] or '-'}")


def report(
    export_dir: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Report on this export as it is, without exporting first."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes (default: beside the export).")
    ] = None,
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Export, let Spark make its tables, print the table of moves and write one HTML page."""
    if export_dir is not None:
        source = export_dir.expanduser().absolute()
        if not source.is_dir():
            raise UsageError(f"--export {export_dir} is no folder; export first with: rehome export --to DIR")
    else:
        target = resolve(data, temporal_address=temporal_address, cluster=cluster)
        source = export_folder(target, None)
        output.say("exporting the histories")
        export_now(target, source)
    destination = (out.expanduser().absolute() if out else source.parent / "report").absolute()
    made = spark.build_report(source, destination, say=output.say, as_json=json)
    if json:
        output.print_json({"report": str(made.page), "export": str(source), "summary": made.summary})
        return
    typer.echo(made.text.rstrip())
    typer.echo(f"report: {made.page}")


def export_folder(target: Target, to: Path | None) -> Path:
    """Where an export goes. Raises `UsageError` when that is not known."""
    if to is not None:
        return to.expanduser().absolute()
    if target.stack is None:
        raise UsageError("say where the export goes with --to DIR; without a stack there is no default")
    return target.stack.exports


def export_now(target: Target, folder: Path) -> dict[str, Any]:
    """Run ExportHistory once and wait for it: counts and the manifest's path. Raises `OpsError`."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    workflow_id = f"{names.export_id(target.cluster)}/{stamp}-{uuid4().hex[:4]}"

    async def work(client: Client) -> Any:
        await client.start_workflow(
            names.EXPORT_HISTORY,
            {"directory": str(folder)},
            id=workflow_id,
            task_queue=names.cluster_queue(target.cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
        try:
            return await asyncio.wait_for(runs.result_of(client, workflow_id), EXPORT_SECONDS)
        except TimeoutError as error:
            raise OpsError(
                f"the export {workflow_id} has not ended after {EXPORT_SECONDS:.0f} s; is the controller running? "
                "see: rehome stack status"
            ) from error

    result = runs.with_temporal(target, work)
    if not isinstance(result, dict):
        raise OpsError(f"the export {workflow_id} answered {result!r}, which is no result of an export")
    return result
