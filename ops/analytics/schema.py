"""The tables' declared schemas, and the words that stand in them. Times are UTC, durations seconds, sizes bytes.

Bronze is what Temporal wrote, untouched; silver joins it to runs, activities, facts and phases; gold is what a person
reads. Every transform takes and returns DataFrames of these schemas.
"""

from __future__ import annotations

from pyspark.sql import types as T

_STRING, _LONG, _INT, _DOUBLE, _BOOL, _TIME = (
    T.StringType(),
    T.LongType(),
    T.IntegerType(),
    T.DoubleType(),
    T.BooleanType(),
    T.TimestampType(),
)


def _table(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


#: Bronze: one row per event per snapshot of its run. `attributes` is the event's own part as Temporal's JSON.
HISTORY_EVENTS = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    run_id=_STRING,
    event_id=_LONG,
    event_time=_TIME,
    event_type=_STRING,
    attributes=_STRING,
    summary=_STRING,
    snapshot=_STRING,
    source_file=_STRING,
    export_id=_STRING,
)

#: Bronze: one row per pending activity of an open run, as described when the export was taken.
PENDING_ACTIVITIES = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    run_id=_STRING,
    taken_at=_TIME,
    history_length=_LONG,
    activity_id=_STRING,
    activity_type=_STRING,
    state=_STRING,
    attempt=_INT,
    heartbeat_at=_TIME,
    heartbeat=_STRING,
    last_failure=_STRING,
    next_attempt_at=_TIME,
)

#: Silver: one row per run. `chain` is the first run id of those that continued as new or were reset.
WORKFLOW_RUNS = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    run_id=_STRING,
    chain=_STRING,
    workflow_type=_STRING,
    task_queue=_STRING,
    status=_STRING,
    started=_TIME,
    closed=_TIME,
    duration_seconds=_DOUBLE,
    events=_LONG,
    cancel_requested=_TIME,
    input=_STRING,
    result=_STRING,
    failure_type=_STRING,
    failure_message=_STRING,
    continued_run_id=_STRING,
    parent_workflow_id=_STRING,
)

#: Silver: one row per scheduled activity. `attempt` counts what the server counted; retries leave no events.
ACTIVITY_EXECUTIONS = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    run_id=_STRING,
    scheduled_event_id=_LONG,
    activity_id=_STRING,
    activity_type=_STRING,
    task_queue=_STRING,
    node=_INT,
    state=_STRING,
    attempt=_INT,
    scheduled=_TIME,
    started=_TIME,
    closed=_TIME,
    duration_seconds=_DOUBLE,
    input=_STRING,
    result=_STRING,
    failure_type=_STRING,
    failure_message=_STRING,
    details=_STRING,
    heartbeat_at=_TIME,
)

#: Where a node says that a move's time went (`storage_node.move.stall.StallReason`).
TOLD_REASONS = (
    "copying",
    "queued",
    "run_limit",
    "node_limit",
    "slow_disk",
    "growing_source",
    "stopped",
    "offline",
)
#: And those that only the controller can report (`workflows.model.absence.Absence`) ...
ABSENCES = ("dead", "cut_off", "fenced")
#: ... and unknown time: the node was unavailable for an unknown reason, or the run waited for a retry.
AWAY = "away"
#: What rows count.
COUNTED_REASONS = (*TOLD_REASONS, *ABSENCES)
REASONS = (*COUNTED_REASONS, AWAY)

_MOVE_KEY = {
    "namespace": _STRING,
    "workflow_id": _STRING,
    "chain": _STRING,
    "topic": _STRING,
    "partition": _INT,
}

#: Silver: one row per replica that a run was asked to move.
MOVES_ASKED = _table(
    **_MOVE_KEY, run_id=_STRING, node=_INT, directory=_STRING, throttle=_DOUBLE, deadline_seconds=_DOUBLE
)

#: Silver: one row per MoveRow found in a result, in failure details or in a heartbeat, and when it was told.
MOVE_FACTS = _table(
    **_MOVE_KEY,
    run_id=_STRING,
    step=_STRING,
    told_by=_LONG,
    began=_TIME,
    told_at=_TIME,
    attempt=_INT,
    outcome=_STRING,
    source=_STRING,
    directory=_STRING,
    error=_STRING,
    message=_STRING,
    claim=_LONG,
    bytes_total=_LONG,
    bytes_copied=_LONG,
    bytes_resumed=_LONG,
    seconds_queued=_DOUBLE,
    seconds_copying=_DOUBLE,
    seconds_throttled=_DOUBLE,
    seconds_stalled=_DOUBLE,
    seconds_locked=_DOUBLE,
    attempts=_INT,
    bytes_written=_LONG,
    stall=_STRING,
    stall_message=_STRING,
    **{f"spent_{reason}": _DOUBLE for reason in COUNTED_REASONS},
)

