"""Gold: one row per failure of a log directory, from the runs of DirectoryFailure, and one per replica that is or was
offline alone, from the commands that nodes have sent to the controller.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ops.analytics import schema
from ops.analytics.gold import CHAIN
from ops.analytics.silver import attribute, conform, payload, seconds_between
from workflows.model import names

_TEXT = T.StringType()
_RECORDED = T.ArrayType(
    T.StructType([T.StructField("topic", _TEXT), T.StructField("partitions", T.ArrayType(T.LongType()))])
)
_TOLD = T.ArrayType(T.ArrayType(_TEXT))
_PAIRS = T.ArrayType(T.ArrayType(T.LongType()))
_MOVES = T.ArrayType(T.StructType([T.StructField(name, _TEXT) for name in ("topic", "partition")]))


def directory_failures(runs: DataFrame, as_of: datetime) -> DataFrame:
    """What each run ended with; of one that is open, or was stopped by hand, what its node told.

    A parameter that could not be read makes no row: it tells of no directory.
    """
    told = runs.where(F.col("workflow_type") == names.DIRECTORY_FAILURE)
    chains = told.groupBy(*CHAIN).agg(
        F.max_by("status", "started").alias("status"),
        F.max_by("input", "started").alias("input"),
        F.max_by("result", "started").alias("result"),
    )
    done = F.col("status") == schema.COMPLETED

    def text(name: str) -> Column:
        return F.when(done, F.get_json_object("result", f"$.{name}")).otherwise(F.get_json_object("input", f"$.{name}"))

    recorded = F.from_json(F.get_json_object("result", "$.replicas"), _RECORDED)
    noticed = F.transform(
        F.from_json(F.get_json_object("input", "$.replicas"), _TOLD),
        lambda row: F.struct(
            row[0].alias("topic"),
            F.transform(F.from_json(row[2], _PAIRS), lambda pair: pair[0]).alias("partitions"),
        ),
    )
    replicas = F.flatten(
        F.transform(
            F.when(done, recorded).otherwise(noticed),
            lambda row: F.transform(row["partitions"], lambda index: F.concat_ws("-", row["topic"], index)),
        )
    )
    moves = F.transform(
        F.from_json(text("moves"), _MOVES), lambda row: F.concat_ws("-", row["topic"], row["partition"])
    )
    empty = F.array().cast(T.ArrayType(_TEXT))
    return conform(
        chains.withColumns(
            {
                "node": text("node").try_cast("int"),
                "directory": text("directory"),
                "directory_id": text("directory_id"),
                "reason": text("reason"),
                "noticed": _time(text("noticed")),
                "recorded": F.when(done, _time(F.get_json_object("result", "$.recorded"))),
                "outcome": F.when(done, F.get_json_object("result", "$.outcome")).otherwise(F.col("status")),
                "replicas": F.coalesce(replicas, empty),
                "moves": F.coalesce(moves, empty),
                "as_of": F.lit(as_of),
            }
        )
        .withColumn("seconds", seconds_between(F.col("noticed"), F.col("recorded")))
        .where(F.col("node").isNotNull() & F.col("directory").isNotNull()),
        schema.DIRECTORY_FAILURES,
    )


_REPORT = T.ArrayType(_TEXT)
_COMMANDS = T.ArrayType(
    T.StructType(
        [
            T.StructField("do", _TEXT),
            T.StructField("node", T.LongType()),
            T.StructField("replicas", T.ArrayType(_REPORT)),
            T.StructField("offline", T.ArrayType(_REPORT)),
        ]
    )
)


def replica_failures(events: DataFrame, as_of: datetime) -> DataFrame:
    """The last report of every replica that its node has reported offline, and when it was usable again.

    From the updates that the controller accepted: `report_replicas`, and registrations, which take the place of all
    reports before them. What the controller refused is counted as well; a node reports it again.
    """
    request = payload("acceptedRequest.input.args")
    sent = (
        events.where(F.col("event_type") == "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        .where(attribute("acceptedRequest.input.name") == "submit")
        .withColumn("command", F.explode(F.from_json(F.get_json_object(request, "$.commands"), _COMMANDS)))
        .select("namespace", "workflow_id", "event_time", "event_id", "command.*")
    )
    rows = sent.where(F.col("do") == "report_replicas").withColumn("row", F.explode("replicas"))
    named = sent.where(F.col("do") == "register").withColumn("row", F.explode("offline"))
    columns = ["namespace", "workflow_id", "event_time", "event_id", "node", "row"]
    replica = ["namespace", "workflow_id", "node", "topic", "partition"]
    when = F.struct("event_time", "event_id")
    told = (
        rows.select(columns)
        .unionByName(named.select(columns))
        .withColumns({"topic": F.col("row")[0], "partition": F.col("row")[1], "bad": F.col("row")[5] != ""})
        .groupBy(*replica)
        .agg(
            F.max(F.when(F.col("bad"), when)).alias("last"),
            F.max_by(F.col("row")[5], F.when(F.col("bad"), when)).alias("reason"),
            F.max_by(F.col("row")[6], F.when(F.col("bad"), when)).alias("file"),
            F.max(F.when(~F.col("bad"), when)).alias("online"),
        )
        .where(F.col("last").isNotNull())
    )
    registered = sent.where(F.col("do") == "register").select(
        "namespace", "workflow_id", "node", when.alias("registered")
    )
    joined = told.join(registered, ["namespace", "workflow_id", "node"], "left")
    later = F.when(F.col("registered") > F.col("last"), F.col("registered")["event_time"])
    found = joined.groupBy(*replica, "last", "reason", "file", "online").agg(F.min(later).alias("again"))
    back = F.when(F.col("online") > F.col("last"), F.col("online")["event_time"])
    return conform(
        found.withColumns(
            {
                "reported": F.col("last")["event_time"],
                "back": F.least(back, F.col("again")),
                "as_of": F.lit(as_of),
            }
        ),
        schema.REPLICA_FAILURES,
    )


def _time(seconds: Column) -> Column:
    return F.timestamp_micros((seconds.try_cast("double") * 1e6).cast("bigint"))
