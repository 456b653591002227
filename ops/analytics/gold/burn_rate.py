"""Gold: error budgets and burn rates of SLOs, from the events of moves.

An event falls into the minute in which it was decided: a good one ended then; a bad one ended, or its time ran out,
while it was under way. Windows end with a minute, so that all of them are sums over minutes. The pairs of windows and
the shares of the budget that raise an alarm are those of Google's SRE workbook (Alerting on SLOs).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.gold.rules import Rules
from ops.analytics.gold.sla import met_sla, wilson
from ops.analytics.gold.slos import Event, Slo, Weight
from ops.analytics.numbers import FEWEST
from ops.analytics.schema import conform
from ops.analytics.silver.histories import CHAIN
from storage_node.model.moves import StallReason
from storage_node.model.sla import NOT_A_MOVE

#: The windows of burn rates, in minutes.
WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "6h": 360, "3d": 4320}
#: What raises an alarm: both windows burn so fast that the long one spends this share of the budget.
PAIRS = (("1h", "5m", 0.02, "page"), ("6h", "30m", 0.05, "page"), ("3d", "6h", 0.10, "ticket"))
_DAY_MINUTES = 1440


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tables of silver beside the moves: their cancels, their pauses and their limits."""

    runs: DataFrame
    move_phases: DataFrame
    throttle_spans: DataFrame
    moves: DataFrame


def threshold(slo: Slo, window: str, spent: float) -> float:
    """Return the burn rate at which a window spends this share of the budget; at least 1, which spends just all of it
    in time.
    """
    return max(1.0, spent * slo.window_days * _DAY_MINUTES / WINDOWS[window])


def computed_from(touched: str | None, newest: str | None) -> str | None:
    """Return the first day (yyyy-mm-dd) whose budgets a batch computes again; None: all.

    `touched` is the first day of its moves, and `newest` the newest day that has budgets, which is as of an earlier
    time. The events of a day's moves are of that day or later, and windows only reach back: what a batch brings changes
    no budget of an earlier day.
    """
    if newest is None:
        return None
    return newest if touched is None else min(touched, newest)


def slo_minutes(judged_moves: DataFrame, beside: Evidence, rules: Rules, as_of: datetime) -> DataFrame:
    """Return the events of these moves, each replica once, by SLO and minute."""
    known = _with_evidence(judged_moves, beside).withColumns(
        {
            "end": F.coalesce("finished", F.lit(as_of)),
            # In a queue a move is not late: its deadline is so much later.
            "deadline": F.timestamp_micros(
                F.unix_micros("deadline") + (F.coalesce("seconds_queued", F.lit(0.0)) * 1e6).cast("bigint")
            ),
        }
    )
    placed = met_sla(F.lit(as_of), F.col("reason"))
    events = F.array(*[_event(slo, placed).alias(slo.name) for slo in rules.slos])
    weight = F.col("of.weight")
    return conform(
        known.select("day", F.explode(F.filter(events, lambda one: one["at"].isNotNull())).alias("of"))
        .groupBy("day", F.col("of.slo").alias("slo"), F.date_trunc("minute", "of.at").alias("minute"))
        .agg(
            F.count(F.when(F.col("of.good"), 1)).alias("good"),
            F.count(F.when(~F.col("of.good"), 1)).alias("bad"),
            F.sum(F.when(F.col("of.good"), weight).otherwise(0.0)).alias("good_weight"),
            F.sum(F.when(~F.col("of.good"), weight).otherwise(0.0)).alias("bad_weight"),
            F.sum(weight * weight).alias("squares"),
        )
        .withColumn("definitions", F.lit(rules.definitions)),
        schema.SLO_MINUTES,
    )


