"""Silver: the requested moves, and the rows about them in results, failures and heartbeats.

A history has no events for retries; the rows that activities return (`workflows.model.calls.MoveRow`) have these facts.
Their totals add up over attempts and steps, so a replica's largest value is its total.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.histories import attribute, payload
from workflows.model import calls, names

MOVE = ("namespace", "workflow_id", "chain", "topic", "partition")

#: Activities of a move.
STEPS = (calls.CREATE_MOVE, calls.COPY, calls.SWAP, calls.CANCEL_MOVE, calls.DELETE_REPLICA)

_TEXTS = ("outcome", "source", "directory", "error", "message", "stall", "stall_message")
_LONGS = ("claim", "bytes_total", "bytes_copied", "bytes_resumed", "bytes_written")
_DOUBLES = ("seconds_queued", "seconds_copying", "seconds_throttled", "seconds_stalled", "seconds_locked")
NUMBERS = (*_LONGS[1:], *_DOUBLES)


def texts(*names: str) -> T.ArrayType:
    """Return the type of a list of objects with text fields, so that one bad field does not invalidate the others."""
    return T.ArrayType(T.StructType([T.StructField(name, T.StringType()) for name in names]))


_BY_REASON = T.StructField(
    "seconds_by_reason", T.StructType([T.StructField(r, T.StringType()) for r in schema.COUNTED_REASONS])
)
_NAMES = ("topic", "partition", "attempts", *_TEXTS, *_LONGS, *_DOUBLES)
_ROWS = T.ArrayType(T.StructType([*(T.StructField(name, T.StringType()) for name in _NAMES), _BY_REASON]))
_REQUESTED = texts("topic", "partition", "node", "directory", "throttle", "deadline_seconds", "sla_seconds")


def as_list(text: Column) -> Column:
    """Return the JSON text of a list, of an object with `rows` or of a single object, as the text of a list."""
    trimmed = F.trim(text)
    return F.when(trimmed.startswith("["), trimmed).when(
        trimmed.startswith("{"),
        F.coalesce(F.get_json_object(trimmed, "$.rows"), F.concat(F.lit("["), trimmed, F.lit("]"))),
    )


def unquoted(text: Column) -> Column:
    """Return the text, or the content of a JSON string that contains JSON."""
    quoted = F.trim(text).startswith('"')
    return F.when(quoted, F.get_json_object(F.concat(F.lit("["), text, F.lit("]")), "$[0]")).otherwise(text)


def chained(table: DataFrame, runs: DataFrame, workflow_type: str = names.MOVE_REPLICA) -> DataFrame:
    """Add the chain of its run to each row; drop rows of runs of other types."""
    moves = runs.where(F.col("workflow_type") == workflow_type)
    return table.join(
        moves.select("namespace", "workflow_id", "run_id", "chain"), ["namespace", "workflow_id", "run_id"]
    )


def moves_asked(runs: DataFrame) -> DataFrame:
    """Return the replicas in the parameter of each chain's first run; one row for a parameter without replicas.

    A run has one SLA, which any of its entries may give.
    """
    first = runs.where(
        (F.col("workflow_type") == names.MOVE_REPLICA)
        & (F.col("continued_run_id").isNull() | (F.col("continued_run_id") == ""))
    )
    run = W.partitionBy("namespace", "workflow_id", "run_id")
    entries = F.explode_outer(F.from_json(as_list(unquoted(F.col("input"))), _REQUESTED))
    requested = first.withColumn("asked", entries).select("*", "asked.*")
    return conform(
        requested.withColumns(
            {
                "partition": F.col("partition").try_cast("int"),
                "node": F.col("node").try_cast("int"),
                "throttle": F.col("throttle").try_cast("double"),
                "asked_seconds": F.max(F.coalesce("deadline_seconds", "sla_seconds").try_cast("double")).over(run),
                "replicas": F.count(F.lit(1)).over(run),
            }
        ).dropDuplicates([*MOVE]),
        schema.MOVES_ASKED,
    )


def move_facts(runs: DataFrame, activities: DataFrame, events: DataFrame, as_of: datetime) -> DataFrame:
    """Return every MoveRow that was reported up to `as_of`, with its run and step, and when it was reported."""
    now = F.lit(as_of)
    by_activity = chained(activities.where(F.col("activity_type").isin(*STEPS)), runs).select(
        *("namespace", "workflow_id", "run_id", "chain"),
        F.col("activity_type").alias("step"),
        F.col("scheduled_event_id").alias("reported_by"),
        F.col("scheduled").alias("began"),
        F.coalesce("closed", "heartbeat_at", now).alias("reported_at"),
        "attempt",
        F.coalesce("result", "details").alias("reported"),
    )
    by_run = runs.where((F.col("workflow_type") == names.MOVE_REPLICA) & F.col("result").isNotNull()).select(
        *("namespace", "workflow_id", "run_id", "chain"),
        F.lit("result").alias("step"),
        F.col("events").alias("reported_by"),
        F.col("started").alias("began"),
        F.col("closed").alias("reported_at"),
        F.lit(None).cast("int").alias("attempt"),
        F.col("result").alias("reported"),
    )
    signals = events.where(
        (F.col("event_type") == "WORKFLOW_EXECUTION_SIGNALED") & (attribute("signalName") == "copy_progress")
    )
    by_signal = chained(signals, runs).select(
        *("namespace", "workflow_id", "run_id", "chain"),
        F.lit("progress").alias("step"),
        F.col("event_id").alias("reported_by"),
        F.col("event_time").alias("began"),
        F.col("event_time").alias("reported_at"),
        F.lit(None).cast("int").alias("attempt"),
        payload("input").alias("reported"),
    )
    reported = by_activity.unionByName(by_run).unionByName(by_signal)
    rows = reported.withColumn("row", F.explode(F.from_json(as_list(F.col("reported")), _ROWS))).select("*", "row.*")
    numbers = {name: F.col(name).try_cast("double").cast("bigint") for name in _LONGS}
    numbers |= {name: F.col(name).try_cast("double") for name in _DOUBLES}
    numbers |= {name: F.col(name).try_cast("int") for name in ("partition", "attempts")}
    by_reason = {name: F.col(f"seconds_by_reason.{name}") for name in schema.COUNTED_REASONS}
    numbers |= {f"spent_{name}": seconds.try_cast("double") for name, seconds in by_reason.items()}
    return conform(
        rows.withColumns(numbers).where(F.col("topic").isNotNull() & F.col("partition").isNotNull()), schema.MOVE_FACTS
    )
