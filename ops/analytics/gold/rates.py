"""Gold: how fast replicas were copied, by hour and pair of directories or nodes."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.gold.replicas import copies
from ops.analytics.schema import conform
from ops.analytics.silver.histories import seconds_between


def rates_hourly(moves: DataFrame, phases: DataFrame) -> DataFrame:
    """Return the bytes and the seconds of copying per hour. A move's bytes are spread evenly over its copying time.

    Of a plan's move that a run carries out, the run's own copy counts.
    """
    busy = phases.where(F.col("phase").isin(*schema.BUSY) & (F.col("seconds") > 0))
    hours = busy.withColumn(
        "hour",
        F.explode(F.sequence(F.date_trunc("hour", "began"), F.date_trunc("hour", "ended"), F.expr("INTERVAL 1 HOUR"))),
    )
    end = F.col("hour") + F.expr("INTERVAL 1 HOUR")
    within = hours.withColumn(
        "within", seconds_between(F.greatest("began", "hour"), F.least(F.col("ended"), end))
    ).where(F.col("within") > 0)
    per_move = within.groupBy("id", "hour").agg(F.sum("within").alias("within"))
    whole = busy.groupBy("id").agg(F.sum("seconds").alias("whole"))
    of = copies(moves).select("id", "kind", "node", "from_node", "source", "directory", "bytes_written")
    origin = F.when(F.col("kind") == schema.DISK, F.col("source")).otherwise(
        F.concat(F.lit("node "), F.col("from_node"))
    )
    return conform(
        per_move.join(whole, "id")
        .join(of, "id")
        .withColumns(
            {
                "origin": F.coalesce(origin, F.lit("")),
                "target": F.coalesce("directory", F.lit("")),
                "node": F.coalesce("node", F.lit(-1)),
                "share": F.col("bytes_written") * F.col("within") / F.col("whole"),
            }
        )
        .groupBy("hour", "kind", "node", "origin", "target")
        .agg(F.countDistinct("id").alias("moves"), F.sum("share").alias("bytes"), F.sum("within").alias("seconds"))
        .withColumns({"rate": F.col("bytes") / F.col("seconds"), "day": F.to_date("hour")}),
        schema.RATES_HOURLY,
    )
