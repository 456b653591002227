"""rehome sql: a query over the tables that `rehome report` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ops.analytics.location import tables_root
from ops.cli import spark
from ops.cli.options import Data, Json
from ops.cli.target import resolve
from ops.stack.errors import ExitCode, OpsError, UsageError


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("sql")(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT; - reads it from standard input.")],
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", help="Folder of the report (default: the stack's, DATA/report)."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option("--tables", metavar="LOCATION", help="Path or URI of the tables (default: those of the report)."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values with a header.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Rows to print; 0 prints all.")] = 1000,
    data: Data = None,
    json: Json = False,
) -> None:
    """Run a SELECT over the tables of the analytics (see ops/docs/queries.md) and print its rows."""
    if json and csv:
        raise UsageError("--json and --csv exclude each other")
    text = sys.stdin.read() if query == "-" else query
    if tables and report:
        raise UsageError("--tables and --report exclude each other")
    where = (
        tables_root(tables) if tables else _tables_of((report.expanduser() if report else _report_of(data)).absolute())
    )
    form = ["--json"] if json else ["--csv"] if csv else []
    command = [sys.executable, "-m", "ops.analytics.sql", *form, "--limit", str(limit), "--", where, text]
    done = subprocess.run(command, check=False, env={**os.environ, **spark.settings()}, stderr=subprocess.PIPE)
    _pass_on(done.returncode, done.stderr.decode(errors="replace"), where)


def _pass_on(code: int, text: str, where: str) -> None:
    """Pass on what the job wrote to standard error, or raise its last line as the error of its exit code."""
    if not code:
        sys.stderr.write(text)
        return
    lines = text.strip().splitlines()
    last = lines[-1].removeprefix("rehome: ") if lines else f"the query failed without a message (exit code {code})"
    # The job's code 3, no Java or no Delta Lake, is a failure here: the command's 3 stands for a partial answer.
    raise (UsageError if code == ExitCode.USAGE else OpsError)(last, where=where)


def _tables_of(folder: Path) -> str:
    tables = folder / "tables"
    if not tables.is_dir():
        raise UsageError(f"{folder} contains no tables: make them with rehome report, or name its folder with --report")
    return str(tables)


def _report_of(data: Path | None) -> Path:
    target = resolve(data)
    if target.stack is None:
        raise UsageError("--report DIR is required: without a stack there is no default folder")
    return target.stack.exports.parent / "report"
