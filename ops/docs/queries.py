"""Print the page of example queries: `python -m ops.docs.queries > ops/docs/queries.md`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ops.analytics.numbers import FEWEST, TOO_FEW

_HEAD = """# Ten queries

`rehome sql "QUERY"` runs a SELECT of [Spark SQL](https://spark.apache.org/docs/latest/sql-ref.html) over
[the tables](tables.md) that the last `rehome report` has made, of a stack with `--data DIR` or of the report in
`--report DIR`. It prints a table, with `--json` a list of objects, with `--csv` comma-separated values; times are ISO
8601 in UTC. Each table has its plain name, and its layer before it: `moves` is `silver.moves`. The query is only read:
one that would change a table is rejected. In `moves` a replica that a plan moves on storage nodes has two rows: its
lane's, and that of the run which carries it out, whose `carries_out` is the lane's `id`; so may a replica that a
reassignment brings to a directory, for its part between disks. `carries_out IS NULL` counts each replica once; the
run's row has what was measured, such as `spent`. The page is printed by
`python -m ops.docs.queries > ops/docs/queries.md`.
"""


#: Not run by a test: DuckDB is no dependency.
_DUCKDB = """## With DuckDB

The tables are a folder of Delta Lake tables, `tables` beside `report.html`: any engine that reads Delta Lake reads
them, in place or copied, without Spark and without rehome. With [DuckDB](https://duckdb.org/docs/stable/core_extensions/delta)
and its extension `delta`, which it downloads once (no test runs this recipe):

```sh
duckdb -c "INSTALL delta; LOAD delta;
SELECT kind, outcome, count(*) AS moves, sum(bytes_copied) AS bytes
FROM delta_scan('file:///path/to/report/tables/silver/moves') WHERE carries_out IS NULL
GROUP BY kind, outcome ORDER BY kind, moves DESC"
```

A table's folder is its layer and its name. `rehome sql` opens each table by its name; for DuckDB make a view of each:
`CREATE VIEW moves AS FROM delta_scan('file:///path/to/report/tables/silver/moves')`. The queries above are Spark SQL; a
function such as `max_by` or `current_timestamp()` may have another name or form there.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, and its query."""

    question: str
    text: str


QUERIES = (
    Query(
        "How did moves end, by kind?",
        """SELECT kind, outcome, count(*) AS moves, sum(bytes_copied) AS bytes
FROM moves WHERE carries_out IS NULL GROUP BY kind, outcome ORDER BY kind, moves DESC""",
    ),
    Query(
        "What is open, what holds it, and how much is left?",
        """SELECT id, carries_out, phase, stall, stall_message, bytes_total - bytes_copied AS bytes_left, attempts
FROM moves WHERE open ORDER BY coalesce(carries_out, id), started""",
    ),
    Query(
        "Which moves missed their targets, and why?",
        """SELECT replica, node, started, outcome, reason, message
FROM moves WHERE outcome IN ('failed', 'timed out', 'terminated') AND carries_out IS NULL ORDER BY started DESC""",
    ),
    Query(
        "Which share of the deadlines was met, day by day?",
        f"""SELECT day, met, missed,
if(met + missed < {FEWEST}, '{TOO_FEW}', string(floor(1000 * attainment) / 10)) AS percent,
round(100 * low, 1) AS at_least
FROM sla_daily WHERE scope = 'all' AND met + missed > 0 ORDER BY day""",
    ),
    Query(
        "How fast is each pair of disks, over all hours?",
        """SELECT node, origin, target, sum(moves) AS moves, round(sum(bytes) / sum(seconds) / 1e6, 1) AS mb_per_second
FROM rates_hourly GROUP BY node, origin, target ORDER BY mb_per_second DESC""",
    ),
    Query(
        "Where did the time of the slowest moves go?",
        """WITH slowest AS (
  SELECT id, replica FROM moves WHERE carries_out IS NULL ORDER BY finished - started DESC NULLS LAST LIMIT 5)
SELECT replica, phase, round(sum(seconds), 1) AS seconds
FROM move_phases JOIN slowest USING (id) GROUP BY replica, phase ORDER BY replica, seconds DESC""",
    ),
    Query(
        "How far was each plan, minute by minute?",
        """SELECT workflow_id, minute, done, missed, moves_total, round(100 * bytes_done / bytes_total) AS percent, eta
FROM plan_progress ORDER BY workflow_id, minute""",
    ),
    Query(
        "Did the plans end in time, and as they were meant to?",
        """SELECT workflow_id, outcome, finished, deadline,
coalesce(finished, current_timestamp()) <= deadline AS in_time, verified
FROM plans ORDER BY started DESC""",
    ),
    Query(
        "Which activities had to be tried again, and on which nodes?",
        """SELECT activity_type, node, sum(activities) AS activities, sum(retried) AS retried, sum(failed) AS failed,
max_by(last_failure, day) AS last_failure
FROM retries GROUP BY activity_type, node HAVING retried + failed > 0 ORDER BY retried DESC""",
    ),
    Query(
        "Has everything that was exported been read, and did any replica take a transition that the workflow forbids?",
        """SELECT 'events not read' AS what, sum(quarantined) AS number FROM ingests
UNION ALL SELECT 'forbidden transitions', coalesce(sum(moves), 0) FROM transitions WHERE NOT allowed""",
    ),
)


def page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for number, query in enumerate(QUERIES, 1):
        lines += [f"{number}. {query.question}", "", "```sql", query.text, "```", ""]
    return "\n".join([*lines, _DUCKDB])


if __name__ == "__main__":
    sys.stdout.write(page())
