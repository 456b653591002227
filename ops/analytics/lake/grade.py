"""Gold for some days: reads silver, computes the tables, replaces these days' rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.gold.burn_rate import Evidence, burn_rate, computed_from, slo_minutes
from ops.analytics.gold.plan_progress import plan_progress
from ops.analytics.gold.rates import rates_hourly
from ops.analytics.gold.replicas import measured
from ops.analytics.gold.retries import retries
from ops.analytics.gold.rules import Rules
from ops.analytics.gold.sla import judged, sla_daily
from ops.analytics.gold.stalls import stalls
from ops.analytics.gold.transitions import transitions
from ops.analytics.lake.tables import Lake
from ops.analytics.threads import side_by_side


def gold(lake: Lake, days: Sequence[str], rules: Rules, as_of: datetime) -> None:
    """Compute the rows of these days (yyyy-mm-dd) again, and of `burn_rate` those from the first of them on."""
    if not days:
        _burned(lake, rules, as_of, None)
        return
    of = f"day IN ({', '.join(f'DATE{day!r}' for day in days)})"
    moves = lake.read(schema.MOVES)
    mine = moves.where(of).persist()
    verdicts = judged(measured(mine, moves), rules, as_of).persist()
    tables = [
        (schema.SLA_DAILY, sla_daily(verdicts, rules)),
        (schema.RATES_HOURLY, rates_hourly(moves, phases_near(lake.read(schema.MOVE_PHASES), min(days), max(days)))),
        (schema.STALLS, stalls(mine)),
        (schema.RETRIES, retries(lake.read(schema.ACTIVITIES).where(of))),
        (schema.TRANSITIONS, transitions(lake.read(schema.MOVE_STEPS).where(of))),
    ]
    if rules.slos:
        tables.append((schema.SLO_MINUTES, slo_minutes(verdicts, _evidence(lake), rules, as_of)))
    if lake.exists(schema.PLANS):
        tables.append((schema.PLAN_PROGRESS, plan_progress(lake.read(schema.PLANS).where(of), moves)))
    side_by_side(lake.spark, *[partial(lake.overwrite, table, rows.where(of), of) for table, rows in tables])
    for kept in (verdicts, mine):
        kept.unpersist()
    _burned(lake, rules, as_of, min(days))


def _evidence(lake: Lake) -> Evidence:
    return Evidence(*map(lake.read, (schema.RUNS, schema.MOVE_PHASES, schema.THROTTLE_SPANS, schema.MOVES)))


def _burned(lake: Lake, rules: Rules, as_of: datetime, touched: str | None) -> None:
    """Compute the budgets again that a batch changes, and those of the newest day, for which time has passed."""
    if not rules.slos:
        return
    newest = lake.read(schema.BURN_RATE).agg(F.date_format(F.max("day"), "yyyy-MM-dd")).first()
    since = computed_from(touched, newest[0] if newest else None)
    rows = burn_rate(lake.read(schema.SLO_MINUTES), rules, as_of, date.fromisoformat(since) if since else None)
    lake.overwrite(schema.BURN_RATE, rows, f"day >= DATE{since!r}" if since else "")


def phases_near(phases: DataFrame, first: str, last: str) -> DataFrame:
    """Return all phases of the moves that have one from the first day (yyyy-mm-dd) to the last.

    Those on other days too: the bytes of a move are spread over all of its copying.
    """
    near = (F.col("began") < F.date_add(F.lit(last).cast("date"), 1)) & (F.col("ended") >= F.lit(first).cast("date"))
    return phases.join(F.broadcast(phases.where(near).select("id").distinct()), ["id"], "left_semi")


def regraded(lake: Lake, rules: Rules, as_of: datetime) -> None:
    """Compute the attainment and the budgets of all days again."""
    verdicts = judged(measured(lake.read(schema.MOVES)), rules, as_of).persist()
    lake.overwrite(schema.SLA_DAILY, sla_daily(verdicts, rules))
    if rules.slos:
        lake.overwrite(schema.SLO_MINUTES, slo_minutes(verdicts, _evidence(lake), rules, as_of))
        lake.overwrite(schema.BURN_RATE, burn_rate(lake.read(schema.SLO_MINUTES), rules, as_of))
    verdicts.unpersist()
