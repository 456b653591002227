"""Gold: the attempts and failures of activities, by day, workflow type, activity and node."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.schema import conform


def retries(activities: DataFrame) -> DataFrame:
    """Return how often activities were tried and how they failed."""

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, F.lit(1)))

    state, attempt = F.col("state"), F.coalesce("attempt", F.lit(1))
    return conform(
        activities.where(F.col("activity_type").isNotNull())
        .withColumns({"node": F.coalesce("node", F.lit(-1)), "workflow_type": F.coalesce("workflow_type", F.lit(""))})
        .groupBy("day", "workflow_type", "activity_type", "node")
        .agg(
            F.count(F.lit(1)).alias("activities"),
            F.sum(attempt).alias("attempts"),
            count(attempt > 1).alias("retried"),
            count(state == schema.FAILED).alias("failed"),
            count(state == schema.TIMED_OUT).alias("timed_out"),
            count(state == schema.CANCELLED).alias("cancelled"),
            F.max_by(
                "failure_type",
                F.when(F.col("failure_type").isNotNull(), F.struct("closed", "run_id", "scheduled_event_id")),
            ).alias("last_failure"),
        ),
        schema.RETRIES,
    )
