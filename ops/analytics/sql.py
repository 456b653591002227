"""`python -m ops.analytics.sql TABLES QUERY [--json | --csv] [--limit N]`: a query over the tables, only reading them.

Each table is there by its name and by its layer and name: `moves`, `silver.moves`. One that was never written is empty.
Exit codes: 0 printed, 1 failure, 2 wrong usage or a query that cannot be run, 3 no Java or no Delta Lake.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.analytics.errors import AnalyticsError, BadQuery, NoTables
from ops.analytics.location import is_uri, tables_root

#: Rows that are printed without --limit.
MOST = 1000
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class Result:
    """The columns of a query and its rows; `more`: rows were left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool


def query(spark: Any, tables: str | Path, text: str, limit: int = MOST) -> Result:
    """Run a query; rows beyond `limit` are left out (0: none). Times are ISO 8601 in UTC.

    `tables` is a path or a URI. Raises NoTables if it has no tables or older ones, BadQuery for a query that writes, or
    that Spark rejects.
    """
    from pyspark.errors import PySparkException

    from ops.analytics import readonly
    from ops.analytics.lake.tables import Lake
    from ops.analytics.schema import INGESTS, TABLES

    root = tables_root(str(tables))
    lake, logs = Lake(spark, root), (Path(root) / table.path / "_delta_log" for table in TABLES)
    if not (lake.exists(INGESTS) if is_uri(root) else any(log.is_dir() for log in logs)):
        raise NoTables(f"{tables} contains no tables: make them with `rehome report`, or name their folder")
    text = text.strip().rstrip(";").strip()
    try:
        readonly.check_parsed(spark, text)
        for layer in dict.fromkeys(table.layer for table in TABLES):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {layer}")
        # Only what the query names: looking at a table takes a second.
        for table in (one for one in TABLES if re.search(rf"\b{one.name}\b", text, re.IGNORECASE)):
            if missing := lake.lacks(table):
                raise NoTables(
                    f"the table {table.name} in {tables} is of an earlier version, without {missing[0].name}: "
                    "`rehome report` brings it up to date"
                )
            lake.read(table).createOrReplaceTempView(table.name)
            spark.sql(f"CREATE OR REPLACE VIEW {table.layer}.{table.name} AS {_select(lake, table)}")
        found = spark.sql(text)
        readonly.check_analyzed(found)
        columns = tuple(found.columns)
        named = found.toDF(*[f"c{place}" for place in range(len(columns))])
        chosen = named.limit(limit + 1) if limit else named
        rows = [_values(row[0]) for row in chosen.select(_as_json()).toLocalIterator()] if columns else []
    except PySparkException as error:
        raise BadQuery(f"the query cannot be run: {_sentence(error)}") from error
    return Result(columns, tuple(rows[:limit] if limit else rows), bool(limit) and len(rows) > limit)


def _as_json() -> Any:
    from pyspark.sql import functions as F

    return F.to_json(F.struct("*"), _TIMES)


def _values(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text).values())


def _select(lake: Any, table: Any) -> str:
    """Return the text that selects a table, or no rows if it was never written."""
    if lake.exists(table):
        return f"SELECT {', '.join(f'`{name}`' for name in table.names)} FROM {lake.name(table)}"
    nulls = ", ".join(f"CAST(NULL AS {one.kind.simpleString()}) AS `{one.name}`" for one in table.columns)
    return f"SELECT {nulls} WHERE false"


def _sentence(error: Exception) -> str:
    """Return Spark's message without its error class and the plan that it appends."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    line = re.sub(r"^\[[A-Z0-9_.]+\] ", "", re.sub(r" SQLSTATE: \w+", "", line))
    line = re.sub(r"\.?; line (\d+) pos (\d+);?$", r" (line \1, pos \2)", line)
    if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
        from ops.analytics.schema import TABLES

        return f"{line.split('.')[0]}. The tables are {', '.join(table.name for table in TABLES)}"
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the query, print its rows, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ops.analytics.sql", description="Query the tables of the analytics."
    )
    parser.add_argument("tables", help="path or URI of the tables: `tables` beside a report")
    parser.add_argument("query", help='such as "SELECT outcome, count(*) FROM moves GROUP BY outcome"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list with an object per row")
    form.add_argument("--csv", action="store_true", help="print comma-separated values with a header")
    parser.add_argument("--limit", type=_number, default=MOST, metavar="N", help=f"rows to print, 0 for all ({MOST})")
    chosen = parser.parse_args(arguments)
    from ops.analytics.session import CORES, spark_session, tasks_for

    # PySpark prints each error of a query as JSON with its stack, before it raises it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    try:
        tasks = CORES if is_uri(chosen.tables) else tasks_for(Path(chosen.tables))
        with (
            tempfile.TemporaryDirectory(prefix="rehome-sql-") as scratch,
            spark_session(Path(scratch), tasks=tasks, temporary=True) as spark,
        ):
            found = query(spark, chosen.tables, chosen.query, chosen.limit)
    except AnalyticsError as error:
        print(f"rehome: {error}", file=sys.stderr)
        return error.code
    return printed(found, "json" if chosen.json else "csv" if chosen.csv else "table")


def printed(found: Result, form: str) -> int:
    """Print the rows as `json`, `csv` or a `table`, and return the exit code; a reader may leave, as `head` does."""
    try:
        print(_FORMS[form](found))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if found.more:
        print(f"rehome: only the first {len(found.rows)} rows are printed; --limit 0 prints all", file=sys.stderr)
    return 0


def _json(found: Result) -> str:
    return json.dumps([dict(zip(found.columns, row, strict=True)) for row in found.rows], indent=2)


def _csv(found: Result) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(found.columns)
    lines.writerows([_cell(value, "") for value in row] for row in found.rows)
    return text.getvalue().removesuffix("\n")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def _cell(value: Any, none: str = "–") -> str:
    if value is None:
        return none
    return json.dumps(value) if isinstance(value, list | dict | bool) else str(value)


def _table(found: Result) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(found.columns):
        numbers = all(isinstance(row[place], int | float | None) for row in found.rows)
        table.add_column(name, justify="right" if numbers and found.rows else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*[Text(_cell(value)) for value in row])
    out = out if out.is_terminal else Console(highlight=False, width=10_000)
    with out.capture() as text:
        out.print(table)
    return text.get().removesuffix("\n")


_FORMS: dict[str, Callable[[Result], str]] = {"json": _json, "csv": _csv, "table": _table}


if __name__ == "__main__":
    sys.exit(main())
