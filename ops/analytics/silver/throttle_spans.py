"""Silver: the limits that runs held: a move's own, and the leases of Kafka's throttles that runs request."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import chained, unquoted
from ops.analytics.silver.histories import CHAIN, attribute, payload
from workflows.model import names

#: The types of runs that lease throttles from the controller.
LEASING = (names.PARTITION_REASSIGNMENT, names.THROTTLE_LEASE)
#: The types of runs that hold limits.
TYPES = frozenset({names.MOVE_REPLICA, *LEASING})
_TEXT = T.StringType()
_NESTED = T.MapType(_TEXT, T.MapType(_TEXT, _TEXT))
_ORDER = ("began", "set_by")


def throttle_spans(runs: DataFrame, activities: DataFrame, events: DataFrame, chains: DataFrame) -> DataFrame:
    """Return one row per limit that a run held; the end is null while it holds."""
    found = _of_moves(runs, activities, events).unionByName(_leased(runs, events))
    return conform(found.join(chains.select(*CHAIN, "day", "workflow_type"), [*CHAIN]), schema.THROTTLE_SPANS)


def _of_moves(runs: DataFrame, activities: DataFrame, events: DataFrame) -> DataFrame:
    """Return the limits of runs of MoveReplica: the parameter's, and each that an update has set."""
    moves = runs.where(F.col("workflow_type") == names.MOVE_REPLICA)
    text = unquoted(F.col("input"))
    given = moves.where(F.coalesce("continued_run_id", F.lit("")) == "").select(
        *CHAIN, "run_id", F.lit(1).cast("bigint").alias("set_by"), F.col("started").alias("began"),
        F.coalesce(*[F.get_json_object(text, path) for path in ("$.throttle", "$[0].throttle")]).alias("asked"),
    )  # fmt: skip
    updates = events.where(
        (F.col("event_type") == "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        & (attribute("acceptedRequest.input.name") == "set_throttle")
    )
    set_later = chained(updates, runs).select(
        *CHAIN, "run_id", F.col("event_id").alias("set_by"), F.col("event_time").alias("began"),
        payload("acceptedRequest.input.args").alias("asked"),
    )  # fmt: skip
    # The rate in bytes is in the steps' parameters: a person may write it with a unit.
    called = chained(activities, runs).select(
        *CHAIN, "scheduled", F.get_json_object("input", "$.throttle").try_cast("double").alias("called"), "node"
    )
    ends = moves.groupBy(*CHAIN).agg(F.max("closed").alias("closed"), F.max_by("status", "started").alias("status"))
    chain = W.partitionBy(*CHAIN).orderBy(*_ORDER)
    spans = given.unionByName(set_later).withColumn("next", F.lead("began").over(chain))
    rates = (
        spans.join(called, [*CHAIN], "left")
        .groupBy(*CHAIN, "run_id", "set_by", "began", "next", "asked")
        .agg(
            F.max("node").cast("string").alias("subject"),
            F.min_by("called", F.when((F.col("scheduled") >= F.col("began")), F.col("scheduled"))).alias("rate"),
        )
    )
    closed = F.when(F.col("status") != schema.OPEN, F.col("closed"))
    return (
        rates.join(ends, [*CHAIN])
        .where(F.coalesce("asked", F.lit("null")) != "null")
        .select(
            *CHAIN,
            "run_id",
            F.lit(schema.OF_RUN).alias("scope"),
            F.coalesce("subject", F.lit("")).alias("subject"),
            F.lit("throttle").alias("config"),
            "set_by",
            F.coalesce(F.col("asked").try_cast("double"), "rate").alias("rate"),
            "began",
            F.coalesce("next", closed).alias("ended"),
        )
    )


def _leased(runs: DataFrame, events: DataFrame) -> DataFrame:
    """Return the throttles that runs requested from the controller, until they released them or ended."""
    sent = events.where(
        (F.col("event_type") == "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED")
        & (attribute("signalName") == "reassign")
    )
    requests = reduce(DataFrame.unionByName, [chained(sent, runs, kind) for kind in LEASING]).withColumn(
        "request", payload("input")
    )
    held = requests.where(F.get_json_object("request", "$.hold").isNotNull())
    columns = [*CHAIN, "run_id", F.col("event_id").alias("set_by"), F.col("event_time").alias("began")]
    tables = []
    for scope, name in ((schema.OF_NODE, "nodes"), (schema.OF_TOPIC, "topics")):
        nested = F.from_json(F.get_json_object("request", f"$.hold.{name}"), _NESTED)
        subjects = held.select(*columns, F.explode(nested).alias("subject", "configs"))
        configs = subjects.select("*", F.explode("configs").alias("config", "value"))
        rate = F.col("value").try_cast("double")
        tables.append(configs.withColumns({"scope": F.lit(scope), "rate": rate}).drop("configs", "value"))
    leases = reduce(DataFrame.unionByName, tables)
    released = requests.where(F.get_json_object("request", "$.release").isNotNull()).select(
        *CHAIN,
        F.col("event_time").alias("released"),
        F.from_json(F.get_json_object("request", "$.release.nodes"), T.ArrayType(_TEXT)).alias("of"),
    )
    ends = runs.groupBy(*CHAIN).agg(F.max(F.when(F.col("status") != schema.CONTINUED, F.col("closed"))).alias("closed"))
    key = [*CHAIN, "run_id", "set_by", "began", "scope", "subject", "config", "rate"]
    covers = (F.col("released") >= F.col("began")) & (
        F.col("of").isNull() | ((F.col("scope") == schema.OF_NODE) & F.array_contains("of", F.col("subject")))
    )
    return (
        leases.join(released, [*CHAIN], "left")
        .groupBy(*key)
        .agg(F.min(F.when(covers, F.col("released"))).alias("ended"))
        .join(ends, [*CHAIN])
        .withColumn("ended", F.coalesce("ended", "closed"))
        .drop("closed")
    )
