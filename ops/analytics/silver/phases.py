"""Silver: where a move's time went. One row per replica per phase.

The events of steps have times. Of the parts of a copy (queued, copying, throttled, stalled) the facts have only the
lengths; the parts are laid one after the other from the copy's beginning, `measured` false, and the rest of the copy is
`unavailable`: the run waited for a retry, for the node to return, or for the rest of its lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import MOVE, STEPS, chained, texts
from ops.analytics.silver.histories import CHAIN, attribute, seconds_between
from workflows.model import calls

#: Gaps between steps below so many seconds are the orchestrator's own time and not shown.
SMALLEST_GAP = 0.05

#: The parts of a copy's time: phase -> the fact that has its length.
PARTS = {
    schema.QUEUED: "seconds_queued",
    schema.COPYING: "seconds_copying",
    schema.THROTTLED: "seconds_throttled",
    schema.STALLED: "seconds_stalled",
}
_PHASE_OF = {
    calls.CREATE_MOVE: schema.CREATING,
    calls.SWAP: schema.SWAPPING,
    calls.CANCEL_MOVE: schema.CANCELLING,
    calls.DELETE_REPLICA: schema.DELETE_DELAY,
}
_REPLICAS = texts("topic", "partition")


def move_id() -> Column:
    """Return the id of a move between directories."""
    replica = F.nullif(F.concat_ws("-", "topic", F.col("partition").cast("string")), F.lit(""))
    return F.concat_ws("/", "workflow_id", "chain", replica)


def disk_intervals(
    runs: DataFrame, activities: DataFrame, facts: DataFrame, events: DataFrame, as_of: datetime
) -> DataFrame:
    """Return the intervals of moves between directories, for `move_phases`."""
    steps = replica_steps(runs, activities, as_of)
    copied = steps.where(F.col("step") == calls.COPY)
    tables = [split_copies(copied, facts, MOVE, PARTS), _others(steps), _gaps(steps, runs, events, as_of)]
    return reduce(DataFrame.unionByName, tables).withColumn("id", move_id())


def move_phases(intervals: DataFrame, chains: DataFrame) -> DataFrame:
    """Return the phases of every move up to a time, numbered in order; current ones have `open` true and end then.

    `chains` has the day of each chain.
    """
    order = W.partitionBy("id").orderBy("began", "ended", "phase", "run_id", "measured")
    shown = intervals.where(F.col("ended") >= F.col("began")).join(chains.select(*CHAIN, "day"), [*CHAIN])
    return conform(
        shown.withColumns(
            {"seconds": seconds_between(F.col("began"), F.col("ended")), "place": F.row_number().over(order)}
        ),
        schema.MOVE_PHASES,
    )


def replica_steps(runs: DataFrame, activities: DataFrame, as_of: datetime | None = None) -> DataFrame:
    """Return one row per replica per step of its run; an open step lasts until `as_of`."""
    called = chained(activities.where(F.col("activity_type").isin(*STEPS)), runs)
    replicas = F.from_json(F.get_json_object("input", "$.replicas"), _REPLICAS)
    return called.withColumn("replica", F.explode(replicas)).select(
        *("namespace", "workflow_id", "chain", "run_id"),
        F.col("replica.topic").alias("topic"),
        F.col("replica.partition").try_cast("int").alias("partition"),
        F.col("activity_type").alias("step"),
        F.col("scheduled_event_id").alias("reported_by"),
        F.col("scheduled").alias("began"),
        F.coalesce("closed", F.lit(as_of).cast("timestamp")).alias("ended"),
        F.col("closed").isNull().alias("open"),
    )


def _others(steps: DataFrame) -> DataFrame:
    phase = F.create_map(*[F.lit(text) for pair in _PHASE_OF.items() for text in pair])[F.col("step")]
    return steps.where(F.col("step") != calls.COPY).select(
        *MOVE, "run_id", phase.alias("phase"), "began", "ended", F.lit(True).alias("measured"), "open"
    )


def split_copies(steps: DataFrame, facts: DataFrame, key: Sequence[str], parts: Mapping[str, str]) -> DataFrame:
    """Split each copy into its parts: phase -> the fact that has its length, in the order in which they are laid.

    `steps` are the copies, `key` identifies a replica's move. Totals accumulate over copies, so a part is the increase
    since the last copy.

    A cancelled copy reports no totals; the reports of the steps after it, up to the next copy, are its totals.
    """
    order = W.partitionBy(*key).orderBy("began", "reported_by")
    earlier = order.rowsBetween(W.unboundedPreceding, -1)
    next_one = F.coalesce(
        F.lead("reported_by").over(W.partitionBy(*key, "run_id").orderBy("reported_by")), F.lit(2**62)
    )
    copied = steps.withColumn("next_copy", next_one)
    lengths = list(parts.values())
    reported = facts.select(*key, "run_id", F.col("reported_by").alias("fact_by"), *lengths)
    totals = (
        copied.select(*key, "run_id", "reported_by", "next_copy")
        .join(reported, [*key, "run_id"])
        .where((F.col("fact_by") >= F.col("reported_by")) & (F.col("fact_by") < F.col("next_copy")))
        .groupBy(*key, "run_id", "reported_by")
        .agg(*[F.max(fact).alias(fact) for fact in lengths])
    )
    copies = copied.join(totals, [*key, "run_id", "reported_by"], "left")
    grown = {
        fact: F.greatest(
            F.coalesce(F.col(fact), F.lit(0.0)) - F.coalesce(F.max(fact).over(earlier), F.lit(0.0)), F.lit(0.0)
        )
        for fact in lengths
    }
    length = seconds_between(F.col("began"), F.col("ended"))
    known = reduce(Column.__add__, [F.col(fact) for fact in lengths])
    # The node's clock may be ahead of the server's: a part never ends after its copy.
    scale = F.when(F.col("known") > F.col("length"), F.col("length") / F.col("known")).otherwise(F.lit(1.0))
    cut = copies.withColumns(grown).withColumns({"length": length, "known": known}).withColumn("scale", scale)
    rest = F.col("length") - F.col("known") * F.col("scale")
    not_reported = F.when(F.col("open"), F.lit(schema.QUEUED)).otherwise(F.lit(schema.COPYING))
    sizes = [(F.lit(phase), F.col(fact) * F.col("scale"), F.lit(False)) for phase, fact in parts.items()]
    left = (F.when(F.col("known") > 0, F.lit(schema.UNAVAILABLE)).otherwise(not_reported), rest, F.col("known") == 0)
    # An open copy ends with its current part: its unavailable time comes first and its copying last.
    current = list(parts).index(schema.COPYING)
    under_way = [left, *[size for place, size in enumerate(sizes) if place != current], sizes[current]]
    cuts = F.when(F.col("open"), F.array(*_laid(under_way))).otherwise(F.array(*_laid([*sizes, left])))
    laid = cut.withColumn("part", F.explode(cuts)).where(F.col("part.seconds") > 0)
    began = F.timestamp_micros(F.unix_micros("began") + (F.col("part.offset") * 1e6).cast("bigint"))
    ended = F.timestamp_micros(
        F.unix_micros("began") + ((F.col("part.offset") + F.col("part.seconds")) * 1e6).cast("bigint")
    )
    return laid.select(
        *key,
        "run_id",
        F.col("part.phase").alias("phase"),
        began.alias("began"),
        ended.alias("ended"),
        F.col("part.measured").alias("measured"),
        "open",
    )


def _laid(parts: list[tuple[Column, Column, Column]]) -> list[Column]:
    """Return the parts (phase, seconds, measured) in sequence, each with its offset from the beginning."""
    laid: list[Column] = []
    offset: Column = F.lit(0.0)
    for phase, seconds, measured in parts:
        columns = {"phase": phase, "offset": offset, "seconds": seconds, "measured": measured}
        laid.append(F.struct(*[column.alias(name) for name, column in columns.items()]))
        offset = offset + seconds
    return laid


def _gaps(steps: DataFrame, runs: DataFrame, events: DataFrame, as_of: datetime) -> DataFrame:
    """Return the gaps between steps: `paused` if an operator paused the run, `delete_delay` after the swap, else
    `unavailable`.
    """
    order = W.partitionBy(*MOVE).orderBy("began", "reported_by")
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
    # After the last step of a replica whose move is open: the durable timer before the delete, or a pause.
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
            (F.col("previous_step") == calls.SWAP) & (F.col("then") == calls.DELETE_REPLICA), F.lit(schema.DELETE_DELAY)
        )
        .when(paused, F.lit(schema.PAUSED))
        .otherwise(F.lit(schema.UNAVAILABLE))
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
    """Return when each chain was requested to pause and to resume, by update or by signal."""
    name = F.coalesce(attribute("acceptedRequest.input.name"), attribute("signalName"))
    reported = events.where(
        F.col("event_type").isin("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "WORKFLOW_EXECUTION_SIGNALED")
    ).withColumn("name", name)
    return (
        chained(reported.where(F.col("name").isin("pause", "resume")), runs)
        .groupBy("namespace", "workflow_id", "chain")
        .agg(
            F.collect_list(F.when(F.col("name") == "pause", F.col("event_time"))).alias("pauses"),
            F.collect_list(F.when(F.col("name") == "resume", F.col("event_time"))).alias("resumes"),
        )
    )
