"""Silver: the moves of plans, from the runs of PlanLane, which know the cluster by its admin API alone.

What a lane was to do is its parameter. What became of it are the rows of its steps, of the signal with which it reports
to its plan, and of its result: a lane that was cancelled has no result, one that was terminated sent no signal.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import as_list, chained, unquoted
from ops.analytics.silver.histories import CHAIN, attribute, payload, seconds_between
from ops.analytics.silver.moves import chain_outcome, ended
from ops.analytics.silver.phases import SMALLEST_GAP
from ops.analytics.silver.reassignments import NodeMoves, replicas_of
from storage_node.model.moves import StallReason
from workflows.model import names
from workflows.model.move.parameter import ANY
from workflows.model.plans.running import calls
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.values import MoveKind

Put = Callable[[str, DataFrame], DataFrame]

#: The outcome of a move by that of its row. A skipped move is one that an operator cancelled before it began.
FINAL = {
    MoveOutcome.MOVED: schema.MOVED,
    MoveOutcome.IN_PLACE: schema.IN_PLACE,
    MoveOutcome.CANCELLED: schema.CANCELLED,
    MoveOutcome.SKIPPED: schema.CANCELLED,
    MoveOutcome.SUPERSEDED: schema.SUPERSEDED,
    MoveOutcome.TOPIC_DELETED: schema.FAILED,
    MoveOutcome.FAILED: schema.FAILED,
}
STEPS = (calls.REQUEST_MOVES, calls.FOLLOW_MOVES, calls.CANCEL_MOVES)

_KEY = (*CHAIN, "key")
_TEXT, _INTS = T.StringType(), T.ArrayType(T.IntegerType())


def _struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


_MOVES = T.ArrayType(
    _struct(
        **dict.fromkeys(("kind", "topic", "partition", "size", "node", "source", "target"), _TEXT),
        before=_INTS, after=_INTS, directories=T.MapType(_TEXT, _TEXT),
    )
)  # fmt: skip
_ROWS = T.ArrayType(
    _struct(**dict.fromkeys(("key", "outcome", "state", "copied", "total", "seconds", "reason"), _TEXT))
)
_KEYS = T.ArrayType(_struct(**dict.fromkeys(("kind", "topic", "partition", "node"), _TEXT)))


def plan_moves(
    runs: DataFrame, chains: DataFrame, activities: DataFrame, events: DataFrame, as_of: datetime, put: Put
) -> NodeMoves:
    """Return the moves of plans up to `as_of`, and their intervals for `phases.move_phases`."""
    mine = runs.where(F.col("workflow_type") == names.PLAN_LANE)
    steps = chained(activities.where(F.col("activity_type").isin(*STEPS)), mine, names.PLAN_LANE)
    replicas = put("lane_replicas", _replicas(mine))
    reported = put("lane_rows", _reported(_rows(mine, steps, events, as_of), steps))
    moves = put("lane_moves", _moves(replicas, reported, chains))
    return NodeMoves(conform(moves, schema.MOVES), _intervals(moves, steps, as_of))


def key_of(kind: Column, topic: Column, partition: Column, node: Column) -> Column:
    """Return a move's name within its plan: `PlannedMove.key`."""
    replica = F.concat_ws("-", topic, partition)
    return F.when(kind == MoveKind.REPLICAS, replica).otherwise(F.concat(replica, F.lit("@"), node))


def _replicas(lanes: DataFrame) -> DataFrame:
    """Return one row per replica that a lane was to move, with its key.

    Several runs of a lane that was reset have the same move in their parameters: the last one's counts.
    """
    text = unquoted(F.col("input"))
    asked = (
        lanes.withColumn("one", F.explode(F.from_json(F.get_json_object(text, "$.moves"), _MOVES)))
        .select(
            *CHAIN,
            "run_id",
            F.col("started").alias("run_started"),
            F.get_json_object(text, "$.plan").alias("in_plan"),
            *[F.col(f"one.{name}").alias(name) for name in ("kind", "topic", "source", "target", "before", "after")],
            *[F.col(f"one.{name}").try_cast("int").alias(name) for name in ("partition", "node")],
            F.col("one.size").try_cast("bigint").alias("size"),
            F.map_entries("one.directories").alias("entries"),
        )
        .where(F.col("topic").isNotNull() & F.col("partition").isNotNull())
        .withColumn("key", key_of(F.col("kind"), F.col("topic"), F.col("partition"), F.col("node")))
    )
    last = W.partitionBy(*_KEY).orderBy(F.col("run_started").desc(), F.col("run_id").desc())
    asked = asked.withColumn("place", F.row_number().over(last)).where(F.col("place") == 1).drop("place")
    of_brokers = asked.where(F.col("kind") == MoveKind.REPLICAS).withColumns(
        {
            "original": F.col("before"),
            "directories": F.transform(
                F.filter("entries", lambda entry: entry["value"] != ANY),
                lambda entry: F.array(entry["key"], entry["value"]),
            ),
            "wanted": F.col("after"),
        }
    )
    between = replicas_of(of_brokers.drop("node", "target", "source").withColumnRenamed("wanted", "target"))
    columns = (*CHAIN, "run_id", "key", "in_plan", "topic", "partition", "replica", "size")
    moved = between.select(
        *columns,
        "id",
        F.when(F.col("preferred").isNotNull(), F.lit(schema.BOTH)).otherwise(F.lit(schema.NODE)).alias("kind"),
        F.coalesce("node", F.when(F.col("from_node").isNull(), F.get("target", F.lit(0)))).alias("node"),
        "from_node",
        F.lit(None).cast("string").alias("source"),
        F.col("preferred").alias("directory"),
        F.greatest(F.size("adding"), F.lit(1)).alias("shares"),
    )
    replica = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    inside = (
        asked.where(F.col("kind") == MoveKind.DIRECTORY)
        .withColumn("replica", replica)
        .select(
            *columns,
            F.concat_ws("/", "workflow_id", "chain", "key").alias("id"),
            F.lit(schema.DISK).alias("kind"),
            "node",
            F.col("node").alias("from_node"),
            "source",
            F.col("target").alias("directory"),
            F.lit(1).alias("shares"),
        )
    )
    return moved.unionByName(inside)


