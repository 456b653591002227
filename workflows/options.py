"""Every timeout, retry policy and interval of the workflows, with the reason for its value.

step_specs.py assigns them to steps; the queues' names are in model/names.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio.common import Priority, RetryPolicy

from storage_node.model.error_types import FINAL, ErrorType
from workflows.model.controller.renewal import Limits

# --- a move

#: Steps are retried for ever: a node may be down for a night. Only errors that no retry can mend end a step.
MOVE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),  # A restarted node fails its dead attempts itself: retry at once.
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=0,
    non_retryable_error_types=list(FINAL),
)
#: A copy's dead attempt ends the step: the run requests the copy again, and knows that it waits for its node.
COPY_RETRY = replace(MOVE_RETRY, non_retryable_error_types=[*FINAL, "TemporalTimeout:Heartbeat"])
#: The number of dead attempts that end a step; later ones are only retried, so that a node that dies repeatedly does
#: not fill the run's history.
DEAD_ATTEMPTS_REPORTED = 50
#: create_move, swap, cancel_move, delete_replica: a few renames and flushes per replica. After that a slow disk gets a
#: new attempt.
SHORT_STEP_TIMEOUT = timedelta(seconds=60)
#: If no worker picks up a step for so long, the run requests from the controller whether the node exists at all.
PICK_UP_TIMEOUT = timedelta(seconds=10)
#: The same if the node accepted the move itself, and so exists: a step may wait so long behind a thousand others, and
#: if each of their runs requested the reason, the controller would respond to no other request.
ACCEPTED_PICK_UP_TIMEOUT = timedelta(seconds=30)
#: A copy has no limit of its own, nor has its wait for a slot: the lease shows whether the node is alive.
COPY_TIMEOUT = timedelta(days=365)
#: A dead node's attempt ends after this, unless the node fails it itself at its next start.
COPY_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
#: A run that misses its node requests the reason from the controller after each of these: once the copy's attempt has
#: ended, a dead node's lease has ended as well, and it was probed (PROBE_SECONDS). The controller may learn it later.
REQUEST_REASON_AFTER = (timedelta(seconds=1), timedelta(seconds=15), timedelta(minutes=1))
#: How long a run waits for the controller's response whether it knows a node.
LOCATE_TIMEOUT = timedelta(seconds=10)

# --- a lease

#: A lease that is not renewed for so long ends, and the controller probes the node (PROBE_SECONDS) before it fences it:
#: a killed node refuses the connection at once, only a frozen one takes both. New leaders are promised within 8 s.
LEASE_HEARTBEAT_TIMEOUT = timedelta(seconds=3)
#: A new lease that the node does not pick up for so long ends as well. Its pollers need a few seconds after an outage.
LEASE_PICK_UP_TIMEOUT = timedelta(seconds=3)
#: One attempt holds the lease at most so long; then the next one continues.
LEASE_ATTEMPT_TIMEOUT = timedelta(days=1)
#: Retries leave no events, so that they may be frequent. A lost heartbeat is not retried: the server would give the
#: next attempts to polls that a frozen node has left open, one after the other.
LEASE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=1.0,
    maximum_attempts=0,
    non_retryable_error_types=[ErrorType.WRONG_INCARNATION, "TemporalTimeout:Heartbeat"],
)

# --- the controller

#: A workflow task that its worker picked up and did not complete (it was killed, or the database was restored from a
#: backup) goes to another worker after this. Updates wait so long: a killed controller serves this long after its start
#: at the latest, and 10 s are promised. A worker that needs longer for a replay does not catch up: the server rejects
#: its result, and the next task begins with another replay. From the fourth attempt on the server adds 5, 10, 20, ...
#: seconds.
CLUSTER_TASK_TIMEOUT = timedelta(seconds=7)
#: The controller's tasks come before those of the runs that use the same workers.
CLUSTER_PRIORITY, RUN_PRIORITY = Priority(priority_key=1), Priority(priority_key=3)
#: Workflow tasks that a worker runs at once. The interpreter executes one at a time: a task that waits in the worker
#: uses up its timeout, one that waits at the server does not.
WORKFLOW_TASKS_AT_ONCE = 8
#: A node that is alive responds in milliseconds; one whose machine is overloaded, or whose disks stall, may need more.
PROBE_SECONDS = 3.0
PROBE_TIMEOUT = timedelta(seconds=5)
PROBE_PICK_UP_TIMEOUT = timedelta(seconds=10)
#: Only a failed worker causes another attempt: if the node does not respond, the activity returns the reason.
PROBE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=3)
#: A node that responds to its probe gets its lease back after this.
LEASE_AGAIN_AFTER = timedelta(seconds=1)

#: How many partitions the pushes of one workflow task may hold, and how long the next ones wait: the server accepts
#: 4 MB with a task, and whole images of a large cluster have nearly as much together.
PUSH_TOGETHER = 20_000
PUSH_APART = timedelta(milliseconds=20)
PUSH_TIMEOUT = timedelta(seconds=30)
PUSH_PICK_UP_TIMEOUT = timedelta(seconds=3)
#: One attempt: the next push brings what has changed meanwhile as well.
PUSH_RETRY = RetryPolicy(maximum_attempts=1)
#: After a failed push, the next one comes after 0.5, 1, 2, ... seconds, at most this many.
PUSH_BACK_OFF_MAX = 15.0
#: Changes that only the requesting node needs soon wait so long, so that others share their push.
QUIET_DELAY = timedelta(seconds=1)
#: While collecting, the controller requests the awaited images again after this.
COLLECT_AGAIN_AFTER = timedelta(seconds=5)

#: From so many events, bytes or changes on the run continues as new in the first quiet second, at the higher limits at
#: once. A run keeps the limits that it began with, since its commands depend on them; changed limits apply to the runs
#: that follow. A worker that takes a run over must replay it within CLUSTER_TASK_TIMEOUT, also on a tenth of a core:
#: 1,500 events take half a second of processor time.
CONTINUE_AT = Limits(events=(500, 1_500), bytes=(1_000_000, 4_000_000), changes=(2_000, 6_000))
QUIET_FOR = timedelta(seconds=1)
#: At the higher limits it does so on a timer of this length, so that no update completes in the same task.
CONTINUE_PAUSE = timedelta(milliseconds=50)
#: Before that, a run waits so long for the server to acknowledge child starts, signals and cancels, which takes
#: milliseconds. The run that follows sends the unacknowledged ones again.
OUTBOUND_TIMEOUT = timedelta(seconds=20)
#: A run carries at most so many of these over; if more wait, it sends them first.
CARRIED_OUTBOUND = 500

# --- a failed directory

#: How long a run waits for the controller's response that it has recorded a failure, before it reports it again.
RECORD_AGAIN_AFTER = timedelta(seconds=5)
#: The same after several attempts: the controller is unavailable, or collects the nodes' images.
RECORD_AGAIN_AFTER_MAX = timedelta(minutes=1)

# --- a reassignment

#: Steps of a reassignment are retried for ever (but see DELETION_PATIENCE): a node may be down for a night. A dead
#: node's attempt ends after the heartbeat timeout, unless the node fails it itself at its next start.
FOLLOW_HEARTBEAT_TIMEOUT = timedelta(seconds=15)
#: Catching up has no limit of its own.
FOLLOW_TIMEOUT = timedelta(days=365)
#: Before a run requests a reassignment, it sends the preferred log directories to the new nodes. It waits for a node no
#: longer than this: a replica that the node creates in another directory is moved at the end.
PREFER_TIMEOUT = timedelta(seconds=10)
#: Nodes and the controller report every change to a run. In case a report was lost, the run requests the state after
#: this, then after twice as long each time.
LOOK_AGAIN_AFTER = timedelta(minutes=1)
LOOK_AGAIN_AFTER_MAX = timedelta(hours=1)
#: A run waits so long for a removed node to pick up the step that awaits its deletions, and no longer: the node deletes
#: its data by itself, after its next start at the latest.
DELETION_PATIENCE = timedelta(minutes=10)
#: A cancel that the controller rejects (it would need an unclean election) is requested again after this, then after
#: twice as long each time, up to LOOK_AGAIN_AFTER_MAX.
CANCEL_AGAIN_AFTER = timedelta(seconds=15)
#: How long a run waits for the controller's response before it repeats a request; doubles up to the maximum.
REQUEST_AGAIN_AFTER = timedelta(seconds=5)
REQUEST_AGAIN_AFTER_MAX = timedelta(minutes=1)

# --- a plan

#: Steps of a plan are retried for ever: a cluster may be down for a night.
PLAN_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=20),
    maximum_attempts=0,
    non_retryable_error_types=[ErrorType.INVALID_PLAN, ErrorType.PLAN_NOT_STORED],
)
#: A read of a large cluster takes seconds; a broker that does not respond costs the client's timeout.
PLAN_STEP_TIMEOUT = timedelta(minutes=5)
#: A lane's moves are followed for at most a quarter of an hour by one activity, which then returns what it saw.
PLAN_FOLLOW_TIMEOUT = timedelta(minutes=20)
#: A dead worker's attempt ends after this, and another worker adopts the moves.
PLAN_HEARTBEAT_TIMEOUT = timedelta(seconds=12)
#: A plan with open lanes reads the bytes that they have copied so often, for Temporal's UI and `progress`.
PLAN_READ_AGAIN = timedelta(seconds=30)
#: A lane repeats a cancel that has not taken effect after this; doubles, as below.
LANE_CANCEL_AGAIN = timedelta(seconds=5)
#: A plan that is being cancelled repeats its signals to lanes that have not ended: at first so often, then ever more
#: rarely, up to this.
PLAN_CANCEL_AGAIN_MAX = timedelta(minutes=30)
#: What is left of a plan is compared with the whole cluster so often: one DescribeLogDirs for each broker.
PLAN_RECHECK = timedelta(minutes=10)
#: A plan that may move has stalled after so long without a byte copied or a move ended.
PLAN_STALLED_AFTER = timedelta(minutes=10)
#: Alerts are repeated for so long, so often: later, an operator has seen the plan without it.
ALERT_PATIENCE = timedelta(minutes=15)
ALERT_TIMEOUT = timedelta(seconds=30)
ALERT_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(minutes=1)
)
#: The keeper of throttles compares them with the cluster so often, and releases those of runs that have ended.
KEEPER_READ_AGAIN = timedelta(seconds=30)
#: Until the keeper first reads whether what it has restored is there; doubled until `KEEPER_READ_AGAIN`.
KEEPER_CONFIRM = timedelta(milliseconds=250)
#: A plan or a keeper continues as new beyond so many events: far below the server's limit, and quick to replay.
PLAN_EVENTS = 1_000
#: A directory that is being emptied is planned at most so often: replicas that land there meanwhile, and moves that
#: failed, are left to the next round.
EVACUATION_ROUNDS = 10
#: The pause between two rounds of a directory that is not empty yet.
EVACUATION_PAUSE = timedelta(seconds=10)
#: How often a plan's text is sent to workers that lack it: a text goes to any worker of the queue, so that several
#: workers without it need several tries each.
PLAN_SENDS = 20

# --- history

EXPORT_TIMEOUT = timedelta(hours=6)
EXPORT_HEARTBEAT_TIMEOUT = timedelta(seconds=60)
EXPORT_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=20,
    non_retryable_error_types=[ErrorType.INVALID_PLAN],
)
