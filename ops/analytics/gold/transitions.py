"""Gold: the transitions that replicas took, against the workflow's own table. One that it forbids is an alarm."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.schema import conform
from storage_node.model.moves import Phase
from workflows.model.move.moves import TRANSITIONS

#: The next phase of a replica without another step: the move has ended, or is open.
NO_STEP = ""


def allowed() -> frozenset[tuple[str, str, str]]:
    """Return (phase, event, phase of the next step) of every transition that the workflow may take.

    Between two steps, requests of operators and timers may change the phase as well.
    """
    found = set()
    for (phase, event), then in TRANSITIONS.items():
        found |= {(str(phase), str(event), str(later)) for later in (*_reachable(then.phase), NO_STEP)}
    return frozenset(found)


def _reachable(phase: Phase) -> set[Phase]:
    """Return the phase, and those that requests and timers alone lead to."""
    found, rest = {phase}, [phase]
    while rest:
        here = rest.pop()
        for (before, event), then in TRANSITIONS.items():
            if before is here and not event.of_step and then.phase not in found:
                found.add(then.phase)
                rest.append(then.phase)
    return found


def transitions(steps: DataFrame) -> DataFrame:
    """Return how often each transition was taken on each day."""
    known = F.array(*[F.lit("|".join(one)) for one in sorted(allowed())])
    taken = F.concat_ws("|", "phase", "event", "next_phase")
    return conform(
        steps.withColumn("next_phase", F.coalesce("next_phase", F.lit(NO_STEP)))
        .groupBy("day", "phase", "event", "next_phase")
        .agg(F.count(F.lit(1)).alias("moves"), F.min("id").alias("example"))
        .withColumn("allowed", F.array_contains(known, taken)),
        schema.TRANSITIONS,
    )
