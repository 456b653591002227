"""Gold: deadlines and their attainment. A deadline is the run's own, else that of a rule.

Each replica is judged by itself here. The run judges its lane, all its replicas together (`sla` in
`workflows/model/move/moves.py`), with the same table of verdicts (`storage_node/model/sla.py`).
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.gold.replicas import counted
from ops.analytics.gold.rules import Rules
from ops.analytics.numbers import Z
from ops.analytics.schema import conform
from ops.analytics.silver.histories import seconds_between
from storage_node.model.sla import IN_TARGET, NOT_A_MOVE, WITHDRAWN

#: The value of `sla_rule` for a deadline that the run, or its plan, was given.
OF_RUN = "run"


def judged(moves: DataFrame, rules: Rules, as_of: datetime) -> DataFrame:
    """Return the moves with their durations and deadlines, and whether they met these, as of a time.

    Rules apply to moves that came without an SLA and are not part of another one: those of Kafka's tools.
    """
    now = F.lit(as_of)
    if "carried_by" not in moves.columns:
        moves = moves.withColumn("carried_by", F.lit(None))
    seconds, name = F.lit(None).cast("double"), F.lit(None).cast("string")
    for rule in reversed(rules.rules):
        applies = F.lit(True)
        if rule.kind:
            applies = applies & (F.col("kind") == rule.kind)
        if rule.topic:
            applies = applies & F.coalesce(F.col("topic").rlike(f"^(?:{rule.topic})$"), F.lit(False))
        if rule.node is not None:
            applies = applies & F.coalesce(F.col("node") == rule.node, F.lit(False))
        allowed = F.lit(rule.seconds) + F.lit(rule.seconds_per_gb) * F.coalesce("bytes_total", F.lit(0)) / F.lit(1e9)
        seconds, name = F.when(applies, allowed).otherwise(seconds), F.when(applies, F.lit(rule.name)).otherwise(name)
    whole = F.col("parent").isNull() & F.col("carries_out").isNull()
    by_rule = F.col("asked_seconds").isNull() & whole
    deadline = F.timestamp_micros(F.unix_micros("started") + (F.col("deadline_seconds") * 1e6).cast("bigint"))
    return conform(
        moves.withColumns(
            {
                "duration_seconds": seconds_between(F.col("started"), F.coalesce("finished", now)),
                "deadline_seconds": F.when(by_rule, seconds).otherwise(F.col("asked_seconds")),
                "sla_rule": F.when(F.col("asked_seconds").isNotNull(), F.lit(OF_RUN)).when(by_rule, name),
            }
        )
        .withColumn("deadline", deadline)
        .withColumn("met_sla", met_sla(now, F.col("reason"))),
        schema.JUDGED_MOVES,
    )


def met_sla(now: Column, reason: Column) -> Column:
    """Return whether each move, or plan, met its deadline: `storage_node.model.sla.judge` as a column."""
    withdrawn = F.col("outcome").isin(*sorted(WITHDRAWN)) | F.coalesce(reason, F.lit("")).isin(*sorted(NOT_A_MOVE))
    return (
        F.when(F.col("deadline").isNull(), F.lit(schema.NO_SLA))
        .when(F.coalesce("finished", now) > F.col("deadline"), F.lit(schema.NO))
        .when(F.col("open"), F.lit(schema.NOT_DUE))
        .when(F.col("outcome").isin(*sorted(IN_TARGET)), F.lit(schema.YES))
        .when(withdrawn, F.lit(schema.EXCLUDED))
        .otherwise(F.lit(schema.NO))
    )


def sla_summary(judged_moves: DataFrame) -> DataFrame:
    """Return attainment and times over all moves, and by kind, node and plan, with 95 % Wilson intervals."""
    return conform(_attained(judged_moves, []), schema.SLA_SUMMARY).orderBy("scope", "value")


def sla_daily(judged_moves: DataFrame, rules: Rules) -> DataFrame:
    """Return the same for the moves that started on each day."""
    return conform(_attained(judged_moves, ["day"]).withColumn("rules", F.lit(rules.digest)), schema.SLA_DAILY)


def _attained(moves: DataFrame, by: list[str]) -> DataFrame:
    def scope(name: str, value: Column) -> Column:
        return F.struct(F.lit(name).alias("scope"), value.alias("value"))

    scopes = F.array(
        scope("all", F.lit("")),
        scope("kind", F.col("kind")),
        scope("node", F.coalesce(F.col("node").cast("string"), F.lit("?"))),
        scope("plan", F.col("plan")),
    )
    done = F.col("outcome").isin(*schema.DONE)
    busy = F.col("seconds_copying") + F.col("seconds_throttled") + F.col("seconds_stalled")

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, F.lit(1)))

    totals = (
        counted(moves)
        .withColumn("of", F.explode(F.filter(scopes, lambda one: one["value"].isNotNull())))
        .groupBy(*by, F.col("of.scope").alias("scope"), F.col("of.value").alias("value"))
        .agg(
            F.count(F.lit(1)).alias("moves"),
            count(done).alias("moved"),
            count(F.col("outcome").isin(schema.FAILED, schema.TIMED_OUT, schema.TERMINATED)).alias("failed"),
            count(F.col("outcome").isin(schema.CANCELLED, schema.SUPERSEDED)).alias("cancelled"),
            count(F.col("open")).alias("open"),
            count(F.col("met_sla") != schema.NO_SLA).alias("asked"),
            count(F.col("met_sla") == schema.YES).alias("met"),
            count(F.col("met_sla") == schema.NO).alias("missed"),
            count(F.col("met_sla") == schema.NOT_DUE).alias("not_due"),
            count(F.col("met_sla") == schema.EXCLUDED).alias("excluded"),
            F.sum("bytes_copied").alias("bytes_copied"),
            F.percentile(F.when(done, F.col("duration_seconds")), F.lit(0.5)).alias("p50_seconds"),
            F.percentile(F.when(done, F.col("duration_seconds")), F.lit(0.95)).alias("p95_seconds"),
            F.max(F.when(done, F.col("duration_seconds"))).alias("max_seconds"),
            F.sum(F.when(busy > 0, F.col("bytes_written"))).alias("copied"),
            F.sum(busy).alias("busy"),
        )
    )
    valid = F.col("met") + F.col("missed")
    low, high = wilson(F.col("met").cast("double"), valid.cast("double"))
    return totals.withColumns(
        {
            "attainment": F.when(valid > 0, F.col("met") / valid),
            "low": F.when(valid > 0, low),
            "high": F.when(valid > 0, high),
            "mean_rate": F.when((F.col("busy") > 0) & (F.col("copied") > 0), F.col("copied") / F.col("busy")),
        }
    )


def wilson(good: Column, total: Column) -> tuple[Column, Column]:
    """Return the Wilson interval of a share; `numbers.wilson` is the same for plain numbers."""
    n = F.greatest(total, F.lit(1.0))
    share = good / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * F.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return F.greatest(middle - half, F.lit(0.0)), F.least(middle + half, F.lit(1.0))