#: Silver: one row per replica per phase. `measured` is false where only the length is known and not the place.
MOVE_PHASES = _table(
    **_MOVE_KEY, run_id=_STRING, phase=_STRING, began=_TIME, ended=_TIME, seconds=_DOUBLE, measured=_BOOL, open=_BOOL
)

#: Gold: one row per replica's move.
MOVE_REPORT = _table(
    id=_STRING,
    namespace=_STRING,
    workflow_id=_STRING,
    chain=_STRING,
    replica=_STRING,
    topic=_STRING,
    partition=_INT,
    node=_INT,
    source=_STRING,
    directory=_STRING,
    outcome=_STRING,
    reason=_STRING,
    message=_STRING,
    phase=_STRING,
    started=_TIME,
    finished=_TIME,
    duration_seconds=_DOUBLE,
    open=_BOOL,
    bytes_total=_LONG,
    bytes_copied=_LONG,
    bytes_resumed=_LONG,
    bytes_written=_LONG,
    mean_rate=_DOUBLE,
    throttle=_DOUBLE,
    attempts=_INT,
    seconds_queued=_DOUBLE,
    seconds_copying=_DOUBLE,
    seconds_throttled=_DOUBLE,
    seconds_stalled=_DOUBLE,
    seconds_locked=_DOUBLE,
    seconds_delete_wait=_DOUBLE,
    spent=T.MapType(_STRING, _DOUBLE),
    stall=_STRING,
    stall_message=_STRING,
    deadline_seconds=_DOUBLE,
    deadline=_TIME,
    met_sla=_STRING,
    as_of=_TIME,
)

#: Gold: attainment over all moves and per node. `met + missed` is what counts; the rest is left out by rule.
SLA_SUMMARY = _table(
    scope=_STRING,
    value=_STRING,
    moves=_LONG,
    moved=_LONG,
    failed=_LONG,
    cancelled=_LONG,
    open=_LONG,
    asked=_LONG,
    met=_LONG,
    missed=_LONG,
    not_due=_LONG,
    excluded=_LONG,
    attainment=_DOUBLE,
    low=_DOUBLE,
    high=_DOUBLE,
    bytes_copied=_LONG,
    p50_seconds=_DOUBLE,
    p95_seconds=_DOUBLE,
    max_seconds=_DOUBLE,
    mean_rate=_DOUBLE,
    as_of=_TIME,
)

#: Gold: one row per failure of a log directory. `seconds` is from noticed to recorded in the metadata.
DIRECTORY_FAILURES = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    chain=_STRING,
    node=_INT,
    directory=_STRING,
    directory_id=_STRING,
    reason=_STRING,
    noticed=_TIME,
    recorded=_TIME,
    seconds=_DOUBLE,
    outcome=_STRING,
    replicas=T.ArrayType(_STRING),
    moves=T.ArrayType(_STRING),
    as_of=_TIME,
)

#: Gold: one row per replica that its node has reported offline in a directory that is online: the last such report.
#: `back` is when the node reported it online again, or registered without naming it; null while it is offline.
REPLICA_FAILURES = _table(
    namespace=_STRING,
    workflow_id=_STRING,
    node=_INT,
    topic=_STRING,
    partition=_INT,
    file=_STRING,
    reason=_STRING,
    reported=_TIME,
    back=_TIME,
    as_of=_TIME,
)

# Status of a run and state of an activity.
COMPLETED, FAILED, CANCELLED, TERMINATED, TIMED_OUT, CONTINUED, OPEN = (
    "completed",
    "failed",
    "cancelled",
    "terminated",
    "timed out",
    "continued as new",
    "open",
)

# Outcome of a move, beside the last five of the above.
MOVED, IN_PLACE, SUPERSEDED = "moved", "in place", "superseded"

# Phases of a move, in the order in which a report shows them.
QUEUED, PREPARING, COPYING, THROTTLED, STALLED, WAITING, PAUSED, SWAP, DELETE_WAIT, UNDOING = (
    "queued",
    "preparing",
    "copying",
    "throttled",
    "stalled",
    "waiting",
    "paused",
    "swap",
    "delete-wait",
    "undoing",
)
PHASES = (QUEUED, PREPARING, COPYING, THROTTLED, STALLED, WAITING, PAUSED, SWAP, DELETE_WAIT, UNDOING)

# Whether a move met its SLA.
YES, NO, NOT_ASKED, NOT_DUE, EXCLUDED = "yes", "no", "not asked", "not due", "excluded"
