"""Gold: one row per replica's move, and how well the deadlines were met."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.facts import MOVE, NUMBERS
from ops.analytics.silver import conform, seconds_between
from workflows import errors
from workflows.model import calls

CHAIN = ("namespace", "workflow_id", "chain")

#: 97.5 % quantile of the normal distribution: intervals hold with 95 %.
Z = 1.959963984540054

#: What a row's outcome means for the move as a whole. Outcomes that are missing here are steps on the way.
FINAL = {
    calls.SWAPPED: schema.MOVED,
    calls.DELETED: schema.MOVED,
    calls.IN_PLACE: schema.IN_PLACE,
    calls.DROPPED: schema.CANCELLED,
    calls.FAILED: schema.FAILED,
    calls.SUPERSEDED: schema.SUPERSEDED,
}


def move_report(
    runs: DataFrame, asked: DataFrame, facts: DataFrame, phases: DataFrame, activities: DataFrame, as_of: datetime
) -> DataFrame:
    """One row per replica that a run was asked to move or told about, whatever became of it, as of a time."""
    now = F.lit(as_of)
    keys = asked.select(*MOVE).unionByName(facts.select(*MOVE)).distinct()
    wished = asked.drop("run_id").withColumnRenamed("directory", "wished_directory")
    joined = (
        _null_safe(keys, wished, MOVE)
        .join(_chains(runs), [*CHAIN])
        .join(_totals(facts), [*MOVE], "left")
        .join(_times(phases), [*MOVE], "left")
        .join(_nodes(activities, runs), [*CHAIN], "left")
    )
    outcome = F.coalesce(
        "final", F.when(F.col("status") == schema.CONTINUED, F.lit(schema.OPEN)).otherwise(F.col("status"))
    )
    finished = F.coalesce("final_at", "chain_closed")
    deadline = F.timestamp_micros(F.unix_micros("started") + (F.col("deadline_seconds") * 1e6).cast("bigint"))
    named = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    busy = F.col("seconds_copying") + F.col("seconds_throttled") + F.col("seconds_stalled")
    report = (
        joined.withColumns(
            {"outcome": outcome, "finished": finished, "deadline": deadline, "replica": F.nullif(named, F.lit(""))}
        )
        .withColumns(
            {
                "open": F.col("outcome") == schema.OPEN,
                "finished": F.when(F.col("outcome") != schema.OPEN, F.col("finished")),
                "reason": F.when(
                    F.col("outcome").isin(schema.FAILED, schema.TIMED_OUT, schema.SUPERSEDED, schema.OPEN),
                    F.coalesce(F.nullif("error", F.lit("")), "failure_type"),
                ),
            }
        )
        .withColumns(
            {
                "id": F.concat_ws("/", "workflow_id", F.substring("chain", 1, 8), "replica"),
                "node": F.coalesce("node", "queue_node"),
                "directory": F.coalesce(F.nullif("directory", F.lit("")), "wished_directory"),
                "message": F.coalesce(F.nullif("message", F.lit("")), "failure_message"),
                "phase": F.when(F.col("open"), F.coalesce("open_phase", F.lit(schema.WAITING))),
                "duration_seconds": seconds_between(F.col("started"), F.coalesce("finished", now)),
                "bytes_written": own_bytes(),
                "spent": spent(),
                "stall": F.when(F.col("open"), F.col("last_stall.stall")),
                "stall_message": F.when(F.col("open"), F.col("last_stall.stall_message")),
                "throttle": F.coalesce("call_throttle", "throttle"),
                "as_of": now,
            }
        )
        .withColumns(
            {
                "met_sla": met_sla(now),
                "mean_rate": F.when((busy > 0) & (F.col("bytes_written") > 0), F.col("bytes_written") / busy),
            }
        )
    )
    numbers = {name: F.coalesce(name, F.lit(0)) for name in NUMBERS} | {
        "attempts": F.coalesce("attempts", F.lit(0)),
        "seconds_delete_wait": F.coalesce("seconds_delete_wait", F.lit(0.0)),
    }
    return conform(report.withColumns(numbers), schema.MOVE_REPORT)


def own_bytes() -> Column:
    """The bytes that a run's own copiers wrote, which alone belong to its seconds: not what it found on disk.

    A history of an older version does not say. There what was resumed after the run's own retry is taken as its own,
    and what was there at its first attempt is not.
    """
    found = F.greatest(F.col("bytes_copied") - F.coalesce("bytes_resumed", F.lit(0)), F.lit(0))
    older = F.when(F.col("attempts") > 1, F.col("bytes_copied")).otherwise(found)
    return F.when(_told(), F.col("bytes_written")).otherwise(older)


def _told() -> Column:
    """Whether the history says where the time went, and with it what was written."""
    return F.coalesce(*[f"spent_{reason}" for reason in schema.TOLD_REASONS]).isNotNull()


def spent() -> Column:
    """Seconds by reason; a history of an older version tells of its own limit and the node's as one."""
    older = {
        "copying": F.col("seconds_copying") + F.col("seconds_stalled"),
        "queued": F.col("seconds_queued"),
        "run_limit": F.col("seconds_throttled"),
    }
    parts: list[Column] = []
    for reason in schema.TOLD_REASONS:
        value = F.when(_told(), F.col(f"spent_{reason}")).otherwise(older.get(reason, F.lit(None)))
        parts += [F.lit(reason), F.coalesce(value, F.lit(0.0))]
    # What the run knows the reason of lies within the time between two attempts.
    known = [F.coalesce(f"spent_{absence}", F.lit(0.0)) for absence in schema.ABSENCES]
    for absence, seconds in zip(schema.ABSENCES, known, strict=True):
        parts += [F.lit(absence), seconds]
    unknown = F.greatest(F.coalesce("seconds_away", F.lit(0.0)) - sum(known, F.lit(0.0)), F.lit(0.0))
    return F.create_map(*parts, F.lit(schema.AWAY), unknown)


