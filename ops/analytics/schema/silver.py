"""Silver: runs, activities, moves and what happened in them. Rows of open chains are as of the newest export."""

from __future__ import annotations

from pyspark.sql import types as T

from ops.analytics.schema.bronze import RUN
from ops.analytics.schema.columns import BOOL, DATE, DOUBLE, INT, LONG, STRING, TIME, Column, Table, columns
from ops.analytics.schema.words import COUNTED_REASONS

_INTS = T.ArrayType(INT)
_CHAIN = Column("chain", STRING, "the first run's id, of runs that continued as new or were reset")
_ID = Column(
    "id",
    STRING,
    "the move: workflow id, chain, topic-partition, and @node (@from-node if removed) between nodes and in a plan",
)
_OF_MOVE = (_ID, *RUN[:2], _CHAIN, *columns(STRING, topic="the topic"), *columns(INT, partition="the partition"))
_DAY = Column("day", DATE, "the day on which the chain's first run started")

RUNS = Table(
    "silver",
    "runs",
    "run of any workflow",
    ("namespace", "workflow_id", "run_id"),
    (
        *RUN,
        _CHAIN,
        *columns(
            STRING,
            workflow_type="the workflow's type",
            task_queue="the queue of its tasks",
            status="completed, failed, cancelled, terminated, timed out, continued as new or open",
        ),
        *columns(TIME, started="the first event", closed="the last event; null while it is open"),
        *columns(DOUBLE, duration_seconds="from start to close"),
        *columns(LONG, events="the number of its events"),
        *columns(TIME, cancel_requested="when a cancel was first requested"),
        *columns(
            STRING,
            input="the first parameter as JSON",
            result="the result, or the details of its failure, as JSON",
            failure_type="the type of the innermost named failure",
            failure_message="the innermost failure's message, or the reason of the terminate",
            continued_run_id="the run that continued as this one",
            parent_workflow_id="the parent's workflow id",
        ),
        *columns(TIME, last_time="the last event's time: of two histories of a run the later one counts"),
        *columns(LONG, sequence="the manifest of the export that has its events"),
        Column("day", DATE, "the day on which it started"),
    ),
)

ACTIVITIES = Table(
    "silver",
    "activities",
    "scheduled activity of any run",
    ("namespace", "workflow_id", "run_id", "scheduled_event_id"),
    (
        *RUN,
        *columns(LONG, scheduled_event_id="the event that scheduled it"),
        *columns(
            STRING,
            workflow_type="the type of its workflow",
            activity_id="its id in its run",
            activity_type="its name",
            task_queue="the queue of its tasks",
        ),
        *columns(INT, node="the node whose queue it is"),
        *columns(STRING, state="completed, failed, timed out, cancelled or open"),
        *columns(INT, attempt="the server's count of attempts; retries have no events"),
        *columns(
            TIME,
            scheduled="when it was scheduled",
            started="when its last attempt began; known only of a closed one",
            closed="when it closed",
        ),
        *columns(DOUBLE, duration_seconds="from schedule to close, all attempts included"),
        *columns(
            STRING,
            input="the first parameter as JSON",
            result="the result as JSON",
            failure_type="the type of the innermost named failure",
            failure_message="the innermost failure's message",
            details="the details of the failure, or the last heartbeat's, as JSON",
        ),
        *columns(TIME, heartbeat_at="the last heartbeat; known only of an open one"),
        Column("day", DATE, "the day on which it was scheduled"),
    ),
)

