"""Silver: from events to runs and activities. Pure DataFrame -> DataFrame; every clock is an argument.

An exporter delivers at least once, and an open run several times as it grows: `latest_histories` keeps one snapshot
per run, chosen by its content alone, so that the order and the number of files do not matter.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform

RUN = ("namespace", "workflow_id", "run_id")
CHAIN = ("namespace", "workflow_id", "chain")

_CLOSING = {
    "WORKFLOW_EXECUTION_COMPLETED": schema.COMPLETED,
    "WORKFLOW_EXECUTION_FAILED": schema.FAILED,
    "WORKFLOW_EXECUTION_TIMED_OUT": schema.TIMED_OUT,
    "WORKFLOW_EXECUTION_CANCELED": schema.CANCELLED,
    "WORKFLOW_EXECUTION_TERMINATED": schema.TERMINATED,
    "WORKFLOW_EXECUTION_CONTINUED_AS_NEW": schema.CONTINUED,
}
_ACTIVITY_ENDS = {
    "ACTIVITY_TASK_COMPLETED": schema.COMPLETED,
    "ACTIVITY_TASK_FAILED": schema.FAILED,
    "ACTIVITY_TASK_TIMED_OUT": schema.TIMED_OUT,
    "ACTIVITY_TASK_CANCELED": schema.CANCELLED,
}
_ACTIVITY_EVENTS = ("ACTIVITY_TASK_SCHEDULED", "ACTIVITY_TASK_STARTED", *_ACTIVITY_ENDS)


def seconds_between(began: Column, ended: Column) -> Column:
    """Return the length of an interval in seconds, with its fraction."""
    return (F.unix_micros(ended) - F.unix_micros(began)) / F.lit(1e6)


def run_order() -> Column:
    """Return the order of the runs of a chain.

    One that was reset has the first events of the run before it, and so its start: the one that is open, or was closed
    later, is the newer.
    """
    return F.struct("started", F.coalesce("closed", F.lit("9999-12-31").cast("timestamp")))


def attribute(path: str) -> Column:
    """Return one attribute of the event as text."""
    return F.get_json_object("attributes", f"$.{path}")


def payload(path: str) -> Column:
    """Return the text of the first payload at a path of the event's attributes."""
    return F.unbase64(attribute(f"{path}.payloads[0].data")).cast("string")


def latest_histories(events: DataFrame, as_of: datetime | None = None) -> DataFrame:
    """Return the events up to `as_of` of each run's newest snapshot, each once.

    The newest snapshot is the one with the latest last event, then the longest; equal ones have the same events. That
    is also correct after the server's database was restored from a backup and a run continued differently.
    """
    known = events if as_of is None else events.where(F.col("event_time") <= F.lit(as_of))
    newest = (
        known.groupBy(*RUN, "snapshot")
        .agg(F.max("event_time").alias("last_time"), F.max("event_id").alias("length"))
        .groupBy(*RUN)
        .agg(F.max(F.struct("last_time", "length", "snapshot"))["snapshot"].alias("newest"))
    )
    # By run alone: the events move between tasks once, and what is computed from them by run moves no more.
    chosen = known.join(newest.hint("merge"), [*RUN]).where(F.col("snapshot") == F.col("newest"))
    return conform(chosen, schema.HISTORY_EVENTS)


def runs(events: DataFrame) -> DataFrame:
    """Return one row per run, from the events of `latest_histories`."""

    def first_of(event_type: str, value: Column) -> Column:
        return F.max(F.when(F.col("event_type") == event_type, value))

    closing = F.col("event_type").isin(*_CLOSING)
    began = "WORKFLOW_EXECUTION_STARTED"
    status = F.coalesce(F.max(_words(_CLOSING)), F.lit(schema.OPEN))
    payloads = F.coalesce(
        payload("result"),
        payload("failure.applicationFailureInfo.details"),
        payload("failure.cause.applicationFailureInfo.details"),
        payload("details"),
    )
    counted = events.groupBy(*RUN).agg(
        F.count(F.lit(1)).alias("events"),
        F.min(F.when(F.col("event_type") == "WORKFLOW_EXECUTION_CANCEL_REQUESTED", F.col("event_time"))).alias(
            "cancel_requested"
        ),
        F.max("event_time").alias("last_time"),
        F.max("sequence").alias("sequence"),
    )
    # Texts are aggregated by sorting, so only the two events that have them are.
    ends = (
        events.where(F.col("event_type").isin(began, *_CLOSING))
        .groupBy(*RUN)
        .agg(
            first_of(began, attribute("firstExecutionRunId")).alias("first_run_id"),
            first_of(began, attribute("workflowType.name")).alias("workflow_type"),
            first_of(began, attribute("taskQueue.name")).alias("task_queue"),
            status.alias("status"),
            first_of(began, F.col("event_time")).alias("started"),
            F.max(F.when(closing, F.col("event_time"))).alias("closed"),
            first_of(began, payload("input")).alias("input"),
            F.max(F.when(closing, payloads)).alias("result"),
            first_of("WORKFLOW_EXECUTION_FAILED", failure_type()).alias("failure_type"),
            F.max(F.when(closing, F.coalesce(failure_message(), attribute("reason")))).alias("failure_message"),
            first_of(began, attribute("continuedExecutionRunId")).alias("continued_run_id"),
            first_of(began, attribute("parentWorkflowExecution.workflowId")).alias("parent_workflow_id"),
        )
    )
    return conform(
        counted.join(ends, [*RUN], "left").withColumns(
            {
                "status": F.coalesce("status", F.lit(schema.OPEN)),
                "chain": F.coalesce("first_run_id", "run_id"),
                "duration_seconds": seconds_between(F.col("started"), F.col("closed")),
                "day": F.to_date("started"),
            }
        ),
        schema.RUNS,
    )