def _with_evidence(moves: DataFrame, beside: Evidence) -> DataFrame:
    """Add when a cancel was requested, whether the move was paused, and the highest limit of its run."""
    cancels = (
        beside.runs.where(F.col("cancel_requested").isNotNull())
        .groupBy(*CHAIN)
        .agg(F.min("cancel_requested").alias("cancel_requested"))
    )
    of_runs = beside.moves.where(F.col("carries_out").isNotNull()).select("id", "carries_out")
    paused = (
        beside.move_phases.where(F.col("phase") == schema.PAUSED)
        .join(of_runs, ["id"], "left")
        .select(F.coalesce("carries_out", "id").alias("id"))
        .distinct()
        .withColumn("paused", F.lit(True))
    )
    spans = beside.throttle_spans.where(F.col("scope") == schema.OF_RUN).select(
        *("namespace", F.col("workflow_id").alias("holder"), "rate", "began", F.col("ended").alias("over"))
    )
    holder = F.coalesce("carried_by", "workflow_id").alias("holder")
    mine = moves.select("id", "namespace", holder, "started", "finished")
    overlap = (F.col("finished").isNull() | (F.col("began") <= F.col("finished"))) & (
        F.col("over").isNull() | (F.col("over") >= F.col("started"))
    )
    # A limit that is lowered while the move copies does not judge what it copied before; a lifted one, nothing.
    limits = (
        mine.join(spans, ["namespace", "holder"])
        .where(overlap)
        .groupBy("id")
        .agg(F.max("rate").alias("highest_limit"), F.bool_or(F.col("rate").isNull()).alias("lifted"))
    )
    return moves.join(cancels, [*CHAIN], "left").join(paused, ["id"], "left").join(limits, ["id"], "left")


def _event(slo: Slo, placed: Column) -> Column:
    """Return the SLO's event of a move: when it was decided (null if the move has none) and whether it was good."""
    ended = F.col("finished").isNotNull()
    valid: Column
    if slo.event is Event.PLACED:
        valid, good = placed.isin(schema.YES, schema.NO), placed == schema.YES
        at = F.least("end", "deadline")
    elif slo.event is Event.SWAP:
        valid, good, at = ended & (F.col("seconds_locked") > 0), F.col("seconds_locked") <= slo.seconds, F.col("end")
    elif slo.event is Event.RATE:
        limit = F.coalesce("highest_limit", "throttle")
        valid = ended & (limit > 0) & F.col("mean_rate").isNotNull() & ~F.coalesce("lifted", F.lit(False))
        good, at = F.col("mean_rate") <= limit * (1 + slo.tolerance), F.col("end")
    elif slo.event is Event.UNATTENDED:
        outcomes = (*schema.DONE, schema.FAILED, schema.CANCELLED, schema.TERMINATED, schema.TIMED_OUT)
        counts = ~F.coalesce(F.col("reason"), F.lit("")).isin(*sorted(NOT_A_MOVE))
        valid, at = ended & F.col("outcome").isin(*outcomes) & counts, F.col("end")
        stopped = F.coalesce("paused", F.lit(False)) | (F.coalesce(F.col("spent")[StallReason.STOPPED], F.lit(0.0)) > 0)
        good = F.col("outcome").isin(*schema.DONE) & ~stopped
    else:
        due = F.timestamp_micros(F.unix_micros("cancel_requested") + F.lit(round(slo.seconds * 1e6)))
        # A request after the move's end, while the old copy was due to be deleted, cancels nothing.
        valid = (F.col("cancel_requested") <= F.col("end")) & (ended | (F.col("end") > due))
        good, at = F.col("end") <= due, F.least(F.col("end"), due)
    weight = F.coalesce(F.col("bytes_total").cast("double"), F.lit(0.0))
    return F.struct(
        F.lit(slo.name).alias("slo"),
        F.when(valid, at).alias("at"),
        F.coalesce(good, F.lit(False)).alias("good"),
        (weight if slo.weight is Weight.BYTES else F.lit(1.0)).alias("weight"),
    )


