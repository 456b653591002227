"""What the report shows and no table stores, since it is of one time."""

from __future__ import annotations

from pyspark.sql import types as T

from ops.analytics.schema.columns import DOUBLE, INT, LONG, STRING, TIME
from ops.analytics.schema.gold import ATTAINMENT
from ops.analytics.schema.silver import MOVES, PLANS


def _struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


#: A row of `moves`, with its deadline and whether it met it as of a time. `sla_rule` is `run` or a rule's name;
#: `carried_by` is the workflow id of the run that carries out a plan's move, null where none is known.
JUDGED_MOVES = T.StructType(
    [
        *MOVES.struct.fields,
        *_struct(
            carried_by=STRING,
            duration_seconds=DOUBLE,
            sla_rule=STRING,
            deadline_seconds=DOUBLE,
            deadline=TIME,
            met_sla=STRING,
        ).fields,
    ]
)

#: Attainment over groups of moves, whatever their day.
SLA_SUMMARY = T.StructType([T.StructField(one.name, one.kind) for one in ATTAINMENT])

#: A row of `plans`, with what became of its moves (`done` have reached their targets, `missed` have ended elsewhere),
#: and whether it met its deadline as of a time.
JUDGED_PLANS = T.StructType(
    [*PLANS.struct.fields, *_struct(done=LONG, missed=LONG, running=LONG, bytes_done=LONG, met_sla=STRING).fields]
)

#: One row per replica that its node has reported offline in a directory that is online: the last such report. `back`
#: is when the node reported it online again, or registered without naming it; null while it is offline.
REPLICA_FAILURES = _struct(
    namespace=STRING,
    workflow_id=STRING,
    node=INT,
    topic=STRING,
    partition=INT,
    file=STRING,
    reason=STRING,
    reported=TIME,
    back=TIME,
)
