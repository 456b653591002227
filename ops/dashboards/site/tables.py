"""The tables of a site, by name, with the columns that its pages read. Values only.

Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second, days ISO dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.dashboards.site.pack import Packed, pack

#: The newest moves that a site has; the report's tables have all.
MOST_MOVES = 100_000
#: Sentences about failed moves, the newest ones; and how long one may be.
MOST_MESSAGES, LONGEST_MESSAGE = 5_000, 300
#: Rows of every other table.
MOST_ROWS = 20_000

#: One row per move, the oldest first. `started` is the start of its run; `took` the time until it was in place, or so
#: far; `bytes` are in the copy, `total` is the replica's size; `run` its workflow id as `short_id` writes it, and `by`
#: that of the run which carries out a plan's move.
MOVES = (
    *("topic", "partition", "kind", "node", "from_node", "source", "directory", "plan", "outcome", "sla", "phase"),
    *("started", "took", "deadline", "bytes", "total", "rate", "limit", "attempts", "resumed"),
    *("queued", "copying", "throttled", "stalled", "locked", "reason", "message", "stall", "namespace", "run", "by"),
)
#: The columns of moves that are figures: rounded, since pages show three digits of them.
FIGURES = ("took", "bytes", "total", "rate", "limit", "resumed", "queued", "copying", "throttled", "stalled", "locked")
#: One row per day, scope and value: gold's sla_daily.
DAYS = (
    *("day", "scope", "value", "moves", "moved", "failed", "cancelled", "open", "met", "missed", "not_due", "excluded"),
    *("bytes", "p50", "p95"),
)
#: One row per day and SLO: gold's burn_rate. `window` is in days; fractions are in millionths, rounded down.
SLOS = (
    *("day", "slo", "event", "objective", "window", "weight", "good", "bad", "share", "low", "high", "left"),
    *("burn_5m", "burn_30m", "burn_1h", "burn_6h", "burn_3d", "alarm"),
)
#: The columns of it that are fractions.
FRACTIONS = ("objective", *SLOS[8:-1])
STALLS = ("day", "node", "reason", "moves", "seconds", "longest", "longest_id")
RETRIES = (
    "day",
    "type",
    "activity",
    "node",
    "activities",
    "attempts",
    "retried",
    "failed",
    "timed_out",
    "last_failure",
)
RATES = ("hour", "kind", "node", "origin", "target", "moves", "bytes", "seconds")
#: One row per day of exports and kind of file: gold of the ledger.
INGESTS = ("day", "kind", "files", "bytes", "expected", "read", "quarantined", "taken_at")
QUARANTINE = ("sequence", "file", "offset", "reason", "message", "events")
TRANSITIONS = ("day", "phase", "event", "next_phase", "moves", "allowed", "example")
#: One row per plan that was submitted: its name as moves have it, its workflow id and first run, and what became of it.
#: `low` and `high` are the shortest and the longest time that its check expected; `total` are the bytes to copy.
PLANS = (
    *("plan", "namespace", "id", "chain", "outcome", "phase", "started", "finished", "deadline", "met", "low", "high"),
    *("moves", "done", "missed", "running", "bytes", "total", "message"),
)
#: One row per plan and minute in which moves of it ended: gold's plan_progress, `bytes` by the minute's end.
PROGRESS = ("id", "chain", "minute", "moves", "done", "missed", "bytes", "total", "rate", "eta")
FAILURES = (
    *("node", "directory", "reason", "noticed", "recorded", "outcome", "replicas", "moves"),
    *("namespace", "id", "chain"),
)

TABLES: Mapping[str, tuple[str, ...]] = {
    "moves": MOVES,
    "days": DAYS,
    "slos": SLOS,
    "stalls": STALLS,
    "retries": RETRIES,
    "rates": RATES,
    "ingests": INGESTS,
    "quarantine": QUARANTINE,
    "transitions": TRANSITIONS,
    "plans": PLANS,
    "progress": PROGRESS,
    "failures": FAILURES,
}


@dataclass(frozen=True, slots=True)
class Site:
    """What a site shows, as of one time; a table that is missing is empty. `moves_total` counts all moves.

    `temporal_ui` is the address of Temporal's UI for links to runs, as `links.temporal_ui` returns it; "" for no links.
    """

    as_of: float
    runs: int
    moves_total: int
    tables: Mapping[str, Packed] = field(default_factory=dict)
    rules: str = ""
    temporal_ui: str = ""

    def table(self, name: str) -> Packed:
        """Return a table."""
        return self.tables.get(name) or pack(TABLES[name], ())

    def about(self) -> dict[str, Any]:
        """Return what every page shows."""
        return {
            "as_of": self.as_of,
            "runs": self.runs,
            "moves_total": self.moves_total,
            "rules": self.rules,
            "temporal_ui": self.temporal_ui,
        }


def short_id(workflow_id: str, topic: str, partition: int, node: int | None) -> str:
    """Return a workflow id with `%` for the replica and `#` for the node, so that many moves share one text.

    An id that has one of these characters already is written whole, behind `=`.
    """
    if workflow_id.startswith("=") or "%" in workflow_id or "#" in workflow_id or not topic:
        return f"={workflow_id}"
    text = workflow_id.replace(f"/{topic}-{partition}", "/%", 1)
    return text.replace(f"/{node}/", "/#/", 1) if node is not None else text


def long_id(text: str, topic: str, partition: int, node: int | None) -> str:
    """Return the workflow id of `short_id`."""
    if text.startswith("="):
        return text[1:]
    return text.replace("/%", f"/{topic}-{partition}", 1).replace("/#/", f"/{node}/", 1)