def met_sla(now: Column) -> Column:
    """Whether a move met its deadline.

    What is late is late, open or not. Before the deadline a cancelled or superseded move and one whose plan was
    invalid count neither way; one that failed has missed it.
    """
    ended = F.coalesce("finished", now)
    good = F.col("outcome").isin(schema.MOVED, schema.IN_PLACE)
    left_out = F.col("outcome").isin(schema.CANCELLED, schema.SUPERSEDED) | (
        F.coalesce("reason", F.lit("")) == errors.INVALID_PLAN
    )
    return (
        F.when(F.col("deadline").isNull(), F.lit(schema.NOT_ASKED))
        .when(ended > F.col("deadline"), F.lit(schema.NO))
        .when(F.col("open"), F.lit(schema.NOT_DUE))
        .when(good, F.lit(schema.YES))
        .when(left_out, F.lit(schema.EXCLUDED))
        .otherwise(F.lit(schema.NO))
    )


def sla_summary(report: DataFrame, as_of: datetime) -> DataFrame:
    """Attainment and times over all moves and per node, with a 95 % Wilson interval: moves are few."""
    scopes = F.array(
        F.struct(F.lit("all").alias("scope"), F.lit("").alias("value")),
        F.struct(F.lit("node").alias("scope"), F.coalesce(F.col("node").cast("string"), F.lit("?")).alias("value")),
    )
    done = F.col("outcome").isin(schema.MOVED, schema.IN_PLACE)
    busy = F.col("seconds_copying") + F.col("seconds_throttled") + F.col("seconds_stalled")

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, F.lit(1)))

    counted = (
        report.withColumn("of", F.explode(scopes))
        .groupBy("of")
        .agg(
            F.count(F.lit(1)).alias("moves"),
            count(done).alias("moved"),
            count(F.col("outcome").isin(schema.FAILED, schema.TIMED_OUT, schema.TERMINATED)).alias("failed"),
            count(F.col("outcome").isin(schema.CANCELLED, schema.SUPERSEDED)).alias("cancelled"),
            count(F.col("open")).alias("open"),
            count(F.col("met_sla") != schema.NOT_ASKED).alias("asked"),
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
    return conform(
        counted.withColumns(
            {
                "scope": F.col("of.scope"),
                "value": F.col("of.value"),
                "attainment": F.when(valid > 0, F.col("met") / valid),
                "low": F.when(valid > 0, low),
                "high": F.when(valid > 0, high),
                "mean_rate": F.when((F.col("busy") > 0) & (F.col("copied") > 0), F.col("copied") / F.col("busy")),
                "as_of": F.lit(as_of),
            }
        ),
        schema.SLA_SUMMARY,
    ).orderBy("scope", "value")


def wilson(good: Column, total: Column) -> tuple[Column, Column]:
    """The Wilson interval of a share; `numbers.wilson` is the same for plain numbers."""
    n = F.greatest(total, F.lit(1.0))
    share = good / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * F.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return F.greatest(middle - half, F.lit(0.0)), F.least(middle + half, F.lit(1.0))


def _null_safe(left: DataFrame, right: DataFrame, on: tuple[str, ...]) -> DataFrame:
    """A left join on keys of which some may be null: a run whose parameter could not be read has no topic."""
    renamed = right.select([F.col(name).alias(f"_{name}" if name in on else name) for name in right.columns])
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in on]
    return left.join(renamed, same, "left").drop(*[f"_{name}" for name in on])


def _chains(runs: DataFrame) -> DataFrame:
    """One row per chain of runs: from its first start to its last run's end."""
    return runs.groupBy(*CHAIN).agg(
        F.min("started").alias("started"),
        F.max_by("status", "started").alias("status"),
        F.max_by("closed", "started").alias("chain_closed"),
        F.max_by("failure_type", "started").alias("failure_type"),
        F.max_by("failure_message", "started").alias("failure_message"),
    )


def _totals(facts: DataFrame) -> DataFrame:
    """Per replica its totals, what it ended as, and when that was first told.

    A replica that was once in place has moved, whatever became of its old copy later.
    """
    final = F.create_map(*[F.lit(text) for pair in FINAL.items() for text in pair])[F.col("outcome")]
    order = F.struct("told_at", "told_by")
    replica = W.partitionBy(*MOVE)
    ended = facts.withColumn("class", final).withColumn(
        "final",
        F.coalesce(
            F.max(F.when(F.col("class") == schema.MOVED, F.col("class"))).over(replica),
            F.max_by(F.col("class"), F.when(F.col("class").isNotNull(), order)).over(replica),
        ),
    )

    def last(name: str) -> Column:
        return F.max_by(F.col(name), F.when(F.coalesce(name, F.lit("")) != "", order))

    return ended.groupBy(*MOVE).agg(
        F.max("final").alias("final"),
        F.min(F.when(F.col("class") == F.col("final"), F.col("told_at"))).alias("final_at"),
        *[last(name).alias(name) for name in ("directory", "error", "message")],
        F.min_by("source", F.when(F.col("source") != "", order)).alias("source"),
        *[F.max(name).alias(name) for name in (*NUMBERS, *(f"spent_{reason}" for reason in schema.COUNTED_REASONS))],
        F.max_by(F.struct("stall", "stall_message"), F.when(F.col("step") == "progress", order)).alias("last_stall"),
        F.max(F.greatest(F.coalesce("attempts", F.lit(0)), F.coalesce("attempt", F.lit(0)))).alias("attempts"),
    )


def _times(phases: DataFrame) -> DataFrame:
    """Per replica the phase it is in, and how long its old copy waited to be deleted."""
    return phases.groupBy(*MOVE).agg(
        F.max_by("phase", F.when(F.col("open"), F.col("ended"))).alias("open_phase"),
        F.sum(F.when(F.col("phase") == schema.DELETE_WAIT, F.col("seconds"))).alias("seconds_delete_wait"),
        F.sum(F.when(F.col("phase") == schema.WAITING, F.col("seconds"))).alias("seconds_away"),
    )


def _nodes(activities: DataFrame, runs: DataFrame) -> DataFrame:
    """Per chain the node that its steps ran on, and the limit of the last of them."""
    throttle = F.get_json_object("input", "$.throttle").try_cast("double")
    return (
        activities.where(F.col("node").isNotNull())
        .join(runs.select("namespace", "workflow_id", "run_id", "chain"), ["namespace", "workflow_id", "run_id"])
        .groupBy(*CHAIN)
        .agg(
            F.max("node").alias("queue_node"),
            F.max_by(throttle, F.struct("scheduled", "scheduled_event_id")).alias("call_throttle"),
        )
    )