def _rows(lanes: DataFrame, steps: DataFrame, events: DataFrame, as_of: datetime) -> DataFrame:
    """Return every row about a move, with when it was reported."""
    by_step = steps.select(
        *CHAIN,
        F.coalesce("closed", "heartbeat_at", F.lit(as_of)).alias("reported_at"),
        F.col("scheduled_event_id").alias("reported_by"),
        F.coalesce("result", "details").alias("reported"),
    )
    sent = events.where(
        (F.col("event_type") == "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED")
        & (attribute("signalName") == "lane_ended")
    )
    by_signal = chained(sent, lanes, names.PLAN_LANE).select(
        *CHAIN,
        F.col("event_time").alias("reported_at"),
        F.col("event_id").alias("reported_by"),
        payload("input").alias("reported"),
    )
    by_result = lanes.where(F.col("result").isNotNull()).select(
        *CHAIN,
        F.col("closed").alias("reported_at"),
        F.col("events").alias("reported_by"),
        F.col("result").alias("reported"),
    )
    found = reduce(DataFrame.unionByName, [by_step, by_signal, by_result])
    return found.withColumn("row", F.explode(F.from_json(as_list(F.col("reported")), _ROWS))).select(
        *CHAIN,
        "reported_at",
        "reported_by",
        *[F.col(f"row.{name}").alias(name) for name in ("key", "outcome", "state", "reason")],
        *[F.col(f"row.{name}").try_cast("double").cast("bigint").alias(name) for name in ("copied", "total")],
        F.col("row.seconds").try_cast("double").alias("seconds"),
    )


def _reported(rows: DataFrame, steps: DataFrame) -> DataFrame:
    """Return the last of the rows of each move, with when its lane requested it, and the attempts of its steps.

    A row's seconds count from the lane's begin (`counted_from`), before it has set its throttles.
    """
    order = F.struct("reported_at", "reported_by")
    known = F.coalesce("outcome", F.lit("")) != ""
    last = rows.groupBy(*_KEY).agg(
        F.max_by("outcome", F.when(known, order)).alias("reported"),
        F.max_by("reason", order).alias("last_reason"),
        F.max_by("state", order).alias("state"),
        *[F.max(name).alias(name) for name in ("copied", "total", "seconds")],
    )
    requests = F.col("activity_type") == calls.REQUEST_MOVES
    since = F.get_json_object(unquoted(F.col("input")), "$.requested").try_cast("double")
    counted = F.timestamp_micros((F.nullif(since, F.lit(0.0)) * 1e6).cast("bigint"))
    of_lane = steps.groupBy(*CHAIN).agg(
        F.min(F.when(requests, F.col("scheduled"))).alias("requested_at"),
        F.min(F.when(requests, F.coalesce(counted, F.col("scheduled")))).alias("counted_from"),
        F.max(F.coalesce("attempt", F.lit(1))).alias("attempts"),
    )
    return last.join(of_lane, [*CHAIN], "full")


