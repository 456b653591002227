"""One row per replica moved: a plan's move on storage nodes has its lane's row and that of the run that carries it out,
and a reassignment to a directory may have its own row and that of its part between disks.

The lane's row has the plan, the deadline and the outcome; the run's has what was measured, such as the time of the copy
itself and what held it. Of a reassignment and its part both were measured: they add up. `silver.plan_runs` joins them
by `carries_out`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from storage_node.model.moves import StallReason
from workflows.model import names

#: The seconds that a run measures better than its lane, which counts from the request to the end.
_SECONDS = ("copying", "throttled", "stalled", "locked", "delete_delay")
_BUSY = ("copying", "throttled", "stalled")


def counted(moves: DataFrame) -> DataFrame:
    """Return the rows that count each replica once."""
    return moves.where(F.col("carries_out").isNull())


def copies(moves: DataFrame) -> DataFrame:
    """Return the rows whose copying times were measured: without a lane's move that a run carries out."""
    return moves.join(_carried(moves), ["id"], "left_anti")


def measured(moves: DataFrame, of_all: DataFrame | None = None) -> DataFrame:
    """Return the rows that count, a plan's moves with what the runs measured that carry them out, and a reassignment's
    with its part between disks added.

    The column `carried_by` is added: the workflow id of the run that began last of these. `of_all` are the moves among
    which these runs are, by default the same ones.
    """
    # A reassignment that no lane requested has measured its own copies.
    itself = F.col("carries_out").isNull() & (F.col("workflow_type") == names.PARTITION_REASSIGNMENT)
    key = F.when(itself, F.col("id")).otherwise(F.col("carries_out"))
    runs = (of_all if of_all is not None else moves).withColumns({"itself": itself, "key": key})
    runs = runs.where(F.col("key").isNotNull())
    order = F.struct("started", "id")
    # A copy that failed may be requested again, and a replica may be directed to its directory after it got its node.
    found = runs.groupBy(F.col("key").alias("id")).agg(
        F.max("itself").alias("run_itself"),
        F.max(~F.col("itself")).alias("run_found"),
        *[F.sum(f"seconds_{name}").alias(f"run_{name}") for name in ("queued", *_SECONDS)],
        *[F.sum(F.col("spent")[reason]).alias(f"run_spent_{reason}") for reason in schema.REASONS],
        F.sum("bytes_written").alias("run_written"),
        F.sum("bytes_resumed").alias("run_resumed"),
        F.max("attempts").alias("run_attempts"),
        F.max_by("workflow_id", order).alias("carried_by"),
        *[
            F.max_by(name, F.when(F.col(name).isNotNull(), order)).alias(f"run_{name}")
            for name in ("source", "directory", "throttle")
        ],
        *[
            F.max_by(name, F.when(F.col("open"), order)).alias(f"run_{name}")
            for name in ("phase", "stall", "stall_message")
        ],
    )
    has = F.coalesce("run_found", F.lit(False))
    own = F.coalesce("run_itself", F.lit(False))
    busy = sum((F.col(f"run_{name}") for name in _BUSY), F.lit(0.0))

    def run(name: str, of: str | None = None) -> Column:
        return F.when(has, F.col(of or f"run_{name}")).otherwise(F.col(name))

    # What a lane's move waited before its request no run counts.
    before = F.when(own, F.lit(0.0)).otherwise(F.col("seconds_queued"))
    queued = before + F.col("run_queued")
    waited = {StallReason.QUEUED: before}
    spent = [
        part
        for reason in schema.REASONS
        for part in (
            F.lit(reason),
            F.coalesce(F.col(f"run_spent_{reason}"), F.lit(0.0)) + waited.get(reason, F.lit(0.0)),
        )
    ]
    rate = F.when((busy > 0) & (F.col("run_written") > 0), F.col("run_written") / busy)
    return (
        counted(moves)
        .join(found, ["id"], "left")
        .withColumns(
            {
                "mean_rate": F.when(has, rate).otherwise(F.col("mean_rate")),
                "spent": F.when(has, F.create_map(*spent)).otherwise(F.col("spent")),
                "seconds_queued": F.when(has, queued).otherwise(F.col("seconds_queued")),
                **{f"seconds_{name}": run(f"seconds_{name}", f"run_{name}") for name in _SECONDS},
                "bytes_written": run("bytes_written", "run_written"),
                "bytes_resumed": run("bytes_resumed", "run_resumed"),
                "attempts": run("attempts"),
                **{
                    name: F.when(own, F.col(name)).otherwise(F.coalesce(f"run_{name}", name))
                    for name in ("throttle", "source", "directory")
                },
                "carried_by": F.when(has, F.col("carried_by")),
                **{
                    name: F.when(F.col("open"), F.coalesce(f"run_{name}", name)).otherwise(F.col(name))
                    for name in ("phase", "stall", "stall_message")
                },
            }
        )
        .select(*moves.columns, "carried_by")
    )


def measured_phases(phases: DataFrame, moves: DataFrame) -> DataFrame:
    """Return the phases of the rows that count: a move has those of the runs that carry it out."""
    of_runs = moves.where(F.col("carries_out").isNotNull()).select("id", "carries_out")
    mine = phases.join(of_runs, ["id"], "left").join(_carried(moves).withColumn("carried", F.lit(True)), ["id"], "left")
    return (
        mine.where(F.col("carried").isNull() | (F.col("phase") != schema.COPYING))
        .withColumn("id", F.coalesce("carries_out", "id"))
        .select(*phases.columns)
    )


def _carried(moves: DataFrame) -> DataFrame:
    """Return the ids of the moves of lanes that a run carries out: a reassignment's own row has measured its copies."""
    of_parent = F.coalesce(F.col("carries_out").startswith(F.concat("parent", F.lit("/"))), F.lit(False))
    of_lanes = moves.where(F.col("carries_out").isNotNull() & ~of_parent)
    return of_lanes.select(F.col("carries_out").alias("id")).distinct()
