"""Silver: one row per plan, from the runs of ReassignmentPlan."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import chained
from ops.analytics.silver.histories import CHAIN, attribute, run_order, seconds_between
from workflows.model import names
from workflows.model.plans.running import calls
from workflows.model.search_attributes import PHASE

_INTS, _TEXTS = T.ArrayType(T.IntegerType()), T.ArrayType(T.StringType())


def plans(runs: DataFrame, chains: DataFrame, activities: DataFrame, events: DataFrame) -> DataFrame:
    """Return one row per plan. What it means for the cluster is the result of its check, in the chain's first run."""
    mine = runs.where(F.col("workflow_type") == names.REASSIGNMENT_PLAN)
    steps = chained(activities, mine, names.REASSIGNMENT_PLAN)
    checked = (F.col("activity_type") == calls.CHECK_PLAN) & F.col("result").isNotNull()
    chose = F.col("activity_type").isin(calls.CHECK_PLAN, calls.CHOOSE_LANES)
    order = F.struct("scheduled", "scheduled_event_id")
    of_steps = steps.groupBy(*CHAIN).agg(
        F.max_by("result", F.when(checked, order)).alias("check"),
        # Options can be changed while the plan runs: the last choice of lanes has those that hold.
        F.max_by(F.get_json_object("input", "$.options"), F.when(chose, order)).alias("options"),
        F.max_by(
            F.get_json_object("input", "$.cluster"), F.when(F.col("activity_type") == calls.CHECK_PLAN, order)
        ).alias("cluster"),
    )
    phases = chained(
        events.where(F.col("event_type") == "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"), mine, names.REASSIGNMENT_PLAN
    ).withColumn("phase", F.unbase64(attribute(f"searchAttributes.indexedFields.{PHASE}.data")).cast("string"))
    last_phase = (
        phases.where(F.col("phase").isNotNull())
        .groupBy(*CHAIN)
        .agg(F.max_by("phase", F.struct("event_time", "event_id")).alias("last_phase"))
    )
    last = mine.groupBy(*CHAIN).agg(F.max_by("result", run_order()).alias("result"))
    completed = F.col("status") == schema.COMPLETED

    def check(name: str, kind: str) -> Column:
        return F.get_json_object("check", f"$.{name}").try_cast(kind)

    def option(name: str) -> Column:
        return F.get_json_object("options", f"$.{name}")

    verified = F.get_json_object("result", "$.verified.ok")
    is_open = F.col("status").isin(schema.OPEN, schema.CONTINUED)
    deadline = F.try_to_timestamp(F.nullif(option("deadline"), F.lit("")))
    ended = F.when(~is_open, F.col("chain_closed"))
    return conform(
        chains.where(F.col("workflow_type") == names.REASSIGNMENT_PLAN)
        .join(of_steps, [*CHAIN], "left")
        .join(last, [*CHAIN], "left")
        .join(last_phase, [*CHAIN], "left")
        .withColumns(
            {
                "outcome": F.when(is_open, F.lit(schema.OPEN))
                .when(completed, F.coalesce(F.get_json_object("result", "$.outcome"), F.lit(schema.COMPLETED)))
                .otherwise(F.col("status")),
                "phase": F.when(is_open, F.get_json_object(F.concat(F.lit("["), "last_phase", F.lit("]")), "$[0]")),
                "open": is_open,
                "finished": ended,
                "reason": F.when(~is_open & ~completed, F.col("failure_type")),
                "message": F.when(~is_open & ~completed, F.col("failure_message")),
                "seconds": seconds_between(F.col("started"), ended),
                "moves": check("moves", "bigint"),
                "lanes": check("lanes", "bigint"),
                "in_place": check("in_place", "bigint"),
                "bytes_total": check("bytes_total", "bigint"),
                "bytes_copied": F.when(completed, F.get_json_object("result", "$.bytes_copied").try_cast("bigint")),
                "seconds_low": check("seconds_low", "double"),
                "seconds_high": check("seconds_high", "double"),
                "nodes": F.from_json(F.get_json_object("check", "$.brokers"), _INTS),
                "topics": F.from_json(F.get_json_object("check", "$.topics"), _TEXTS),
                "deadline": deadline,
                "approval": option("approval"),
                "throttle_between_brokers": option("throttle_between_brokers").try_cast("double"),
                "throttle_between_directories": option("throttle_between_directories").try_cast("double"),
                "verified": F.when(completed, verified == "true"),
                "differences": F.when(completed, F.get_json_object("result", "$.verified.count").try_cast("bigint")),
            }
        ),
        schema.PLANS,
    )
