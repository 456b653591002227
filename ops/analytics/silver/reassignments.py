"""Silver: moves between nodes, from the runs of PartitionReassignment: a row per replica that a node gets or gives up.

What a run was to change is in its result, in the controller's changes (its parameter or the controller's response), in
the parameters of its steps, or only in an operator's parameter: the best of these counts, so that a run that was
cancelled, terminated or is open has its moves as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import MOVE, as_list, chained, unquoted
from ops.analytics.silver.histories import CHAIN, attribute, payload, seconds_between
from ops.analytics.silver.moves import chain_outcome, ended
from ops.analytics.silver.phases import SMALLEST_GAP, split_copies
from storage_node.model.moves import StallReason
from storage_node.model.reassignments import PartitionOutcome, ReassignmentPhase, ReplicaOutcome
from workflows.model import calls, names, throttles
from workflows.model.move.parameter import ANY

Put = Callable[[str, DataFrame], DataFrame]

STEPS = (calls.PLACE_REPLICAS, calls.CATCH_UP, calls.AWAIT_DELETION)

#: The outcome of a partition, as a run's result and as its steps' rows have it.
FINAL = {
    PartitionOutcome.DONE: schema.MOVED,
    PartitionOutcome.CANCELLED: schema.CANCELLED,
    PartitionOutcome.SUPERSEDED: schema.SUPERSEDED,
    PartitionOutcome.FAILED: schema.FAILED,
    ReplicaOutcome.JOINED: schema.MOVED,
    ReplicaOutcome.GONE: schema.FAILED,
}
#: The parts of a step that follows a new replica: phase -> the fact that has its length.
PARTS: Mapping[str, str] = {
    schema.QUEUED: "seconds_queued",
    schema.COPYING: "seconds_copying",
    schema.THROTTLED: "seconds_throttled",
    schema.IN_SYNC: "seconds_in_sync",
}

_TEXT, _INTS, _LISTS = T.StringType(), T.ArrayType(T.IntegerType()), T.ArrayType(T.ArrayType(T.StringType()))
_TEXTS = ("outcome", "directory", "error", "message")
_LONGS = ("bytes_total", "bytes_copied", "attempts")
_DOUBLES = ("seconds_placing", "seconds_catching_up", "seconds_in_sync", "seconds_deleting", "seconds_throttled")


def _struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


_FACTS = dict.fromkeys((*_TEXTS, *_LONGS, *_DOUBLES), _TEXT)
_ROWS = T.ArrayType(_struct(topic=_TEXT, partition=_TEXT, node=_TEXT, state=_TEXT, stall=_TEXT, **_FACTS))
_RESULT = T.ArrayType(
    _struct(
        **dict.fromkeys(("topic", "partition", "outcome", "error", "message", "by"), _TEXT),
        **dict.fromkeys(("original", "target"), _INTS),
        directories=_LISTS,
        nodes=T.ArrayType(_struct(node=_TEXT, **_FACTS)),
    )
)
_ASKED = T.ArrayType(_struct(topic=_TEXT, partition=_TEXT, replicas=_INTS, log_dirs=T.ArrayType(_TEXT)))
_ASSIGNED = T.ArrayType(_struct(topic=_TEXT, partition=_TEXT, target=_INTS, original=_INTS, directory=_TEXT))
_RATES = T.MapType(_TEXT, T.MapType(_TEXT, _TEXT))


@dataclass(frozen=True, slots=True)
class NodeMoves:
    """The moves between nodes, and their intervals for `phases.move_phases`."""

    moves: DataFrame
    intervals: DataFrame


def node_moves(
    runs: DataFrame, chains: DataFrame, activities: DataFrame, events: DataFrame, as_of: datetime, put: Put
) -> NodeMoves:
    """Return the moves between nodes up to `as_of`. `put` receives each intermediate table, as in `build.silver`."""
    mine = runs.where(F.col("workflow_type") == names.PARTITION_REASSIGNMENT)
    steps = chained(activities.where(F.col("activity_type").isin(*STEPS)), mine, names.PARTITION_REASSIGNMENT)
    facts = put("node_facts", node_facts(mine, steps, events, as_of))
    replicas = put("replicas", replicas_of(_partitions(mine, steps, events)))
    intervals = put("node_intervals", _intervals(replicas, steps, facts, chains, as_of))
    return NodeMoves(_moves(replicas, facts, intervals, chains, mine), intervals)


# --- what was to change


def _partitions(runs: DataFrame, steps: DataFrame, events: DataFrame) -> DataFrame:
    """Return one row per partition of a chain: replicas before and after, outcome, and the preferred directories."""
    empty = {"outcome": _TEXT, "error": _TEXT, "message": _TEXT, "by": _TEXT, "original": _INTS, "target": _INTS}

    def known(table: DataFrame, rank: int, **more: Column) -> DataFrame:
        columns = {name: more.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in empty.items()}
        directories = more.get("directories", F.lit(None)).cast(_LISTS).alias("directories")
        return table.select(
            *CHAIN,
            F.col("one.topic").alias("topic") if "topic" not in more else more["topic"].alias("topic"),
            (more["partition"] if "partition" in more else F.col("one.partition")).try_cast("int").alias("partition"),
            F.lit(rank).alias("rank"),
            *columns.values(),
            directories,
        )

    def made(table: DataFrame, text: Column, rank: int) -> DataFrame:
        rows = table.withColumn("one", F.explode(F.from_json(text, _LISTS)))
        one = [F.col("one")[at] for at in range(8)]
        return known(
            rows, rank, topic=one[0], partition=one[2], by=one[7],
            original=F.from_json(one[3], _INTS), target=F.from_json(one[4], _INTS),
        )  # fmt: skip

    results = runs.withColumn("one", F.explode(F.from_json(F.get_json_object("result", "$.rows"), _RESULT)))
    column = F.col
    ended_rows = known(
        results, 4, **{name: column(f"one.{name}") for name in (*empty, "directories")}
    )  # fmt: skip
    answered = chained(
        events.where((column("event_type") == "WORKFLOW_EXECUTION_SIGNALED") & (attribute("signalName") == "answered")),
        runs,
        names.PARTITION_REASSIGNMENT,
    )
    followed = steps.where(column("activity_type") == calls.CATCH_UP).withColumn(
        "one", F.explode(F.from_json(F.get_json_object("input", "$.replicas"), _ASSIGNED))
    )
    text = unquoted(column("input"))
    asked_rows = F.coalesce(F.get_json_object(text, "$.partitions"), as_list(text))
    asked = runs.where(F.get_json_object(text, "$.made").isNull()).withColumn(
        "one", F.explode(F.from_json(asked_rows, _ASKED))
    )
    directories = F.transform(
        F.arrays_zip(column("one.replicas").alias("node"), column("one.log_dirs").alias("directory")),
        lambda pair: F.array(pair["node"].cast("string"), pair["directory"]),
    )
    tables = [
        ended_rows,
        made(runs, F.get_json_object("input", "$.made"), 3),
        made(answered, F.get_json_object(payload("input"), "$.made"), 2),
        known(followed, 1, target=column("one.target"), original=column("one.original")),
        known(asked, 0, target=column("one.replicas"), directories=directories),
    ]

    def best(name: str, present: Column) -> Column:
        return F.max_by(column(name), F.when(present, column("rank"))).alias(name)

    filled = {name: F.size(F.coalesce(name, F.array().cast(_INTS))) > 0 for name in ("original", "target")}
    wanted = F.filter(
        F.coalesce("directories", F.array().cast(_LISTS)),
        lambda pair: pair[1].isNotNull() & (pair[1] != ANY),
    )
    return (
        reduce(DataFrame.unionByName, tables)
        .where(column("topic").isNotNull() & column("partition").isNotNull())
        .withColumn("directories", wanted)
        .groupBy(*CHAIN, "topic", "partition")
        .agg(
            *[best(name, column("rank") == 4) for name in ("outcome", "error", "message")],
            best("by", F.coalesce("by", F.lit("")) != ""),
            *[best(name, present) for name, present in filled.items()],
            best("directories", F.size("directories") > 0),
        )
    )


def replicas_of(partitions: DataFrame) -> DataFrame:
    """Return one row per replica that is added, with the one that it replaces; else per replica that is removed.

    `partitions` have `original` and `target`, the replicas before and after, and `directories`, pairs of a node and the
    directory that is wanted there; their other columns stay.
    """
    known = F.coalesce("original", F.array().cast(_INTS))
    target = F.coalesce("target", F.array().cast(_INTS))
    both = F.size(known) > 0
    adding = F.when(both, F.array_except(target, known)).otherwise(F.array().cast(_INTS))
    removing = F.when(both, F.array_except(known, target)).otherwise(F.array().cast(_INTS))
    count = F.when(F.size("adding") > 0, F.size("adding")).otherwise(F.greatest(F.size("removing"), F.lit(1)))
    replica = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    # A replica that none replaces is known by its node: several of one partition can be removed at once.
    removed = F.concat(F.lit("@from-"), F.col("from_node").cast("string"))
    at = F.coalesce(F.concat(F.lit("@"), F.col("node").cast("string")), removed, F.lit(""))
    preferred = F.filter(
        F.coalesce("directories", F.array().cast(_LISTS)), lambda pair: pair[0] == F.col("node").cast("string")
    )
    return (
        partitions.withColumns({"adding": adding, "removing": removing})
        .withColumn("ordinal", F.explode(F.sequence(F.lit(0), count - 1)))
        .withColumns({"node": F.get("adding", F.col("ordinal")), "from_node": F.get("removing", F.col("ordinal"))})
        .withColumns(
            {
                "replica": replica,
                "id": F.concat_ws("/", "workflow_id", "chain", F.concat(replica, at)),
                "preferred": F.get(preferred, F.lit(0))[1],
            }
        )
    )


# --- what nodes reported


def node_facts(runs: DataFrame, steps: DataFrame, events: DataFrame, as_of: datetime) -> DataFrame:
    """Return every row that a node reported of a replica, with its step, and when it was reported."""
    by_step = steps.select(
        *CHAIN,
        "run_id",
        F.col("activity_type").alias("step"),
        F.col("scheduled_event_id").alias("reported_by"),
        F.coalesce("closed", "heartbeat_at", F.lit(as_of)).alias("reported_at"),
        F.col("attempt").alias("tries"),
        F.col("node").alias("queue_node"),
        F.explode(F.from_json(as_list(F.coalesce("result", "details")), _ROWS)).alias("row"),
    )
    signals = chained(
        events.where(
            (F.col("event_type") == "WORKFLOW_EXECUTION_SIGNALED") & (attribute("signalName") == "copy_progress")
        ),
        runs,
        names.PARTITION_REASSIGNMENT,
    )
    by_signal = signals.select(
        *CHAIN,
        "run_id",
        F.lit("progress").alias("step"),
        F.col("event_id").alias("reported_by"),
        F.col("event_time").alias("reported_at"),
        F.lit(None).cast("int").alias("tries"),
        F.lit(None).cast("int").alias("queue_node"),
        F.explode(F.from_json(as_list(payload("input")), _ROWS)).alias("row"),
    )
    nodes = (
        runs.withColumn("part", F.explode(F.from_json(F.get_json_object("result", "$.rows"), _RESULT)))
        .withColumn("one", F.explode("part.nodes"))
        .select(
            *CHAIN,
            "run_id",
            F.lit("result").alias("step"),
            F.col("events").alias("reported_by"),
            F.col("closed").alias("reported_at"),
            F.lit(None).cast("int").alias("tries"),
            F.lit(None).cast("int").alias("queue_node"),
            F.col("part.topic").alias("topic"),
            F.col("part.partition").alias("partition"),
            "one.*",
        )
    )
    reported = by_step.unionByName(by_signal).select("*", "row.*").drop("row", "state", "stall").unionByName(nodes)
    numbers = {name: F.col(name).try_cast("double").cast("bigint") for name in _LONGS}
    numbers |= {name: F.col(name).try_cast("double") for name in _DOUBLES}
    return (
        reported.withColumns(
            {
                **numbers,
                "partition": F.col("partition").try_cast("int"),
                "node": F.coalesce(F.col("node").try_cast("int"), "queue_node"),
            }
        )
        .withColumns(
            {
                "seconds_queued": F.col("seconds_placing"),
                "seconds_copying": F.greatest(
                    F.col("seconds_catching_up") - F.coalesce("seconds_throttled", F.lit(0.0)), F.lit(0.0)
                ),
            }
        )
        .where(F.col("topic").isNotNull() & F.col("partition").isNotNull())
    )


# --- when


def _intervals(
    replicas: DataFrame, steps: DataFrame, facts: DataFrame, chains: DataFrame, as_of: datetime
) -> DataFrame:
    """Return the intervals of each move: until the first step, each step by its parts, and the gaps between steps."""
    columns = (*MOVE, "node", "run_id", "phase", "began", "ended", "measured", "open")
    called = steps.withColumn(
        "one", F.explode(F.from_json(F.get_json_object("input", "$.replicas"), _ASSIGNED))
    ).select(
        *CHAIN,
        F.col("one.topic").alias("topic"),
        F.col("one.partition").try_cast("int").alias("partition"),
        "node",
        "run_id",
        F.col("activity_type").alias("step"),
        F.get_json_object("input", "$.wish").alias("wish"),
        F.col("scheduled_event_id").alias("reported_by"),
        F.col("scheduled").alias("began"),
        F.coalesce("closed", F.lit(as_of)).alias("ended"),
        F.col("closed").isNull().alias("open"),
    )
    key = (*MOVE, "node")
    follows = called.where(F.col("step") == calls.CATCH_UP)
    copies = split_copies(follows, facts, key, PARTS).select(*columns)
    first = follows.groupBy(*MOVE).agg(F.min("began").alias("gap_ended"), F.min("run_id").alias("run_id"))
    asking = first.join(chains.select(*CHAIN, "started"), [*CHAIN]).select(
        *MOVE,
        F.lit(None).cast("int").alias("node"),
        "run_id",
        F.lit(schema.ASKING).alias("phase"),
        F.col("started").alias("began"),
        F.col("gap_ended").alias("ended"),
        F.lit(True).alias("measured"),
        F.lit(False).alias("open"),
    )
    order = W.partitionBy(*key).orderBy("began", "reported_by")
    between = follows.withColumn("previous", F.max("ended").over(order.rowsBetween(W.unboundedPreceding, -1)))
    absent = between.where(F.col("previous").isNotNull()).select(
        *key,
        "run_id",
        F.lit(schema.UNAVAILABLE).alias("phase"),
        F.col("previous").alias("began"),
        F.col("began").alias("ended"),
        F.lit(True).alias("measured"),
        F.lit(False).alias("open"),
    )
    long_enough = seconds_between(F.col("began"), F.col("ended")) >= F.lit(SMALLEST_GAP)
    # The first placing, with a wish, only notes the preferred directory, before the change is requested.
    later = called.where(
        (F.col("step") == calls.AWAIT_DELETION) | ((F.col("step") == calls.PLACE_REPLICAS) & (F.col("wish") == "false"))
    )
    phase = F.when(F.col("step") == calls.AWAIT_DELETION, F.lit(schema.DELETING)).otherwise(F.lit(schema.DIRECTING))
    others = later.select(*key, "run_id", phase.alias("phase"), "began", "ended", F.lit(True).alias("measured"), "open")
    tables = [copies, asking.where(long_enough), absent.where(long_enough), others]
    found = reduce(DataFrame.unionByName, tables).withColumnRenamed("node", "at_node")
    of = replicas.select("id", *MOVE, "node", "from_node")
    deleting = F.col("phase") == schema.DELETING
    mine = (deleting & (F.col("at_node") == F.col("from_node"))) | (
        ~deleting & (F.col("at_node").isNull() | F.col("node").isNull() | (F.col("at_node") == F.col("node")))
    )
    return found.join(of, [*MOVE]).where(mine).select("id", *(name for name in columns if name != "node"))


# --- the moves


def _moves(
    replicas: DataFrame, facts: DataFrame, intervals: DataFrame, chains: DataFrame, runs: DataFrame
) -> DataFrame:
    order = F.struct("reported_at", "reported_by")
    word = F.create_map(*[F.lit(text) for pair in FINAL.items() for text in pair])
    verdicts = (
        facts.where(F.col("step") != "result")
        .withColumn("class", word[F.col("outcome")])
        .where(F.col("class").isNotNull() & (F.col("class") != schema.FAILED))
        .groupBy(*MOVE)
        .agg(F.max_by("class", order).alias("reported"), F.min(F.struct("reported_at", "class")).alias("first"))
    )

    def last(name: str) -> Column:
        return F.max_by(F.col(name), F.when(F.coalesce(name, F.lit("")) != "", order)).alias(f"node_{name}")

    numbers = ("bytes_total", "bytes_copied", "seconds_queued", "seconds_copying", "seconds_throttled")
    totals = facts.groupBy(*MOVE, "node").agg(
        *[F.max(name).alias(name) for name in numbers],
        F.max(F.greatest(F.coalesce("attempts", F.lit(0)), F.coalesce("tries", F.lit(0)))).alias("attempts"),
        *[last(name) for name in ("directory", "error", "message")],
    )
    deletions = facts.groupBy(*MOVE, F.col("node").alias("from_node")).agg(
        F.max("seconds_deleting").alias("seconds_delete_delay")
    )
    spans = intervals.groupBy("id").agg(
        F.max_by("phase", F.when(F.col("open"), F.struct("ended", "began"))).alias("open_phase"),
        F.sum(F.when(F.col("phase") == schema.UNAVAILABLE, seconds_between(F.col("began"), F.col("ended")))).alias(
            "seconds_unavailable"
        ),
    )
    caught_up = F.try_element_at(
        F.filter(
            F.from_json(F.get_json_object("result", "$.phases"), _LISTS),
            lambda row: row[0] == ReassignmentPhase.CATCHING_UP,
        ),
        F.lit(-1),
    )[2]
    rates = F.from_json(F.get_json_object("input", "$.throttles.nodes"), _RATES)
    of_runs = runs.groupBy(*CHAIN).agg(
        F.max(F.timestamp_micros((caught_up.try_cast("double") * 1e6).cast("bigint"))).alias("caught_up_at"),
        F.max_by(rates, F.when(rates.isNotNull(), F.col("started"))).alias("rates"),
        F.max_by(
            F.coalesce(*[F.get_json_object("input", f"$.{one}") for one in ("sla_seconds", "deadline_seconds")]),
            "started",
        )
        .try_cast("double")
        .alias("own_seconds"),
    )
    counted = replicas.groupBy(*CHAIN).agg(F.count(F.lit(1)).alias("replicas"))
    joined = (
        replicas.withColumnsRenamed({"outcome": "result_outcome"})
        .join(chains, [*CHAIN])
        .join(of_runs, [*CHAIN], "left")
        .join(counted, [*CHAIN], "left")
        .join(verdicts, [*MOVE], "left")
        .join(totals, [*MOVE, "node"], "left")
        .join(deletions, [*MOVE, "from_node"], "left")
        .join(spans, ["id"], "left")
    )
    outcome = F.coalesce(word[F.col("result_outcome")], "reported", chain_outcome())
    reported_at = F.when(F.col("first")["class"] == F.col("outcome"), F.col("first")["reported_at"])
    in_place = F.when(F.col("outcome") == schema.MOVED, F.col("caught_up_at"))
    zero = F.lit(0.0)
    busy = F.col("seconds_copying") + F.col("seconds_throttled")
    moves = (
        joined.withColumns(
            {
                "outcome": outcome,
                "error": F.coalesce(F.nullif("error", F.lit("")), "node_error"),
                "message": F.coalesce(F.nullif("message", F.lit("")), "node_message"),
                **{name: F.coalesce(name, F.lit(0)) for name in numbers},
                "seconds_delete_delay": F.coalesce("seconds_delete_delay", zero),
                "attempts": F.coalesce("attempts", F.lit(0)),
            }
        )
        .withColumns(ended(F.coalesce(reported_at, in_place, "chain_closed")))
        .withColumns(
            {
                "kind": F.when(F.col("preferred").isNotNull(), F.lit(schema.BOTH)).otherwise(F.lit(schema.NODE)),
                "node": F.coalesce("node", F.when(F.col("from_node").isNull(), F.get("target", F.lit(0)))),
                "source": F.lit(None),
                "directory": F.coalesce(
                    F.when(F.col("outcome") == schema.MOVED, F.col("preferred")),
                    F.nullif("node_directory", F.lit("")),
                    "preferred",
                ),
                "lane": F.when(F.col("replicas") > 1, F.col("workflow_id")),
                "requested_by": F.nullif("by", F.lit("")),
                "carries_out": F.lit(None),
                "bytes_resumed": F.lit(0),
                "bytes_written": F.col("bytes_copied"),
                "mean_rate": F.when((busy > 0) & (F.col("bytes_copied") > 0), F.col("bytes_copied") / busy),
                "throttle": F.col("rates")[F.col("node").cast("string")][throttles.RATES[1]].try_cast("double"),
                "seconds_stalled": zero,
                "seconds_locked": zero,
                "spent": _spent(),
                "stall": F.lit(None),
                "stall_message": F.lit(None),
                "asked_seconds": F.coalesce("own_seconds", "plan_seconds"),
            }
        )
    )
    return conform(moves, schema.MOVES)


def _spent() -> Column:
    """Return the seconds by reason: a replication throttle is a limit of the node."""
    seconds = {
        StallReason.QUEUED: F.col("seconds_queued"),
        StallReason.COPYING: F.col("seconds_copying"),
        StallReason.NODE_LIMIT: F.col("seconds_throttled"),
        StallReason.UNAVAILABLE: F.coalesce("seconds_unavailable", F.lit(0.0)),
    }
    parts = [part for reason in schema.REASONS for part in (F.lit(reason), seconds.get(reason, F.lit(0.0)))]
    return F.create_map(*parts)
