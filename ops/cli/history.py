"""rehome export, report: workflow histories as files, and the report that Spark makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from activities.history import lateness
from activities.history.manifest import from_iso, newest_manifest
from ops.analytics.errors import AnalyticsError
from ops.analytics.follow import LONGEST, SHORTEST
from ops.analytics.gold.slos import read_slos
from ops.cli import output, spark, waits
from ops.cli.moves import runs
from ops.cli.options import Cluster, Data, Json, TemporalAddress, ui_address
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, StillRunning, UsageError
from workflows.model import names
from workflows.model.calls import ExportResult

EXPORT_SECONDS = 300.0


class Kind(StrEnum):
    """What a move changes: the directory of a replica, its node, or both."""

    DISK = "disk"
    NODE = "node"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    """Add the two commands to the root of `rehome`."""
    app.command("export")(export)
    app.command("report")(report)


def export(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Folder of the export (default: DATA/export)."),
    ] = None,
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Export new workflow histories and print the manifest. The process that exports writes the files."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)
    result = export_now(target, export_folder(target, to))
    _warn(export_folder(target, to))
    if json:
        output.print_json(asdict(result))
        return
    typer.echo(
        f"exported {result.closed} closed and {result.open} open runs, {result.events} events, "
        f"{output.size(result.bytes)}"
    )
    typer.echo(f"manifest: {result.manifest or '-'}")


def report(
    export_dir: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Use this export, without exporting first."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the report (default: beside the export).")
    ] = None,
    sla: Annotated[
        Path | None,
        typer.Option("--sla", metavar="FILE", help="Rules for the SLAs of moves that come without one."),
    ] = None,
    slo: Annotated[
        Path | None,
        typer.Option("--slo", metavar="FILE", help="SLOs in TOML for budgets and burn rates (default: rehome's own)."),
    ] = None,
    temporal_ui: Annotated[
        str | None,
        typer.Option(
            "--temporal-ui", metavar="URL", help="Temporal's UI, for the site's links to runs (default: none)."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="ISO", help="List only moves that were under way at this time or later."),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="ISO", help="Report for this time instead of the newest export's."),
    ] = None,
    open_only: Annotated[bool, typer.Option("--open", help="List only open moves.")] = False,
    kind: Annotated[
        list[Kind] | None, typer.Option("--kind", help="List only moves of this kind; may be repeated.")
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option(
            "--follow",
            min=SHORTEST,
            max=LONGEST,
            metavar="SECONDS",
            help="Export every so many seconds, and report again on what is new, until interrupted; a line for each.",
        ),
    ] = None,
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Export workflow histories, run the Spark job, print the table of moves, and write one HTML page and a site."""
    if slo is not None:
        _check(slo)
    if follow is not None and as_of is not None:
        raise UsageError("--follow cannot be combined with --as-of: each report is for the time of its export")
    options = [*_time("--since", since), *_time("--as-of", as_of), *(["--open"] if open_only else [])]
    options += [part for one in kind or () for part in ("--kind", one.value)]
    if temporal_ui is not None:
        options += ["--temporal-ui", ui_address(temporal_ui)]
    for name, file in (("--sla", sla), ("--slo", slo)):
        options += [name, str(file.absolute())] if file else []
    target: Target | None = None
    if export_dir is not None:
        source = export_dir.expanduser().absolute()
        if not source.is_dir():
            raise UsageError(f"--export {export_dir} is not a folder; export first with: rehome export --to DIR")
    else:
        target = resolve(data, temporal_address=temporal_address, cluster=cluster)
        if target.stack is None:
            raise UsageError(
                "--export DIR is required: without a stack the export has no default folder; "
                "create one with: rehome export --to DIR"
            )
        source = export_folder(target, None)
        output.say("exporting the histories")
        export_now(target, source)
    destination = (out.expanduser().absolute() if out else source.parent / "report").absolute()
    if follow is not None:
        _warn(source)
        output.say("Spark is starting; Ctrl-C ends it")
        spark.follow_report(
            source,
            destination,
            follow,
            told=lambda found: _tell(found, as_json=json),
            export_again=lambda: _export_again(target, source),
            options=options,
        )
    made = spark.build_report(source, destination, say=output.say, as_json=json, options=options)
    _warn(source)
    if json:
        output.print_json({"report": str(made.page), "export": str(source), "summary": made.summary})
        return
    typer.echo(made.text.rstrip())
    typer.echo(f"report: {made.page}")


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    """Print one report of `--follow`, or on standard error why there is none."""
    if as_json:
        typer.echo(dumps(found))
    elif "error" in found:
        output.say(f"warning: no new report: {found['error']}")
    else:
        counts = ", ".join(f"{found[name]} {name}" for name in ("moved", "open", "failed", "cancelled"))
        met = found["sla_met"], found["sla_met"] + found["sla_missed"]
        sla = f"; SLA met by {met[0]} of {met[1]}" if met[1] else ""
        typer.echo(f"as of {found['as_of']}: {found['moves']} moves: {counts}{sla}; site: {found['site']}")


def _export_again(target: Target | None, folder: Path) -> None:
    """Export what is new, unless somebody else does (`--export`); what fails is tried again the next time."""
    try:
        if target is not None:
            export_now(target, folder)
    except OpsError as error:
        output.say(f"warning: the histories were not exported: {error}")


def _check(slo: Path) -> None:
    """Raise `UsageError` for a file that has no valid SLOs, before anything is exported."""
    try:
        read_slos(slo)
    except AnalyticsError as error:
        raise UsageError(f"--slo: {error}") from error


def _warn(folder: Path) -> None:
    """Say on standard error if exports are late, measured by the namespace's retention."""
    late = lateness.late_exports(newest_manifest(folder), datetime.now(UTC))
    if late:
        output.say(f"warning: {late}")


def _time(option: str, text: str | None) -> list[str]:
    """Return the option for the job. Raises `UsageError` for what is not a time."""
    if text is None:
        return []
    try:
        from_iso(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a time in ISO 8601, such as 2026-11-20T12:00:00Z") from error
    return [option, text]


def export_folder(target: Target, to: Path | None) -> Path:
    """Return the folder of an export. Raises `UsageError` without --to and without a stack."""
    if to is not None:
        return to.expanduser().absolute()
    if target.stack is None:
        raise UsageError("--to DIR is required: without a stack the export has no default folder")
    return target.stack.exports


def export_now(target: Target, folder: Path) -> ExportResult:
    """Run ExportHistory once; return its counts and the manifest's path. Raises `OpsError`."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    workflow_id = f"{names.export_id(target.cluster)}/{stamp}-{uuid4().hex[:4]}"

    async def work(client: Client) -> ExportResult:
        await client.start_workflow(
            names.EXPORT_HISTORY,
            {"directory": str(folder)},
            id=workflow_id,
            task_queue=names.cluster_queue(target.cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
        try:
            return await asyncio.wait_for(runs.result_of(client, workflow_id, ExportResult), EXPORT_SECONDS)
        except TimeoutError as error:
            raise StillRunning(
                f"the export {workflow_id} has not ended after {EXPORT_SECONDS:.0f} s; do the processes that export "
                "run? see: rehome stack status"
            ) from error

    with waits.lines(f"waiting for the export {workflow_id}"):
        return runs.with_temporal(target, work)
