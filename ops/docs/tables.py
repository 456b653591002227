"""Print the tables of the analytics as a page: `python -m ops.docs.tables > ops/docs/tables.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ops.analytics.schema import LAYERS, TABLES, Table

_HEAD = """# The tables of the analytics

Delta Lake tables below `OUT/tables`, a folder each. Times are UTC, durations seconds, sizes bytes. The page is printed
from the declarations in `ops/analytics/schema` by `python -m ops.docs.tables > ops/docs/tables.md`; the meanings are
the comments of the columns in the tables as well.
"""
_ABOUT = {
    "ops": "What was read, and what could not be.",
    "bronze": "What Temporal wrote, unchanged. Events of unknown types and of unknown workflows are there as well.",
    "silver": "Runs, moves and what happened in them. The rows of open chains are as of the newest export.",
    "gold": "What reports and dashboards show. The rows of a day are computed again when one of its moves is.",
}


def page() -> str:
    """Return the whole page."""
    lines = [_HEAD, "| layer | table | one row per |", "|---|---|---|"]
    lines += [f"| {one.layer} | [{one.name}](#{one.name}) | {one.grain} |" for one in TABLES]
    for layer in LAYERS:
        lines += ["", f"## {layer.capitalize()}", "", _ABOUT[layer]]
        for table in TABLES:
            if table.layer == layer:
                lines += ["", *_table(table)]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.name}"
    yield ""
    by = f" Partitioned by {', '.join(table.partition)}." if table.partition else ""
    yield f"One row per {table.grain}. Key: {', '.join(table.key)}.{by}"
    yield ""
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in table.columns:
        yield f"| {column.name} | {column.kind.simpleString()} | {column.meaning.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    sys.stdout.write(page())
