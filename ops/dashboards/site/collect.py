"""Collects a site's tables from silver and gold with Spark.

Of moves the newest days that have at most `MOST_MOVES` come to the driver, a partition at a time; every other table is
small, and cut to its newest `MOST_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.threads import side_by_side
from ops.dashboards.site import tables
from ops.dashboards.site.pack import Packed, pack
from ops.dashboards.site.tables import LONGEST_MESSAGE, MOST_MESSAGES, MOST_MOVES, MOST_ROWS, Site, short_id


@dataclass(frozen=True, slots=True)
class Sources:
    """The tables that a site is made of; `moves` and `plans` are judged, the others as gold, silver and the ledger have
    them. `moves` have each replica once.
    """

    moves: DataFrame
    sla_daily: DataFrame
    burn_rate: DataFrame
    stalls: DataFrame
    retries: DataFrame
    rates_hourly: DataFrame
    transitions: DataFrame
    plans: DataFrame
    plan_progress: DataFrame
    directories: DataFrame
    ingests: DataFrame
    quarantine: DataFrame


def collect(sources: Sources, as_of: datetime, runs: int, rules: str = "", temporal_ui: str = "") -> Site:
    """Return the site of these tables."""
    by_day = sorted(
        ((row["day"], int(row["count"])) for row in sources.moves.groupBy("day").count().collect()),
        key=lambda row: row[0] or date.min,
        reverse=True,
    )
    since = newest_days(by_day, MOST_MOVES)
    shown = sources.moves if since is None else sources.moves.where(F.col("day") >= F.lit(since))
    rows = sorted(_moves(shown), key=lambda row: (row[_STARTED], row[0] or "", row[1] or 0))[-MOST_MOVES:]
    others: dict[str, tuple[DataFrame, Sequence[str], Sequence[str], Mapping[str, Column]]] = {
        "days": (
            sources.sla_daily,
            tables.DAYS,
            ("day", "scope", "value"),
            _renamed(bytes="bytes_copied", p50="p50_seconds", p95="p95_seconds"),
        ),
        "slos": (
            sources.burn_rate,
            tables.SLOS,
            ("day", "slo"),
            {
                "window": F.col("window_days"),
                **{name: _millionths("budget_left" if name == "left" else name) for name in tables.FRACTIONS},
            },
        ),
        "stalls": (sources.stalls, tables.STALLS, ("day", "node", "reason"), _renamed(longest="longest_seconds")),
        "retries": (
            sources.retries,
            tables.RETRIES,
            ("day", "type", "activity", "node"),
            _renamed(type="workflow_type", activity="activity_type"),
        ),
        "rates": (sources.rates_hourly, tables.RATES, ("hour", "node", "target"), {"hour": _epoch("hour")}),
        "ingests": (_ingested(sources.ingests), tables.INGESTS, ("day", "kind"), {}),
        "quarantine": (
            sources.quarantine,
            tables.QUARANTINE,
            ("sequence", "file", "offset"),
            _renamed(file="source_file"),
        ),
        "transitions": (sources.transitions, tables.TRANSITIONS, ("day", "phase", "event"), {}),
        "plans": (
            sources.plans,
            tables.PLANS,
            ("started", "id", "chain"),
            {
                **{name: _epoch(name) for name in ("started", "finished", "deadline")},
                **_renamed(id="workflow_id", met="met_sla", low="seconds_low", high="seconds_high"),
                **_renamed(bytes="bytes_done", total="bytes_total"),
                "plan": _plan_name("workflow_id"),
                "message": F.left(F.col("message"), F.lit(LONGEST_MESSAGE)),
            },
        ),
        "progress": (
            sources.plan_progress.where(F.col("minute") <= F.lit(as_of)),
            tables.PROGRESS,
            ("minute", "id", "chain"),
            {
                **{name: _epoch(name) for name in ("minute", "eta")},
                **_renamed(id="workflow_id", moves="moves_total", bytes="bytes_done", total="bytes_total"),
            },
        ),
        "failures": (
            sources.directories,
            tables.FAILURES,
            ("noticed", "node"),
            {
                **{name: _epoch(name) for name in ("noticed", "recorded")},
                **{name: F.size(name) for name in ("replicas", "moves")},
                **_renamed(id="workflow_id"),
            },
        ),
    }
    parts = side_by_side(sources.moves.sparkSession, *[partial(_newest, *each) for each in others.values()])
    found = {"moves": pack(tables.MOVES, with_messages(rows), tables.FIGURES), **dict(zip(others, parts, strict=True))}
    return Site(as_of.timestamp(), runs, sum(count for _, count in by_day), found, rules, temporal_ui)


def newest_days(by_day: Sequence[tuple[date | None, int]], most: int) -> date | None:
    """Return the first of the newest days that have at most `most` moves together; None if all days do.

    `by_day` begins with the newest day. A newest day with more moves than that is returned alone.
    """
    total, first = 0, None
    for day, count in by_day:
        total += count
        if total > most and first is not None:
            return first
        first = day
    return None


def with_messages(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield the rows, the oldest first; only the newest `MOST_MESSAGES` of those with a message keep it."""
    spare = sum(row[_MESSAGE] is not None for row in rows) - MOST_MESSAGES
    for row in rows:
        if row[_MESSAGE] is not None and spare > 0:
            spare -= 1
            yield (*row[:_MESSAGE], None, *row[_MESSAGE + 1 :])
        else:
            yield row