def burn_rate(minutes: DataFrame, rules: Rules, as_of: datetime, since: date | None = None) -> DataFrame:
    """Return the budgets and burn rates as of each day's end, and now, from the day of the first event on.

    Only the days from `since` are computed: what moves of a day change is on that day or later. Without an event there
    are the rows of today alone.
    """
    days = _days(minutes, as_of, since)
    slos = F.array(*[_objective(slo) for slo in rules.slos])
    until = F.least(F.unix_micros(F.lit(as_of)), F.unix_micros((F.date_add("day", 1)).cast("timestamp")) - 1)
    rows = days.select("day", until.alias("now"), F.explode(slos).alias("of")).select(
        "day", (F.col("now") / 60_000_000).cast("bigint").alias("last"), "of.*"
    )
    reach = F.greatest(F.col("budget_minutes"), F.lit(max(WINDOWS.values())))
    events = minutes.withColumn("at", (F.unix_micros("minute") / 60_000_000).cast("bigint")).drop("day")
    near = events.join(F.broadcast(rows), ["slo"]).where(
        (F.col("at") <= F.col("last")) & (F.col("at") > F.col("last") - reach)
    )
    spans = {"budget": F.col("budget_minutes"), **{name: F.lit(length) for name, length in WINDOWS.items()}}

    def total(what: str, span: Column) -> Column:
        return F.sum(F.when(F.col("at") > F.col("last") - span, F.col(what)))

    sums = near.groupBy("day", "slo").agg(
        *[
            total(what, span).alias(f"{name}_{what}")
            for name, span in spans.items()
            for what in ("good", "bad", "good_weight", "bad_weight", "squares")
            if name == "budget" or what != "squares"
        ]
    )
    allowed = 1 - F.col("objective")

    def enough(name: str) -> Column:
        return F.col(f"{name}_good") + F.col(f"{name}_bad") >= FEWEST

    def spent(name: str) -> Column:
        good, bad = F.col(f"{name}_good_weight"), F.col(f"{name}_bad_weight")
        return F.when(good + bad > 0, bad / (good + bad))

    good, bad = F.col("budget_good_weight"), F.col("budget_bad_weight")
    weighed = good + bad > 0
    # Of weighted events as many count as would give the same variance with equal weights (Kish 1965).
    effective = (good + bad) * (good + bad) / F.when(F.col("budget_squares") > 0, F.col("budget_squares"))
    low, high = wilson(good / F.when(weighed, good + bad) * effective, effective)
    burns = {f"burn_{name}": F.when(enough(name), spent(name) / allowed) for name in WINDOWS}
    both = [
        ((burns[f"burn_{one}"] > F.col(f"at_{one}")) & (burns[f"burn_{other}"] > F.col(f"at_{one}")), word)
        for one, other, _, word in PAIRS
    ]
    alarm = reduce(lambda found, pair: F.when(pair[0], F.lit(pair[1])).otherwise(found), reversed(both), F.lit(None))
    return conform(
        rows.join(sums, ["day", "slo"], "left").withColumns(
            {
                "until": F.timestamp_micros(F.col("last") * 60_000_000),
                "good": F.coalesce("budget_good", F.lit(0)),
                "bad": F.coalesce("budget_bad", F.lit(0)),
                "share": F.when(weighed, good / (good + bad)),
                "low": F.when(weighed, low),
                "high": F.when(weighed, high),
                "budget_left": F.when(enough("budget"), 1 - spent("budget") / allowed),
                **burns,
                "alarm": alarm,
                "definitions": F.lit(rules.definitions),
            }
        ),
        schema.BURN_RATE,
    )


def _days(minutes: DataFrame, as_of: datetime, since: date | None) -> DataFrame:
    today = F.to_date(F.lit(as_of))
    first = F.coalesce(F.to_date(F.min("minute")), today)
    begin = first if since is None else F.greatest(first, F.lit(since))
    return minutes.agg(F.least(begin, today).alias("begin")).select(F.explode(F.sequence("begin", today)).alias("day"))


def _objective(slo: Slo) -> Column:
    values = {
        "slo": slo.name,
        "event": str(slo.event),
        "objective": slo.objective,
        "window_days": slo.window_days,
        "weight": str(slo.weight),
        "budget_minutes": slo.window_days * _DAY_MINUTES,
        **{f"at_{one}": threshold(slo, one, spent) for one, _, spent, _ in PAIRS},
    }
    return F.struct(*[F.lit(value).alias(name) for name, value in values.items()])
