"""Silver: the phases that replicas went through, in the words of the workflow's own transition table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.facts import MOVE
from ops.analytics.silver.phases import move_id, replica_steps
from storage_node.model.moves import Event, Outcome, Phase
from workflows.model.move.moves import STEPS

#: The phase of a replica by the step that is called for it.
PHASE_OF = {step: phase for phase, step in STEPS.items()}


def move_steps(runs: DataFrame, activities: DataFrame, facts: DataFrame) -> DataFrame:
    """Return one row per replica of a step that returned one, with the phase of the replica's next step.

    A step that was interrupted (a pause, a dead node) returned no result, and is left out: the replica kept its phase.
    """
    phase = F.create_map(*[F.lit(text) for pair in PHASE_OF.items() for text in pair])
    order = W.partitionBy(*MOVE).orderBy("began", "reported_by")
    ended = facts.where(F.col("step").isin(*PHASE_OF)).select(
        *MOVE, "run_id", "reported_by", F.col("outcome").alias("reported"), F.col("reported_at").alias("ended_at")
    )
    closed = activities.where(F.col("state").isin(schema.COMPLETED, schema.FAILED)).select(
        "namespace", "workflow_id", "run_id", F.col("scheduled_event_id").alias("reported_by")
    )
    called = replica_steps(runs, activities).withColumns(
        {"phase": phase[F.col("step")], "next_phase": phase[F.lead("step").over(order)]}
    )
    failed = F.col("reported") == Outcome.FAILED
    before = F.max(F.when(failed, F.lit(1))).over(order.rowsBetween(W.unboundedPreceding, -1)).isNotNull()
    event = (
        F.when((F.col("phase") == Phase.CANCELLING) & before, F.lit(Event.COPY_REMOVED))
        .when(
            failed & (F.col("phase") == Phase.CREATING) & (F.col("next_phase") == Phase.CREATING),
            F.lit(Event.TARGET_REJECTED),
        )
        .when(
            failed
            & F.col("phase").isin(*[one for one in Phase if one.before_swap])
            & (F.col("next_phase") == Phase.CANCELLING),
            F.lit(Event.FAILED_WITH_COPY),
        )
        .otherwise(F.col("reported"))
    )
    return conform(
        called.join(ended, [*MOVE, "run_id", "reported_by"])
        .join(closed, ["namespace", "workflow_id", "run_id", "reported_by"], "left_semi")
        .withColumn("event", event)
        .where(F.coalesce("event", F.lit("")) != "")
        .withColumns(
            {
                "id": move_id(),
                "scheduled_event_id": F.col("reported_by"),
                "ended": F.col("ended_at"),
                "day": F.to_date("ended_at"),
            }
        ),
        schema.MOVE_STEPS,
    )