MOVES = Table(
    "silver",
    "moves",
    "replica that a run was requested to move or reported, whatever its outcome",
    ("id",),
    (
        *_OF_MOVE,
        *columns(
            STRING,
            workflow_type="the type of its run",
            kind="disk, node or both: whether its directory, its node or both were to change",
            replica="topic-partition; null for a parameter that names none",
        ),
        *columns(INT, node="the node that gets the replica", from_node="the node that gives it up"),
        *columns(
            STRING,
            source="the directory that the replica leaves",
            directory="the directory that it gets; of a move between nodes the one that the node chose",
            lane="the run that moves several replicas at once, or a lane of a plan; null for another run of one",
            plan="the workflow id of the plan that requested it",
            carries_out="the id of the move that this run of a node or the controller carries out, a plan's, or the "
            "reassignment's whose part between disks it is: that row counts the replica; null of every other row",
            parent="the workflow id of the run that started its run; null for the controller",
            requested_by="the client that requested a reassignment",
            outcome="moved, in_place, cancelled, superseded, failed, timed out, terminated, completed or open",
            reason="the type of the failure",
            message="one sentence about it",
            phase="the current phase of an open move",
        ),
        *columns(TIME, started="the start of the chain", finished="when it was in place or ended; null while open"),
        *columns(BOOL, open="whether it is open"),
        *columns(
            LONG,
            bytes_total="the size of the replica",
            bytes_copied="bytes in the copy, with those found on disk",
            bytes_resumed="of these, found valid on disk",
            bytes_written="written by the run's own copies",
        ),
        *columns(DOUBLE, mean_rate="bytes per second while copying", throttle="the last limit, bytes per second"),
        *columns(INT, attempts="attempts of its longest step"),
        *columns(
            DOUBLE,
            seconds_queued="waited for a copying thread, or for the node to create the replica",
            seconds_copying="copied, or caught up",
            seconds_throttled="held back by a limit",
            seconds_stalled="held back by a slow disk",
            seconds_locked="held the log for the swap",
            seconds_delete_delay="from the swap to the deletion of the old copy",
        ),
        Column("spent", T.MapType(STRING, DOUBLE), "seconds by reason"),
        *columns(STRING, stall="what holds an open move", stall_message="one sentence about it"),
        *columns(DOUBLE, asked_seconds="the SLA or the deadline that the run or its plan was given, from the start"),
        _DAY,
    ),
)

MOVE_PHASES = Table(
    "silver",
    "move_phases",
    "interval of a move in one phase",
    ("id", "place"),
    (
        *_OF_MOVE,
        *columns(INT, place="the interval's number in its move, from 1"),
        *columns(STRING, run_id="the run", phase="the phase"),
        *columns(TIME, began="its begin", ended="its end; of the current one the newest export's time"),
        *columns(DOUBLE, seconds="its length"),
        *columns(
            BOOL,
            measured="false if only the length is known, not the position",
            open="whether it is the current one",
        ),
        _DAY,
    ),
)

MOVE_STEPS = Table(
    "silver",
    "move_steps",
    "result of a step for one replica of a move between directories",
    ("id", "run_id", "scheduled_event_id"),
    (
        *_OF_MOVE,
        *columns(STRING, run_id="the run"),
        *columns(LONG, scheduled_event_id="the event that scheduled the step"),
        *columns(
            STRING,
            phase="the replica's phase, whose step it was",
            event="the outcome, in the words of the workflow's transition table",
            next_phase="the phase of the replica's next step; null after the last one",
        ),
        *columns(TIME, ended="when the step closed"),
        Column("day", DATE, "the day on which the step closed"),
    ),
)

THROTTLE_SPANS = Table(
    "silver",
    "throttle_spans",
    "limit that a run held, from its begin to its end",
    ("namespace", "workflow_id", "chain", "scope", "subject", "config", "set_by"),
    (
        *RUN[:2],
        _CHAIN,
        *columns(
            STRING,
            run_id="the run",
            workflow_type="the type of its workflow",
            scope="run, node or topic: what it limits",
            subject="the run's node, the node's id, or the topic",
            config="the name of Kafka's config, or throttle for a run's own limit",
        ),
        *columns(LONG, set_by="the event that requested it"),
        *columns(DOUBLE, rate="bytes per second; null for no limit, and for a list of replicas"),
        *columns(TIME, began="when it was requested", ended="when it was released or replaced; null while it holds"),
        _DAY,
    ),
)