def failure_type() -> Column:
    """Return the type of the innermost named failure; "Timeout..." for a timeout."""
    paths = ("failure", "failure.cause", "failure.cause.cause")
    named = [attribute(f"{path}.applicationFailureInfo.type") for path in paths]
    timeouts = [attribute(f"{path}.timeoutFailureInfo.timeoutType") for path in paths]
    short = F.regexp_replace(F.coalesce(*timeouts), "^TIMEOUT_TYPE_", "")
    return F.coalesce(*named, F.concat(F.lit("Timeout "), F.lower(F.regexp_replace(short, "_", "-"))))


def failure_message() -> Column:
    """Return the innermost failure's message."""
    return F.coalesce(*[attribute(f"failure.{path}message") for path in ("cause.cause.", "cause.", "")])


def activities(events: DataFrame, pending: DataFrame, of_runs: DataFrame, as_of: datetime) -> DataFrame:
    """Return one row per scheduled activity; the state of open ones is that of their run's newest description.

    `started` is when the last attempt began. It is known only for a closed activity: retries have no events.
    """
    scheduled_by = F.when(F.col("event_type") == "ACTIVITY_TASK_SCHEDULED", F.col("event_id")).otherwise(
        attribute("scheduledEventId").try_cast("bigint")
    )
    ends = F.col("event_type").isin(*_ACTIVITY_ENDS)

    def of(event_type: str, value: Column) -> Column:
        return F.max(F.when(F.col("event_type") == event_type, value))

    payloads = F.coalesce(
        payload("failure.applicationFailureInfo.details"),
        payload("failure.timeoutFailureInfo.lastHeartbeatDetails"),
        payload("failure.cause.applicationFailureInfo.details"),
        payload("details"),
    )
    begun = "ACTIVITY_TASK_SCHEDULED"
    executions = (
        events.where(F.col("event_type").isin(*_ACTIVITY_EVENTS))
        .withColumn("scheduled_event_id", scheduled_by)
        .groupBy(*RUN, "scheduled_event_id")
        .agg(
            of(begun, attribute("activityId")).alias("activity_id"),
            of(begun, attribute("activityType.name")).alias("activity_type"),
            of(begun, attribute("taskQueue.name")).alias("task_queue"),
            F.coalesce(F.max(_words(_ACTIVITY_ENDS)), F.lit(schema.OPEN)).alias("state"),
            of("ACTIVITY_TASK_STARTED", attribute("attempt").try_cast("int")).alias("closed_attempt"),
            of(begun, F.col("event_time")).alias("scheduled"),
            of("ACTIVITY_TASK_STARTED", F.col("event_time")).alias("started"),
            F.max(F.when(ends, F.col("event_time"))).alias("closed"),
            of(begun, payload("input")).alias("input"),
            of("ACTIVITY_TASK_COMPLETED", payload("result")).alias("result"),
            F.max(F.when(ends, failure_type())).alias("failure_type"),
            F.max(F.when(ends, failure_message())).alias("failure_message"),
            F.max(F.when(ends, payloads)).alias("closed_details"),
        )
    )
    newest = latest_pending(pending, as_of).select(
        *RUN,
        "activity_id",
        F.col("attempt").alias("pending_attempt"),
        F.col("heartbeat").alias("pending_details"),
        "heartbeat_at",
        F.lit(schema.OPEN).alias("state"),
    )
    return conform(
        executions.join(newest, [*RUN, "activity_id", "state"], "left")
        .join(of_runs.select(*RUN, "workflow_type"), [*RUN], "left")
        .withColumns(
            {
                "day": F.to_date("scheduled"),
                "node": F.regexp_extract("task_queue", r"/node-(\d+)(?:/|$)", 1).try_cast("int"),
                "attempt": F.coalesce("closed_attempt", "pending_attempt"),
                "details": F.coalesce("closed_details", "pending_details"),
                "duration_seconds": seconds_between(F.col("scheduled"), F.col("closed")),
            }
        ),
        schema.ACTIVITIES,
    )


def latest_pending(pending: DataFrame, as_of: datetime | None = None) -> DataFrame:
    """Return the newest description of each open run up to `as_of`, each activity once."""
    newest = W.partitionBy(*RUN)
    return conform(
        (pending if as_of is None else pending.where(F.col("taken_at") <= F.lit(as_of)))
        .withColumn("newest", F.max("taken_at").over(newest))
        .where(F.col("taken_at") == F.col("newest"))
        .dropDuplicates([*RUN, "activity_id"]),
        schema.PENDING_ACTIVITIES,
    )


def _words(words: dict[str, str]) -> Column:
    """Return the name for the event's type; null for a type without one."""
    return F.create_map(*[F.lit(text) for pair in words.items() for text in pair])[F.col("event_type")]
