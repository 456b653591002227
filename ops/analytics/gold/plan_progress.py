"""Gold: how far each plan was, minute by minute; and what became of its moves."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.gold.sla import met_sla
from ops.analytics.schema import conform
from ops.analytics.silver.histories import CHAIN, seconds_between
from workflows.model import names
from workflows.model.plans.running.plan_results import PlanOutcome


def plan_progress(plans: DataFrame, moves: DataFrame) -> DataFrame:
    """Return the progress of these plans, minute by minute. The rate, and with it the ETA, is that since the first lane
    began: before that a plan may wait for its approval or its window.
    """
    ended = _moves_of(plans, moves.where(F.col("finished").isNotNull()))
    plan = ("namespace", "plan", "plan_chain", "plan_started", "day", "moves_total", "plan_bytes")
    minutes = ended.groupBy(*plan, F.date_trunc("minute", "finished").alias("minute")).agg(
        F.count(F.lit(1)).alias("ended"),
        F.count(F.when(F.col("done"), 1)).alias("done_now"),
        F.count(F.when(~F.col("done"), 1)).alias("missed_now"),
        F.sum("bytes").alias("bytes"),
        F.min("began").alias("began"),
    )
    so_far = W.partitionBy("namespace", "plan", "plan_chain").orderBy("minute")

    def total(name: str) -> Column:
        return F.sum(name).over(so_far.rowsBetween(W.unboundedPreceding, W.currentRow))

    began = F.min("began").over(W.partitionBy("namespace", "plan", "plan_chain"))
    end = F.col("minute") + F.expr("INTERVAL 1 MINUTE")
    left = F.col("bytes_total") - F.col("bytes_done")
    micros = F.unix_micros(end) + (left / F.col("rate") * 1e6).cast("bigint")
    return conform(
        minutes.withColumns({"done": total("done_now"), "missed": total("missed_now"), "bytes_done": total("bytes")})
        .withColumns(
            {
                "workflow_id": F.col("plan"),
                "chain": F.col("plan_chain"),
                "bytes_total": F.greatest("plan_bytes", "bytes_done"),
                "rate": F.col("bytes_done") / seconds_between(began, end),
            }
        )
        .withColumn("eta", F.when(F.col("bytes_done") > 0, F.timestamp_micros(micros))),
        schema.PLAN_PROGRESS,
    )


def judged_plans(plans: DataFrame, moves: DataFrame, as_of: datetime) -> DataFrame:
    """Return the plans with what became of their moves, and whether they met their deadlines, as of a time."""
    # A move that was tried again counts once.
    last = (
        _moves_of(plans, moves)
        .groupBy("namespace", "plan", "plan_chain", "topic", "partition", "of_node")
        .agg(
            F.max("done").alias("done"), F.max(F.col("finished").isNull()).alias("runs"), F.sum("bytes").alias("bytes")
        )
    )
    counted = last.groupBy("namespace", F.col("plan").alias("workflow_id"), F.col("plan_chain").alias("chain")).agg(
        F.count(F.when(F.col("done"), 1)).alias("done"),
        F.count(F.when(~F.col("done") & ~F.col("runs"), 1)).alias("missed"),
        F.count(F.when(~F.col("done") & F.col("runs"), 1)).alias("running"),
        F.sum("bytes").alias("bytes_done"),
    )
    undone = F.col("outcome") == PlanOutcome.ROLLED_BACK
    met = met_sla(F.lit(as_of), F.lit(None).cast("string"))
    zeros = {name: F.coalesce(name, F.lit(0)) for name in ("done", "missed", "running", "bytes_done")}
    # Its lanes there and back are the same moves, and none of them is where the plan requested it.
    zeros["done"] = F.when(undone, F.lit(0)).otherwise(zeros["done"])
    return conform(plans.join(counted, [*CHAIN], "left").withColumns({**zeros, "met_sla": met}), schema.JUDGED_PLANS)


def _moves_of(plans: DataFrame, moves: DataFrame) -> DataFrame:
    """Return the moves of plans, each beside its plan. The replicas of a move between brokers are one move."""
    of = plans.select(
        *("namespace", F.col("workflow_id").alias("plan"), F.col("chain").alias("plan_chain"), "day"),
        *(F.col("started").alias("plan_started"), F.col("finished").alias("plan_finished")),
        *(F.col("moves").alias("moves_total"), F.col("bytes_total").alias("plan_bytes")),
    )
    # A plan's id may be used again.
    during = (F.col("started") >= F.col("plan_started")) & (
        F.col("plan_finished").isNull() | (F.col("started") <= F.col("plan_finished"))
    )
    plan = ("namespace", "plan", "plan_chain", "plan_started", "day", "moves_total", "plan_bytes")
    node = F.when(F.col("kind") == schema.DISK, F.col("node"))
    copied = F.when(F.col("outcome") == schema.MOVED, F.col("bytes_copied")).otherwise(F.lit(0))
    return (
        moves.where(F.col("workflow_type") == names.PLAN_LANE)
        .drop("day", "bytes_total")
        .join(of, ["namespace", "plan"])
        .where(during)
        .groupBy(*plan, "chain", "topic", "partition", node.alias("of_node"))
        .agg(
            F.max("finished").alias("finished"),
            F.min("started").alias("began"),
            F.max(F.col("outcome").isin(*schema.DONE)).alias("done"),
            F.sum(copied).alias("bytes"),
        )
    )
