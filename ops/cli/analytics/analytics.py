"""rehome analytics submit: the report's job on a Spark cluster.

It is not an option of `rehome report`, which exports first and needs nothing but Java: a user who has a cluster looks
for spark-submit's word, and gives it a cluster, locations and settings that a local report has no use for.
"""

from __future__ import annotations

import math
import os
from json import loads
from pathlib import Path
from typing import Annotated

import typer

from ops.analytics import submit as submitting
from ops.analytics.errors import AnalyticsError
from ops.analytics.location import SUMMARY, export_folder, tables_root
from ops.cli import output, spark
from ops.cli.options import Json, group
from ops.stack.errors import OpsError, UsageError

app = group("Run the analytics on a Spark cluster of your own.")

Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]


@app.callback()
def _group() -> None:
    """Keep the group one of commands, of which it has a single one."""


@app.command("submit")
def submit(
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="The cluster: spark://host:7077, yarn or k8s://URL.")
    ],
    export_dir: Annotated[
        str, typer.Option("--export", metavar="DIR", help="The exports, at a path that all of Spark's workers have.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the report, on this machine.")],
    tables: Annotated[
        str, typer.Option("--tables", metavar="LOCATION", help="Path or URI that all of Spark's workers reach.")
    ],
    archives: Annotated[
        Path | None,
        typer.Option(
            "--archives",
            metavar="FILE",
            help="A packed Python environment for the workers (default: they have this Python at its path).",
        ),
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option("--packages", metavar="COORDINATES", help="A Maven package beside Delta Lake's; may be repeated."),
    ] = None,
    conf: Conf = None,
    sla: Annotated[
        Path | None,
        typer.Option("--sla", metavar="FILE", help="Rules for the SLAs of moves that come without one."),
    ] = None,
    slo: Annotated[
        Path | None,
        typer.Option("--slo", metavar="FILE", help="SLOs in TOML for budgets and burn rates (default: rehome's own)."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Pack the sources and print the command line; do not run it.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the report of an export on a Spark cluster by spark-submit, and print the table of moves."""
    if os.environ.get("SPARK_REMOTE"):
        raise UsageError("--master cannot be combined with SPARK_REMOTE: unset it, or use rehome report")
    exports = _exports(export_dir)
    out = out.expanduser().absolute()
    scratch = out / ".spark"
    archive = archives.expanduser().absolute() if archives else None
    if archive is not None and not archive.is_file():
        raise UsageError(f"--archives {archives} is not a file")
    if "," in f"{scratch}{archive or ''}":
        raise UsageError("--out and --archives must not contain a comma: spark-submit takes it for a list")
    arguments = [str(exports), str(out), "--tables", tables_root(tables)]
    for option, file in (("--sla", sla), ("--slo", slo)):
        arguments += [option, str(file.expanduser().absolute())] if file else []
    cluster = submitting.Cluster(master, str(archive or ""), packages or (), conf or ())
    settings = spark.settings()
    try:
        call = submitting.submission(submitting.find_spark_submit(), cluster, scratch, arguments)
        submitting.prepare(scratch)
    except AnalyticsError as error:
        raise OpsError(str(error)) from error
    except OSError as error:
        raise OpsError(f"cannot write to {scratch}: {error.strerror}; choose another folder") from error
    if show:
        if json:
            output.print_json({"folder": str(call.folder), "command": list(call.command)})
        else:
            typer.echo(call.shell())
        return
    made = spark.run_job(call.command, settings, out, say=output.say, folder=call.folder, seconds=math.inf)
    if json:
        # The job's own --json would be mixed with its warnings, which spark-submit prints beside it.
        summary = loads((out / SUMMARY).read_text())
        output.print_json({"report": str(made.page), "export": str(exports), "summary": summary})
        return
    typer.echo(made.text.rstrip())
    typer.echo(f"report: {made.page}")


def _exports(location: str) -> Path:
    """Return the folder of the exports. Raises `UsageError`."""
    try:
        folder = export_folder(location).expanduser().absolute()
    except ValueError as error:
        raise UsageError(f"--export {error}") from error
    if not folder.is_dir():
        raise UsageError(f"--export {location} is not a folder; export first with: rehome export --to DIR")
    return folder
