"""Silver: where a move's time went. One row per replica per phase.

Steps have a place in time by their events. What happens inside a copy (queued, copying, throttled, stalled) is known
only in length, by the facts; it is laid one after the other from the copy's beginning, `measured` false, and what is
left of the copy is `waiting`: for a retry, for the node to come back, or for the rest of its lane.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.facts import MOVE, STEPS, _texts, chained
from ops.analytics.silver import attribute, conform, seconds_between
from workflows.model import calls

#: Gaps between steps below this many seconds are the orchestrator's own and not shown.
SMALLEST_GAP = 0.05

#: What a copy's time is made of: phase -> the fact that has its length.
PARTS = {
    schema.QUEUED: "seconds_queued",
    schema.COPYING: "seconds_copying",
    schema.THROTTLED: "seconds_throttled",
    schema.STALLED: "seconds_stalled",
}
_PHASE_OF = {
    calls.CREATE_MOVE: schema.PREPARING,
    calls.SWAP: schema.SWAP,
    calls.CANCEL_MOVE: schema.UNDOING,
    calls.DELETE_REPLICA: schema.DELETE_WAIT,
}
_REPLICAS = _texts("topic", "partition")


def move_phases(
    runs: DataFrame, activities: DataFrame, facts: DataFrame, events: DataFrame, as_of: datetime
) -> DataFrame:
    """The phases of every replica up to `as_of`, those under way with `open` true and ending at `as_of`."""
    steps = _steps(runs, activities, as_of)
    copies = _copies(steps, facts)
    others = _others(steps)
    gaps = _gaps(steps, runs, events, as_of)
    tables = [copies, others, gaps]
    shown = reduce(DataFrame.unionByName, tables).where(F.col("ended") >= F.col("began"))
    return conform(shown.withColumn("seconds", seconds_between(F.col("began"), F.col("ended"))), schema.MOVE_PHASES)


def _steps(runs: DataFrame, activities: DataFrame, as_of: datetime) -> DataFrame:
    """One row per replica per step of its run, in the order in which the steps were scheduled."""
    called = chained(activities.where(F.col("activity_type").isin(*STEPS)), runs)
    replicas = F.from_json(F.get_json_object("input", "$.replicas"), _REPLICAS)
    return called.withColumn("replica", F.explode(replicas)).select(
        *("namespace", "workflow_id", "chain", "run_id"),
        F.col("replica.topic").alias("topic"),
        F.col("replica.partition").try_cast("int").alias("partition"),
        F.col("activity_type").alias("step"),
        F.col("scheduled_event_id").alias("told_by"),
        F.col("scheduled").alias("began"),
        F.coalesce("closed", F.lit(as_of)).alias("ended"),
        F.col("closed").isNull().alias("open"),
    )


def _others(steps: DataFrame) -> DataFrame:
    phase = F.create_map(*[F.lit(text) for pair in _PHASE_OF.items() for text in pair])[F.col("step")]
    return steps.where(F.col("step") != calls.COPY).select(
        *MOVE, "run_id", phase.alias("phase"), "began", "ended", F.lit(True).alias("measured"), "open"
    )


def _copies(steps: DataFrame, facts: DataFrame) -> DataFrame:
    """Each copy cut into its parts. Totals run on from copy to copy, so a part is what was added since the last.

    A copy that was cancelled tells nothing itself; what the steps after it tell, up to the next copy, is its total.
    """
    order = W.partitionBy(*MOVE).orderBy("began", "told_by")
    earlier = order.rowsBetween(W.unboundedPreceding, -1)
    next_one = F.coalesce(F.lead("told_by").over(W.partitionBy(*MOVE, "run_id").orderBy("told_by")), F.lit(2**62))
    copied = steps.where(F.col("step") == calls.COPY).withColumn("next_copy", next_one)
    told = facts.select(*MOVE, "run_id", F.col("told_by").alias("fact_by"), *PARTS.values())
    totals = (
        copied.select(*MOVE, "run_id", "told_by", "next_copy")
        .join(told, [*MOVE, "run_id"])
        .where((F.col("fact_by") >= F.col("told_by")) & (F.col("fact_by") < F.col("next_copy")))
        .groupBy(*MOVE, "run_id", "told_by")
        .agg(*[F.max(fact).alias(fact) for fact in PARTS.values()])
    )
    copies = copied.join(totals, [*MOVE, "run_id", "told_by"], "left")
    grown = {
        fact: F.greatest(
            F.coalesce(F.col(fact), F.lit(0.0)) - F.coalesce(F.max(fact).over(earlier), F.lit(0.0)), F.lit(0.0)
        )
        for fact in PARTS.values()
    }
    length = seconds_between(F.col("began"), F.col("ended"))
    known = reduce(Column.__add__, [F.col(fact) for fact in PARTS.values()])
    # A clock of the node that ran ahead of the server's must not push a part beyond the copy's end.
    scale = F.when(F.col("known") > F.col("length"), F.col("length") / F.col("known")).otherwise(F.lit(1.0))
    cut = copies.withColumns(grown).withColumns({"length": length, "known": known}).withColumn("scale", scale)
    rest = F.col("length") - F.col("known") * F.col("scale")
    nothing_told = F.when(F.col("open"), F.lit(schema.QUEUED)).otherwise(F.lit(schema.COPYING))
    sizes = [(F.lit(phase), F.col(fact) * F.col("scale"), F.lit(False)) for phase, fact in PARTS.items()]
    left = (F.when(F.col("known") > 0, F.lit(schema.WAITING)).otherwise(nothing_told), rest, F.col("known") == 0)
    # A copy that is under way ends with what it is doing: its waiting comes first and its copying last.
    under_way = [left, *[sizes[place] for place in (0, 3, 2, 1)]]
    parts = F.when(F.col("open"), F.array(*_laid(under_way))).otherwise(F.array(*_laid([*sizes, left])))
    laid = cut.withColumn("part", F.explode(parts)).where(F.col("part.seconds") > 0)
    began = F.timestamp_micros(F.unix_micros("began") + (F.col("part.offset") * 1e6).cast("bigint"))
    ended = F.timestamp_micros(
        F.unix_micros("began") + ((F.col("part.offset") + F.col("part.seconds")) * 1e6).cast("bigint")
    )
    return laid.select(
        *MOVE,
        "run_id",
        F.col("part.phase").alias("phase"),
        began.alias("began"),
        ended.alias("ended"),
        F.col("part.measured").alias("measured"),
        "open",
    )


def _laid(parts: list[tuple[Column, Column, Column]]) -> list[Column]:
    """Parts (phase, seconds, measured) one after the other, each with its offset from the beginning."""
    laid: list[Column] = []
    offset: Column = F.lit(0.0)
    for phase, seconds, measured in parts:
        columns = {"phase": phase, "offset": offset, "seconds": seconds, "measured": measured}
        laid.append(F.struct(*[column.alias(name) for name, column in columns.items()]))
        offset = offset + seconds
    return laid


def _gaps(steps: DataFrame, runs: DataFrame, events: DataFrame, as_of: datetime) -> DataFrame:
    """Between two steps: `paused` if someone paused the run, `delete-wait` after the swap, else `waiting`."""
    order = W.partitionBy(*MOVE).orderBy("began", "told_by")
    spans = runs.groupBy("namespace", "workflow_id", "chain").agg(
        F.min("started").alias("run_began"),
        F.max(F.coalesce("closed", F.lit(as_of))).alias("run_ended"),
        F.max(F.col("status") == schema.OPEN).alias("run_open"),
    )
    between = steps.withColumns(
        {
            "previous_step": F.lag("step").over(order),
            "previous_end": F.max("ended").over(order.rowsBetween(W.unboundedPreceding, -1)),
            "next_step": F.lead("step").over(order),
        }
    ).join(spans, ["namespace", "workflow_id", "chain"])
    columns = [F.col(name) for name in (*MOVE, "run_id")]
    before = between.select(
        *columns,
        F.col("previous_step"),
        F.col("step").alias("then"),
        F.coalesce("previous_end", "run_began").alias("gap_began"),
        F.col("began").alias("gap_ended"),
        F.lit(False).alias("open"),
    )
    # After the last step of a replica that is not settled yet: the durable timer before the delete, or a pause.
    after = between.where(F.col("next_step").isNull() & F.col("step").isin(calls.SWAP, calls.COPY) & F.col("run_open"))
    last = after.where(~F.col("open")).select(
        *columns,
        F.col("step").alias("previous_step"),
        F.lit(calls.DELETE_REPLICA).alias("then"),
        F.col("ended").alias("gap_began"),
        F.col("run_ended").alias("gap_ended"),
        F.lit(True).alias("open"),
    )
    gaps = before.unionByName(last).where(
        seconds_between(F.col("gap_began"), F.col("gap_ended")) >= F.lit(SMALLEST_GAP)
    )
    messages = _messages(runs, events)
    paused = F.exists(
        F.coalesce("pauses", F.array().cast("array<timestamp>")),
        lambda at: (
            (at <= F.col("gap_ended"))
            & ~F.exists(
                F.coalesce("resumes", F.array().cast("array<timestamp>")),
                lambda again: (again >= at) & (again <= F.col("gap_began")),
            )
        ),
    )
    phase = (
        F.when(
            (F.col("previous_step") == calls.SWAP) & (F.col("then") == calls.DELETE_REPLICA), F.lit(schema.DELETE_WAIT)
        )
        .when(paused, F.lit(schema.PAUSED))
        .otherwise(F.lit(schema.WAITING))
    )
    return gaps.join(messages, ["namespace", "workflow_id", "chain"], "left").select(
        *columns,
        phase.alias("phase"),
        F.col("gap_began").alias("began"),
        F.col("gap_ended").alias("ended"),
        F.lit(True).alias("measured"),
        "open",
    )


def _messages(runs: DataFrame, events: DataFrame) -> DataFrame:
    """When each chain was told to pause and to go on, by update or by signal."""
    name = F.coalesce(attribute("acceptedRequest.input.name"), attribute("signalName"))
    told = events.where(
        F.col("event_type").isin("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "WORKFLOW_EXECUTION_SIGNALED")
    ).withColumn("name", name)
    return (
        chained(told.where(F.col("name").isin("pause", "resume")), runs)
        .groupBy("namespace", "workflow_id", "chain")
        .agg(
            F.collect_list(F.when(F.col("name") == "pause", F.col("event_time"))).alias("pauses"),
            F.collect_list(F.when(F.col("name") == "resume", F.col("event_time"))).alias("resumes"),
        )
    )
