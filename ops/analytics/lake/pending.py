"""The pending activities of open runs, from their descriptions by the server."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from activities.history.manifest import PENDING
from ops.analytics import schema
from ops.analytics.schema import conform

_TEXT = T.StringType()
_ACTIVITY = T.StructType(
    [
        *(T.StructField(name, _TEXT) for name in ("activityId", "state", "attempt", "lastHeartbeatTime")),
        T.StructField("activityType", T.StructType([T.StructField("name", _TEXT)])),
        T.StructField(
            "heartbeatDetails",
            T.StructType([T.StructField("payloads", T.ArrayType(T.StructType([T.StructField("data", _TEXT)])))]),
        ),
        T.StructField("nextAttemptScheduleTime", _TEXT),
    ]
)
_RUN = T.StructType(
    [
        T.StructField("taken_at", _TEXT),
        T.StructField("history_length", _TEXT),
        T.StructField("activities", T.ArrayType(_ACTIVITY)),
    ]
)


def pending_activities(records: DataFrame) -> DataFrame:
    """Return the rows of described runs; one without id for a run without pending activities."""
    runs = records.where(F.col("kind") == PENDING).withColumns(
        {
            "run": F.from_json("attributes", _RUN),
            # A failure is kept as it is: its fields depend on its kind.
            "failures": F.from_json(
                F.get_json_object("attributes", "$.activities"),
                T.ArrayType(T.StructType([T.StructField("lastFailure", _TEXT)])),
            ),
        }
    )
    rows = runs.drop("taken_at").select("*", F.posexplode_outer("run.activities").alias("at", "one"))
    heartbeat = F.get(F.col("one.heartbeatDetails.payloads"), F.lit(0))["data"]
    return conform(
        rows.withColumns(
            {
                "taken_at": F.col("run.taken_at"),
                "history_length": F.col("run.history_length"),
                "activity_id": F.col("one.activityId"),
                "activity_type": F.col("one.activityType.name"),
                "state": F.lower(F.regexp_replace("one.state", "^PENDING_ACTIVITY_STATE_", "")),
                "attempt": F.coalesce(F.col("one.attempt").try_cast("int"), F.lit(0)),
                "heartbeat_at": F.try_to_timestamp("one.lastHeartbeatTime"),
                "heartbeat": F.unbase64(heartbeat).cast("string"),
                "last_failure": F.get("failures", F.col("at"))["lastFailure"],
                "next_attempt_at": F.try_to_timestamp("one.nextAttemptScheduleTime"),
            }
        ).withColumn("attempt", F.when(F.col("one").isNotNull(), F.col("attempt"))),
        schema.PENDING_ACTIVITIES,
    )
