"""Silver: one row per replica's move between directories, and what all kinds of moves share."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import MOVE, NUMBERS, unquoted
from ops.analytics.silver.histories import CHAIN, run_order, seconds_between
from ops.analytics.silver.phases import move_id
from storage_node.model.moves import Outcome, StallReason
from workflows.model import calls

#: The outcome of a move by the outcome of its row. Outcomes that are not listed are those of intermediate steps.
FINAL = {
    Outcome.SWAPPED: schema.MOVED,
    Outcome.DELETED: schema.MOVED,
    Outcome.IN_PLACE: schema.IN_PLACE,
    Outcome.CANCELLED: schema.CANCELLED,
    Outcome.FAILED: schema.FAILED,
    Outcome.SUPERSEDED: schema.SUPERSEDED,
}


def disk_moves(
    chains: DataFrame,
    requested: DataFrame,
    facts: DataFrame,
    intervals: DataFrame,
    activities: DataFrame,
    runs: DataFrame,
) -> DataFrame:
    """Return one row per replica that a run was requested to move between directories or reported."""
    keys = requested.select(*MOVE).unionByName(facts.select(*MOVE)).distinct()
    directories = requested.drop("run_id").withColumnRenamed("directory", "requested_directory")
    joined = (
        _null_safe(keys, directories, MOVE)
        .join(chains, [*CHAIN])
        .join(_totals(facts), [*MOVE], "left")
        .join(_times(intervals), [*MOVE], "left")
        .join(_nodes(activities, runs), [*CHAIN], "left")
    )
    outcome = F.coalesce("final", chain_outcome())
    finished = F.coalesce("final_at", "chain_closed")
    named = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    busy = F.col("seconds_copying") + F.col("seconds_throttled") + F.col("seconds_stalled")
    moves = (
        joined.withColumns({"outcome": outcome, "replica": F.nullif(named, F.lit(""))})
        .withColumns(ended(finished))
        .withColumns(
            {
                "id": move_id(),
                "kind": F.lit(schema.DISK),
                "node": F.coalesce("node", "queue_node"),
                "directory": F.coalesce(F.nullif("directory", F.lit("")), "requested_directory"),
                "lane": F.when(F.col("replicas") > 1, F.col("workflow_id")),
                "requested_by": F.lit(None),
                "carries_out": F.lit(None),
                "bytes_written": own_bytes(),
                "spent": spent(),
                "stall": F.when(F.col("open"), F.col("last_stall.stall")),
                "stall_message": F.when(F.col("open"), F.col("last_stall.stall_message")),
                "throttle": F.coalesce("call_throttle", "throttle"),
                "asked_seconds": F.coalesce("asked_seconds", "plan_seconds"),
            }
        )
        .withColumns(
            {
                "from_node": F.col("node"),
                "mean_rate": F.when((busy > 0) & (F.col("bytes_written") > 0), F.col("bytes_written") / busy),
            }
        )
    )
    numbers = {name: F.coalesce(name, F.lit(0)) for name in NUMBERS} | {
        "attempts": F.coalesce("attempts", F.lit(0)),
        "seconds_delete_delay": F.coalesce("seconds_delete_delay", F.lit(0.0)),
    }
    return conform(moves.withColumns(numbers), schema.MOVES)


def chain_outcome() -> Column:
    """Return the outcome by the status of the chain, where no row has one."""
    return F.when(F.col("status") == schema.CONTINUED, F.lit(schema.OPEN)).otherwise(F.col("status"))


def ended(finished: Column) -> dict[str, Column]:
    """Return whether a move is open, when it ended, and why, from its `outcome`."""
    failed = F.col("outcome").isin(schema.FAILED, schema.TIMED_OUT, schema.SUPERSEDED, schema.OPEN)
    is_open = F.col("outcome") == schema.OPEN
    return {
        "open": is_open,
        "finished": F.when(~is_open, finished),
        "reason": F.when(failed, F.coalesce(F.nullif("error", F.lit("")), "failure_type")),
        "message": F.coalesce(F.nullif("message", F.lit("")), "failure_message"),
        "phase": F.when(is_open, F.coalesce("open_phase", F.lit(schema.UNAVAILABLE))),
    }


def chains(runs: DataFrame, plans: DataFrame) -> DataFrame:
    """Return one row per chain of runs, from its first start to its last run's end.

    `plans` are the runs of plans, with their SLAs: a chain whose parent is one of them carries it, of the plans of one
    id that of the last one that had started.
    """
    of_plan = F.struct("plan_started", "plan_seconds", "plan_deadline")
    parents = plans.groupBy("namespace", F.col("workflow_id").alias("parent")).agg(
        F.sort_array(F.collect_list(of_plan)).alias("of_plans")
    )
    earlier = F.filter("of_plans", lambda plan: plan["plan_started"] <= F.col("started"))
    mine = F.coalesce(F.try_element_at(earlier, F.lit(-1)), F.try_element_at("of_plans", F.lit(1)))
    return (
        runs.groupBy(*CHAIN)
        .agg(
            F.min("started").alias("started"),
            F.min("day").alias("day"),
            F.max("workflow_type").alias("workflow_type"),
            F.max_by("status", run_order()).alias("status"),
            F.max_by("closed", run_order()).alias("chain_closed"),
            F.max_by("failure_type", run_order()).alias("failure_type"),
            F.max_by("failure_message", run_order()).alias("failure_message"),
            # The controller's id is that of its queue: it starts runs, but plans nothing.
            F.max(F.when(F.col("parent_workflow_id") != F.col("task_queue"), F.col("parent_workflow_id"))).alias(
                "parent"
            ),
        )
        .join(parents, ["namespace", "parent"], "left")
        .withColumn("mine", mine)
        .withColumns(
            {
                "plan": F.when(F.col("mine").isNotNull(), F.col("parent")),
                "plan_seconds": F.col("mine.plan_seconds"),
                "plan_deadline": F.col("mine.plan_deadline"),
            }
        )
        .drop("of_plans", "mine")
    )


def plans(runs: DataFrame) -> DataFrame:
    """Return the plans, each chain of runs once, with the SLA or the deadline in its parameter."""
    text = unquoted(F.col("input"))
    asked = F.coalesce(*[F.get_json_object(text, f"$.{name}") for name in ("sla_seconds", "deadline_seconds")])
    deadline = F.try_to_timestamp(F.nullif(F.get_json_object(text, "$.options.deadline"), F.lit("")))
    return (
        runs.where(F.col("workflow_type").isin(*schema.PLAN_TYPES))
        .groupBy(*CHAIN)
        .agg(
            F.min("started").alias("plan_started"),
            F.max_by(asked.try_cast("double"), run_order()).alias("plan_seconds"),
            F.max_by(deadline, run_order()).alias("plan_deadline"),
        )
    )


def own_bytes() -> Column:
    """Return the bytes that a run's own copiers wrote, without bytes found on disk, which took none of its time.

    A history of an older version does not contain them. There bytes resumed after the run's own retry count, and bytes
    on disk at its first attempt do not.
    """
    found = F.greatest(F.col("bytes_copied") - F.coalesce("bytes_resumed", F.lit(0)), F.lit(0))
    older = F.when(F.col("attempts") > 1, F.col("bytes_copied")).otherwise(found)
    return F.when(_has_reasons(), F.col("bytes_written")).otherwise(older)


def _has_reasons() -> Column:
    """Return whether the history has seconds by reason, and so the bytes written."""
    return F.coalesce(*[f"spent_{reason}" for reason in schema.NODE_REASONS]).isNotNull()


def spent() -> Column:
    """Return the seconds by reason; a history of an older version counts the run's limit and the node's as one."""
    older = {
        StallReason.COPYING: F.col("seconds_copying") + F.col("seconds_stalled"),
        StallReason.QUEUED: F.col("seconds_queued"),
        StallReason.RUN_LIMIT: F.col("seconds_throttled"),
    }
    parts: list[Column] = []
    for reason in schema.NODE_REASONS:
        value = F.when(_has_reasons(), F.col(f"spent_{reason}")).otherwise(older.get(reason, F.lit(None)))
        parts += [F.lit(reason), F.coalesce(value, F.lit(0.0))]
    # The absences whose reason the run knows are part of the time between two attempts.
    known = [F.coalesce(f"spent_{absence}", F.lit(0.0)) for absence in schema.KNOWN_ABSENCES]
    for absence, seconds in zip(schema.KNOWN_ABSENCES, known, strict=True):
        parts += [F.lit(absence), seconds]
    unknown = F.greatest(F.coalesce("seconds_unavailable", F.lit(0.0)) - sum(known, F.lit(0.0)), F.lit(0.0))
    return F.create_map(*parts, F.lit(StallReason.UNAVAILABLE), unknown)


def _null_safe(left: DataFrame, right: DataFrame, on: tuple[str, ...]) -> DataFrame:
    """Join left on keys that may be null: a run with an unreadable parameter has no topic."""
    renamed = right.select([F.col(name).alias(f"_{name}" if name in on else name) for name in right.columns])
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in on]
    return left.join(renamed, same, "left").drop(*[f"_{name}" for name in on])


def _totals(facts: DataFrame) -> DataFrame:
    """Return per replica its totals, its outcome, and when that was first reported.

    A replica that was once in place has moved, whatever happened to its old copy later. One whose new target was
    rejected has not failed: its run continues to the earlier one.
    """
    final = F.create_map(*[F.lit(text) for pair in FINAL.items() for text in pair])[F.col("outcome")]
    order = F.struct("reported_at", "reported_by")
    replica = W.partitionBy(*MOVE)
    later = F.max(F.when(F.col("step") != calls.CANCEL_MOVE, order)).over(replica)
    rejected = (F.col("outcome") == Outcome.FAILED) & (F.col("step") == calls.CREATE_MOVE) & (order < later)
    ended = facts.withColumn("class", F.when(~F.coalesce(rejected, F.lit(False)), final)).withColumn(
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
        F.min(F.when(F.col("class") == F.col("final"), F.col("reported_at"))).alias("final_at"),
        *[last(name).alias(name) for name in ("directory", "error", "message")],
        F.min_by("source", F.when(F.col("source") != "", order)).alias("source"),
        *[F.max(name).alias(name) for name in (*NUMBERS, *(f"spent_{reason}" for reason in schema.COUNTED_REASONS))],
        F.max_by(F.struct("stall", "stall_message"), F.when(F.col("step") == "progress", order)).alias("last_stall"),
        F.max(F.greatest(F.coalesce("attempts", F.lit(0)), F.coalesce("attempt", F.lit(0)))).alias("attempts"),
    )


def _times(intervals: DataFrame) -> DataFrame:
    """Return per replica its current phase, and how long its old copy waited for its deletion."""
    seconds = seconds_between(F.col("began"), F.col("ended"))
    return intervals.groupBy(*MOVE).agg(
        F.max_by("phase", F.when(F.col("open"), F.struct("ended", "began"))).alias("open_phase"),
        F.sum(F.when(F.col("phase") == schema.DELETE_DELAY, seconds)).alias("seconds_delete_delay"),
        F.sum(F.when(F.col("phase") == schema.UNAVAILABLE, seconds)).alias("seconds_unavailable"),
    )


def _nodes(activities: DataFrame, runs: DataFrame) -> DataFrame:
    """Return per chain the node of its steps, and the limit of the last step."""
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