def _moves(replicas: DataFrame, reported: DataFrame, chains: DataFrame) -> DataFrame:
    """Return the columns of `moves`, and `requested_at` beside them."""
    of_lane = reported.groupBy(*CHAIN).agg(
        *[F.max(name).alias(name) for name in ("requested_at", "counted_from", "attempts")]
    )
    joined = (
        replicas.join(chains.drop("plan"), [*CHAIN])
        .join(of_lane, [*CHAIN], "left")
        .join(reported.drop("requested_at", "counted_from", "attempts"), list(_KEY), "left")
    )
    word = F.create_map(*[F.lit(text) for pair in FINAL.items() for text in pair])[F.col("reported")]
    outcome = F.coalesce(word, chain_outcome())
    done = F.col("outcome").isin(*schema.DONE)
    counted = F.when(F.col("counted_from").between(F.col("started"), F.col("requested_at")), F.col("counted_from"))
    counted_from = F.coalesce(counted, "requested_at")
    micros = F.unix_micros(counted_from) + (F.col("seconds") * 1e6).cast("bigint")
    in_place = F.when(done & (F.col("seconds") > 0), F.timestamp_micros(micros))
    zero = F.lit(0.0)
    share = F.round(F.col("copied") / F.col("shares")).cast("bigint")
    copied = F.when(F.col("reported") == MoveOutcome.IN_PLACE, F.lit(0)).otherwise(F.coalesce(share, F.lit(0)))
    waited = F.coalesce(seconds_between(counted_from, F.col("requested_at")), zero)
    seconds = F.greatest(F.coalesce("seconds", zero) - waited, zero)
    queued = F.greatest(F.coalesce(seconds_between(F.col("started"), F.col("requested_at")), zero), zero)
    spent = {StallReason.QUEUED: F.col("seconds_queued"), StallReason.COPYING: F.col("seconds_copying")}
    empty = F.nullif("last_reason", F.lit(""))
    return (
        joined.withColumns(
            {
                "outcome": outcome,
                "open_phase": F.when(F.col("requested_at").isNull(), F.lit(schema.ASKING)).otherwise(
                    F.lit(schema.COPYING)
                ),
                "error": F.when(F.col("reported") == MoveOutcome.TOPIC_DELETED, F.col("reported")),
                "message": empty,
            }
        )
        .withColumns(ended(F.coalesce(in_place, "chain_closed")))
        .withColumns(
            {
                "seconds_queued": queued,
                "seconds_copying": F.when(copied > 0, seconds).otherwise(zero),
                "plan": F.coalesce("in_plan", "parent"),
                "lane": F.col("workflow_id"),
                "requested_by": F.lit(None),
                "carries_out": F.lit(None),
                "bytes_total": F.coalesce(F.nullif("total", F.lit(0)), F.greatest("size", F.lit(0))),
                "bytes_copied": copied,
                "bytes_resumed": F.lit(0),
                "bytes_written": copied,
                "mean_rate": F.when((copied > 0) & (seconds > 0), copied / seconds),
                "throttle": F.lit(None),
                "attempts": F.coalesce("attempts", F.lit(0)),
                "stall": F.lit(None),
                "stall_message": F.when(F.col("open"), empty),
                "asked_seconds": F.coalesce("plan_seconds", seconds_between(F.col("started"), F.col("plan_deadline"))),
                **{f"seconds_{name}": zero for name in ("throttled", "stalled", "locked", "delete_delay")},
            }
        )
        .withColumn(
            "spent",
            F.create_map(*[x for one in schema.REASONS for x in (F.lit(one), spent.get(one, zero))]),
        )
    )


def _intervals(moves: DataFrame, steps: DataFrame, as_of: datetime) -> DataFrame:
    """Return when each move waited for its lane's request, copied, and was cancelled."""
    until = F.coalesce("finished", F.lit(as_of))
    columns = ("id", *CHAIN, "topic", "partition", "run_id", "phase", "began", "ended", "measured", "open")

    def interval(rows: DataFrame, phase: str, began: Column, end: Column, is_open: Column) -> DataFrame:
        made = {"phase": F.lit(phase), "began": began, "ended": end, "measured": F.lit(phase != schema.COPYING)}
        return rows.withColumns({**made, "open": is_open}).select(*columns)

    called = steps.where(F.col("activity_type") == calls.CANCEL_MOVES).withColumn(
        "one", F.explode(F.from_json(F.get_json_object("input", "$.moves"), _KEYS))
    )
    one = F.col("one")
    cancels = called.select(
        *CHAIN,
        key_of(one["kind"], one["topic"], one["partition"], one["node"]).alias("key"),
        F.col("scheduled").alias("called_at"),
        F.coalesce("closed", F.lit(as_of)).alias("done_at"),
        F.col("closed").isNull().alias("pending"),
    )
    first = cancels.groupBy(*_KEY).agg(F.min("called_at").alias("cancelled_at"))
    timed = moves.join(first, list(_KEY), "left")
    asked = F.coalesce("requested_at", until)
    stopped = F.least(F.col("cancelled_at"), until)
    waiting = interval(
        timed, schema.ASKING, F.col("started"), F.least(asked, until), F.col("open") & F.col("requested_at").isNull()
    )
    copying = interval(
        timed.where(F.col("requested_at").isNotNull()), schema.COPYING, F.col("requested_at"),
        F.coalesce(stopped, until), F.col("open") & F.col("cancelled_at").isNull(),
    )  # fmt: skip
    cancelling = interval(
        moves.join(cancels, list(_KEY)), schema.CANCELLING, F.col("called_at"), F.col("done_at"), F.col("pending")
    )
    long_enough = (seconds_between(F.col("began"), F.col("ended")) >= F.lit(SMALLEST_GAP)) | F.col("open")
    return waiting.where(long_enough).unionByName(copying).unionByName(cancelling)
