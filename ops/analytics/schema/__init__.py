"""The tables' declared schemas, and their enumerated values. Times are UTC, durations seconds, sizes bytes.

Bronze is what Temporal wrote, unchanged; silver joins it to runs, activities, moves and phases; gold is what is shown,
by day or hour. Every transform takes and returns DataFrames of these schemas.
"""

from __future__ import annotations

from ops.analytics.schema.bronze import HISTORY_EVENTS, OPEN_SNAPSHOTS, PENDING_ACTIVITIES
from ops.analytics.schema.columns import LAYERS, Column, Table, conform, same
from ops.analytics.schema.gold import (
    BURN_RATE,
    BURN_WINDOWS,
    PLAN_PROGRESS,
    RATES_HOURLY,
    RETRIES,
    SLA_DAILY,
    SLO_MINUTES,
    STALLS,
    TRANSITIONS,
)
from ops.analytics.schema.ledger import INGESTS, QUARANTINE, RECORDS, TOUCHED_DAYS
from ops.analytics.schema.shown import JUDGED_MOVES, JUDGED_PLANS, REPLICA_FAILURES, SLA_SUMMARY
from ops.analytics.schema.silver import (
    ACTIVITIES,
    DIRECTORIES,
    MOVE_FACTS,
    MOVE_PHASES,
    MOVE_STEPS,
    MOVES,
    MOVES_ASKED,
    PLANS,
    REPLICA_REPORTS,
    RUNS,
    THROTTLE_SPANS,
)
from ops.analytics.schema.words import *  # noqa: F403 - the words are the package's own

#: All stored tables, in the order in which data flows through them.
TABLES: tuple[Table, ...] = (
    *(INGESTS, QUARANTINE, TOUCHED_DAYS),
    *(HISTORY_EVENTS, OPEN_SNAPSHOTS, PENDING_ACTIVITIES),
    *(RUNS, ACTIVITIES, MOVES, MOVE_PHASES, MOVE_STEPS, THROTTLE_SPANS, PLANS, DIRECTORIES),
    REPLICA_REPORTS,
    *(SLA_DAILY, SLO_MINUTES, BURN_RATE, RATES_HOURLY, STALLS, RETRIES, TRANSITIONS, PLAN_PROGRESS),
)

__all__ = [
    "ACTIVITIES", "BURN_RATE", "BURN_WINDOWS", "DIRECTORIES", "HISTORY_EVENTS", "INGESTS", "JUDGED_MOVES",
    "JUDGED_PLANS", "LAYERS", "MOVES", "MOVES_ASKED", "MOVE_FACTS", "MOVE_PHASES", "MOVE_STEPS", "OPEN_SNAPSHOTS",
    "PENDING_ACTIVITIES", "PLANS", "PLAN_PROGRESS", "QUARANTINE", "RATES_HOURLY", "RECORDS", "REPLICA_FAILURES",
    "REPLICA_REPORTS", "RETRIES", "RUNS", "SLA_DAILY", "SLA_SUMMARY", "SLO_MINUTES", "STALLS", "TABLES",
    "THROTTLE_SPANS", "TOUCHED_DAYS", "TRANSITIONS", "Column", "Table", "conform", "same",
]  # fmt: skip
