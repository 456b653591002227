"""Gold: what held moves, by day, node and reason."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.schema import conform
from storage_node.model.moves import StallReason


def stalls(moves: DataFrame) -> DataFrame:
    """Return how long each reason held the moves that started on a day.

    The waits of a plan's move before its request, and those of the run that carries it out, are of one move.
    """
    move = F.coalesce("carries_out", "id").alias("move")
    held = moves.select("day", "node", "id", move, F.explode("spent").alias("reason", "seconds")).where(
        (F.col("reason") != StallReason.COPYING) & (F.col("seconds") > 0)
    )
    return conform(
        held.groupBy("day", F.coalesce("node", F.lit(-1)).alias("node"), "reason").agg(
            F.countDistinct("move").alias("moves"),
            F.sum("seconds").alias("seconds"),
            F.max("seconds").alias("longest_seconds"),
            F.max_by("id", F.struct("seconds", "id")).alias("longest_id"),
        ),
        schema.STALLS,
    )
