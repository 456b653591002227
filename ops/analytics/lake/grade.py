"""Gold for some days: reads silver, computes the tables, replaces these days' rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.gold.plan_progress import plan_progress
from ops.analytics.gold.rates import rates_hourly
from ops.analytics.gold.replicas import measured
from ops.analytics.gold.retries import retries
from ops.analytics.gold.rules import Rules
from ops.analytics.gold.sla import judged, sla_daily
from ops.analytics.gold.stalls import stalls
from ops.analytics.gold.transitions import transitions
from ops.analytics.lake.tables import Lake


def gold(lake: Lake, days: Sequence[str], rules: Rules, as_of: datetime) -> None:
    """Compute the rows of these days (yyyy-mm-dd) again."""
    if not days:
        return
    of = f"day IN ({', '.join(f'DATE{day!r}' for day in days)})"
    moves = lake.read(schema.MOVES)
    mine = moves.where(of).persist()
    tables = [
        (schema.SLA_DAILY, sla_daily(judged(measured(mine, moves), rules, as_of), rules)),
        (schema.RATES_HOURLY, rates_hourly(moves, phases_near(lake.read(schema.MOVE_PHASES), min(days), max(days)))),
        (schema.STALLS, stalls(mine)),
        (schema.RETRIES, retries(lake.read(schema.ACTIVITIES).where(of))),
        (schema.TRANSITIONS, transitions(lake.read(schema.MOVE_STEPS).where(of))),
    ]
    if lake.exists(schema.PLANS):
        tables.append((schema.PLAN_PROGRESS, plan_progress(lake.read(schema.PLANS).where(of), moves)))
    for table, rows in tables:
        lake.overwrite(table, rows.where(of), of)
    mine.unpersist()


def phases_near(phases: DataFrame, first: str, last: str) -> DataFrame:
    """Return all phases of the moves that have one from the first day (yyyy-mm-dd) to the last.

    Those on other days too: the bytes of a move are spread over all of its copying.
    """
    near = (F.col("began") < F.date_add(F.lit(last).cast("date"), 1)) & (F.col("ended") >= F.lit(first).cast("date"))
    return phases.join(F.broadcast(phases.where(near).select("id").distinct()), ["id"], "left_semi")


def regraded(lake: Lake, rules: Rules, as_of: datetime) -> None:
    """Compute the attainment of all days again."""
    moves = measured(lake.read(schema.MOVES))
    lake.overwrite(schema.SLA_DAILY, sla_daily(judged(moves, rules, as_of), rules))
