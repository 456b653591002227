"""Silver: failures of log directories, from the runs of DirectoryFailure, and of single replicas, from the commands
that nodes have sent to the controller.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.histories import CHAIN, RUN, attribute, payload, run_order, seconds_between
from workflows.model import names

_TEXT = T.StringType()
_RECORDED = T.ArrayType(
    T.StructType([T.StructField("topic", _TEXT), T.StructField("partitions", T.ArrayType(T.LongType()))])
)
_TOLD = T.ArrayType(T.ArrayType(_TEXT))
_PAIRS = T.ArrayType(T.ArrayType(T.LongType()))
_SIGNS = T.ArrayType(T.StructType([T.StructField("text", _TEXT), T.StructField("time", T.DoubleType())]))
_MOVES = T.ArrayType(T.StructType([T.StructField(name, _TEXT) for name in ("topic", "partition")]))


def directories(runs: DataFrame) -> DataFrame:
    """Return the result of each run; for a run that is open or was terminated, the report in its parameter.

    An unreadable parameter gives no row: it names no directory.
    """
    reported = runs.where(F.col("workflow_type") == names.DIRECTORY_FAILURE)
    chains = reported.groupBy(*CHAIN).agg(
        F.max_by("status", run_order()).alias("status"),
        F.max_by("input", run_order()).alias("input"),
        F.max_by("result", run_order()).alias("result"),
        F.min("day").alias("day"),
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
    signs = F.from_json(text("signs"), _SIGNS)
    empty = F.array().cast(T.ArrayType(_TEXT))
    return conform(
        chains.withColumns(
            {
                "node": text("node").try_cast("int"),
                "directory": text("directory"),
                "directory_id": text("directory_id"),
                "reason": text("reason"),
                "verdict": text("evidence.verdict"),
                "operation": text("evidence.operation"),
                "file": text("evidence.path"),
                "errno": text("evidence.errno"),
                "signs": F.coalesce(F.transform(signs, lambda row: row["text"]), empty),
                "first_sign": _time(F.array_min(F.transform(signs, lambda row: row["time"]))),
                "noticed": _time(text("noticed")),
                "recorded": F.when(done, _time(F.get_json_object("result", "$.recorded"))),
                "outcome": F.when(done, F.get_json_object("result", "$.outcome")).otherwise(F.col("status")),
                "replicas": F.coalesce(replicas, empty),
                "moves": F.coalesce(moves, empty),
            }
        )
        .withColumn("seconds", seconds_between(F.col("noticed"), F.col("recorded")))
        .where(F.col("node").isNotNull() & F.col("directory").isNotNull()),
        schema.DIRECTORIES,
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


def replica_reports(events: DataFrame) -> DataFrame:
    """Return what nodes have reported of single replicas, and their registrations, which replace all earlier reports.

    The source are the updates that the controller accepted. A report that the controller rejected counts as well: the
    node repeats it.
    """
    request = payload("acceptedRequest.input.args")
    sent = (
        events.where(F.col("event_type") == "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        .where(attribute("acceptedRequest.input.name") == "submit")
        .withColumn("commands", F.from_json(F.get_json_object(request, "$.commands"), _COMMANDS))
        .select(*RUN, "event_time", "event_id", F.posexplode("commands").alias("at", "command"))
        .where(F.col("command.do").isin("report_replicas", "register"))
        .select(*RUN, "event_time", "event_id", "at", "command.*")
    )
    register = F.col("do") == "register"
    nothing = F.array().cast(T.ArrayType(_REPORT))
    named = F.coalesce(F.when(register, F.col("offline")).otherwise(F.col("replicas")), nothing)
    # A registration is a row of its own, beside those of the replicas that it names.
    rows = F.when(register, F.concat(F.array(F.lit(None).cast(_REPORT)), named)).otherwise(named)
    reported = sent.withColumn("rows", rows).select("*", F.posexplode("rows").alias("within", "row"))
    return conform(
        reported.withColumns(
            {
                "place": F.col("at") * 100_000 + F.col("within"),
                "topic": F.col("row")[0],
                "partition": F.col("row")[1].try_cast("int"),
                "reason": F.col("row")[5],
                "file": F.col("row")[6],
            }
        ),
        schema.REPLICA_REPORTS,
    )


def replica_failures(reports: DataFrame) -> DataFrame:
    """Return the last report of every replica that its node has reported offline, and when it was online again."""
    replica = ["namespace", "workflow_id", "node", "topic", "partition"]
    when = F.struct("event_time", "event_id")
    bad = F.col("reason") != ""
    reported = (
        reports.where(F.col("topic").isNotNull())
        .groupBy(*replica)
        .agg(
            F.max(F.when(bad, when)).alias("last"),
            F.max_by("reason", F.when(bad, when)).alias("reason"),
            F.max_by("file", F.when(bad, when)).alias("file"),
            F.max(F.when(~bad, when)).alias("online"),
        )
        .where(F.col("last").isNotNull())
    )
    registered = reports.where(F.col("topic").isNull()).select(
        "namespace", "workflow_id", "node", when.alias("registered")
    )
    joined = reported.join(registered, ["namespace", "workflow_id", "node"], "left")
    later = F.when(F.col("registered") > F.col("last"), F.col("registered")["event_time"])
    found = joined.groupBy(*replica, "last", "reason", "file", "online").agg(F.min(later).alias("again"))
    back = F.when(F.col("online") > F.col("last"), F.col("online")["event_time"])
    return conform(
        found.withColumns({"reported": F.col("last")["event_time"], "back": F.least(back, F.col("again"))}),
        schema.REPLICA_FAILURES,
    )


def _time(seconds: Column) -> Column:
    return F.timestamp_micros((seconds.try_cast("double") * 1e6).cast("bigint"))