PLANS = Table(
    "silver",
    "plans",
    "plan that was submitted",
    ("namespace", "workflow_id", "chain"),
    (
        *RUN[:2],
        _CHAIN,
        *columns(
            STRING,
            cluster="the Kafka cluster's id",
            parent="the workflow id of the run that started it, such as the one that empties a directory",
            outcome="done, failed (moves missed their targets), cancelled, rolled_back, terminated, timed out or open",
            phase="the current phase of an open plan",
            reason="the type of the failure, such as PlanRefused",
            message="one sentence about it",
            approval="none, required or two_persons",
        ),
        *columns(BOOL, open="whether it is open"),
        *columns(
            TIME,
            started="when it was submitted",
            finished="when it ended; null while it is open",
            deadline="when it should have ended; null without a deadline",
        ),
        *columns(DOUBLE, seconds="from one to the other"),
        *columns(
            LONG,
            moves="moves in the plan, in_place ones left out; null before it was checked",
            lanes="lanes in the plan",
            in_place="moves that were not necessary",
            bytes_total="bytes to copy, as the check found them",
            bytes_copied="bytes of the moves that reached their targets; null of a plan without a result",
        ),
        *columns(
            DOUBLE,
            seconds_low="the shortest time that the check expected",
            seconds_high="the longest",
            throttle_between_brokers="bytes per second of each broker, as last chosen; null for no limit",
            throttle_between_directories="the same between the directories of a broker",
        ),
        *columns(BOOL, verified="whether the cluster was as planned at the plan's end; null if it was not compared"),
        *columns(LONG, differences="partitions that differed"),
        Column("nodes", _INTS, "the brokers that the plan changes"),
        Column("topics", T.ArrayType(STRING), "the topics, as far as a search attribute holds them"),
        _DAY,
    ),
)

DIRECTORIES = Table(
    "silver",
    "directories",
    "failure of a log directory",
    ("namespace", "workflow_id", "chain"),
    (
        *RUN[:2],
        _CHAIN,
        *columns(INT, node="the node"),
        *columns(STRING, directory="the path", directory_id="its id (KIP-858)", reason="why it went offline"),
        *columns(
            STRING,
            verdict="what is wrong with the disk: disk, file, full, read-only or hung; null of an older node",
            operation="the operation that failed, by which it counts as failed",
            file="the file or folder of that operation; empty where it is unknown",
            errno="the name of the system's error number; empty for none",
        ),
        Column("signs", T.ArrayType(STRING), "the signs of trouble before it: errors, slow, read-only or smart"),
        *columns(TIME, first_sign="when the first of these signs began"),
        *columns(TIME, noticed="when the node noticed it", recorded="when the metadata had it"),
        *columns(DOUBLE, seconds="from one to the other"),
        *columns(STRING, outcome="what the controller made of it, or the run's status"),
        Column("replicas", T.ArrayType(STRING), "the replicas that went offline with it"),
        Column("moves", T.ArrayType(STRING), "the moves that ended because of it"),
        _DAY,
    ),
)

REPLICA_REPORTS = Table(
    "silver",
    "replica_reports",
    "report of a node to the controller about one replica, or of its registration",
    ("namespace", "workflow_id", "run_id", "event_id", "place"),
    (
        *RUN,
        *columns(LONG, event_id="the accepted update"),
        *columns(INT, place="the report's number in it"),
        *columns(TIME, event_time="when the controller accepted it"),
        *columns(INT, node="the node"),
        *columns(STRING, topic="the topic; null for a registration"),
        *columns(INT, partition="the partition"),
        *columns(STRING, reason="why the replica is offline; empty if it is online", file="the file that failed"),
    ),
)

_MOVE_KEY = {"namespace": STRING, "workflow_id": STRING, "chain": STRING, "topic": STRING, "partition": INT}


def _struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


#: Not stored: one row per replica that a run was requested to move between directories.
MOVES_ASKED = _struct(
    **_MOVE_KEY, run_id=STRING, node=INT, directory=STRING, throttle=DOUBLE, asked_seconds=DOUBLE, replicas=LONG
)

#: Not stored: one row per MoveRow found in a result, in failure details or in a heartbeat, and when it was reported.
MOVE_FACTS = _struct(
    **_MOVE_KEY,
    run_id=STRING,
    step=STRING,
    reported_by=LONG,
    began=TIME,
    reported_at=TIME,
    attempt=INT,
    outcome=STRING,
    source=STRING,
    directory=STRING,
    error=STRING,
    message=STRING,
    claim=LONG,
    bytes_total=LONG,
    bytes_copied=LONG,
    bytes_resumed=LONG,
    seconds_queued=DOUBLE,
    seconds_copying=DOUBLE,
    seconds_throttled=DOUBLE,
    seconds_stalled=DOUBLE,
    seconds_locked=DOUBLE,
    attempts=INT,
    bytes_written=LONG,
    stall=STRING,
    stall_message=STRING,
    **{f"spent_{reason}": DOUBLE for reason in COUNTED_REASONS},
)