_STARTED, _MESSAGE = tables.MOVES.index("started"), tables.MOVES.index("message")


def _moves(moves: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table of moves, a partition at a time."""
    done = F.col("outcome").isin(*schema.DONE)
    columns: Mapping[str, Column] = {
        "plan": _plan_name("plan"),
        "sla": F.col("met_sla"),
        "started": _epoch("started"),
        "took": F.col("duration_seconds"),
        "deadline": F.col("deadline_seconds"),
        "bytes": F.coalesce("bytes_copied", F.lit(0)),
        "total": F.coalesce("bytes_total", F.lit(0)),
        "rate": F.col("mean_rate"),
        "limit": F.col("throttle"),
        "resumed": F.col("bytes_resumed"),
        **{name: F.col(f"seconds_{name}") for name in ("queued", "copying", "throttled", "stalled", "locked")},
        "message": F.when(~done & ~F.col("open"), F.left(F.col("message"), F.lit(LONGEST_MESSAGE))),
        "stall": F.when(F.col("open"), F.left(F.coalesce("stall_message", "stall"), F.lit(LONGEST_MESSAGE))),
        "run": F.col("workflow_id"),
        "by": F.col("carried_by"),
    }
    picked = moves.select([columns.get(name, F.col(name)).alias(name) for name in tables.MOVES])
    for row in picked.toLocalIterator():
        runs = [
            None if run is None else short_id(run, row["topic"] or "", row["partition"], row["node"])
            for run in (row["run"] or "", row["by"])
        ]
        yield (*row[:-2], *runs)


def _plan_name(name: str) -> Column:
    """Return the name by which a plan was submitted; the whole workflow id of one that another run has started."""
    return F.regexp_replace(name, "^.*/plan/", "")


def _epoch(name: str) -> Column:
    return F.unix_micros(name) / F.lit(1e6)


def _millionths(name: str) -> Column:
    """Return a fraction as `pack.millionths` does."""
    found = F.floor(F.col(name) * 1e6 + 1e-3)
    return F.when(F.col(name) < 1, F.least(found, F.lit(999_999))).otherwise(found)


def _newest(table: DataFrame, names: Sequence[str], order: Sequence[str], columns: Mapping[str, Column]) -> Packed:
    """Return the newest rows, the oldest first: `columns` are those whose name or type is another one there."""
    picked = table.select([columns.get(name, F.col(name)).alias(name) for name in names])
    days = [field.name for field in picked.schema.fields if field.dataType.simpleString() == "date"]
    picked = picked.withColumns({name: F.col(name).cast("string") for name in days}) if days else picked
    rows = picked.orderBy([F.desc(name) for name in order]).limit(MOST_ROWS).collect()
    return pack(names, [tuple(row) for row in reversed(rows)])


def _ingested(ingests: DataFrame) -> DataFrame:
    """Return the ledger by day and kind; what cannot be dated is of the day of its ingest."""
    return ingests.groupBy(F.col("ingest_date").alias("day"), "kind").agg(
        F.count(F.lit(1)).alias("files"),
        *[F.sum(name).alias(name) for name in ("bytes", "expected", "read", "quarantined")],
        (F.max(F.unix_micros("taken_at")) / F.lit(1e6)).alias("taken_at"),
    )


def _renamed(**names: str) -> Mapping[str, Column]:
    return {name: F.col(original) for name, original in names.items()}
