"""Every timeout, retry policy and interval of the workflows, with the reason for its figure. Queues' names:
model/names.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio.common import Priority, RetryPolicy

from workflows import errors
from workflows.model.renewal import Limits

# --- a move

#: Steps are retried for ever: the node may be away for a night. Only types that no retry can mend end a step.
MOVE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),  # a restarted node fails its dead attempts itself: go on at once
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=0,
    non_retryable_error_types=list(errors.FINAL),
)
#: A copy's dead attempt ends the step: the run asks for the copy anew, and knows that it waits for its node.
COPY_RETRY = replace(MOVE_RETRY, non_retryable_error_types=[*errors.FINAL, "TemporalTimeout:Heartbeat"])
#: After so many in one run they are only retried, so that a node that dies again and again does not fill the history.
DEAD_ATTEMPTS_TOLD = 50
#: create_move, swap, cancel_move, delete_replica: a few renames and flushes per replica. A disk that needs longer gets
#: a new attempt.
SHORT_STEP_TIMEOUT = timedelta(seconds=60)
#: A step that nobody picks up for so long makes the run ask the controller whether the node exists at all.
PICK_UP_TIMEOUT = timedelta(seconds=10)
#: The same where the node accepted the move itself, and so exists: behind a thousand others a step may wait so long,
#: and if each of their runs requested the reason from the controller it would answer nobody else.
ACCEPTED_PICK_UP_TIMEOUT = timedelta(seconds=30)
#: A copy has no limit of its own; it queues for its slot without one either, the lease says whether the node lives.
COPY_TIMEOUT = timedelta(days=365)
#: A dead node's attempt ends after this, unless the node fails it itself at its next start.
COPY_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
#: A run that misses its node requests the reason from the controller after each of these: when the copy's attempt has
#: ended, a dead node's lease has ended as well, and it was probed (PROBE_SECONDS). A controller may know it only later.
ASK_WHY_AFTER = (timedelta(seconds=1), timedelta(seconds=15), timedelta(minutes=1))
#: How long a run waits for the controller to say whether it knows a node, before it asks again.
LOCATE_TIMEOUT = timedelta(seconds=10)

# --- a lease

#: A lease that is not renewed for so long ends, and the node itself is asked (PROBE_SECONDS) before it is fenced: who
#: asks a killed one is refused at once, only one that is frozen needs both. Leaders are to have changed within 8 s.
LEASE_HEARTBEAT_TIMEOUT = timedelta(seconds=3)
#: A new lease that nobody takes for so long ends as well. Pollers that slept through an outage need a few seconds.
LEASE_PICK_UP_TIMEOUT = timedelta(seconds=3)
#: One attempt may hold the lease so long; then the next one goes on.
LEASE_ATTEMPT_TIMEOUT = timedelta(days=1)
#: Retries leave no events, so that they may come fast. A lost heartbeat is not retried: the next attempt would go to a
#: poll that a frozen node has left open, and so on through all of them.
LEASE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=1.0,
    maximum_attempts=0,
    non_retryable_error_types=[errors.WRONG_INCARNATION, "TemporalTimeout:Heartbeat"],
)

# --- the controller

#: A step that its worker took and did not finish (it was killed, or the database went back) is given to another after
#: this; updates wait so long then, so a controller that was killed is back this long after its start at the latest,
#: and 10 s are promised. A worker that needs longer for a replay does not catch up: what it has done is refused, and
#: the next step begins with another replay. From the fourth attempt on the server adds 5, 10, 20, ... seconds.
CLUSTER_TASK_TIMEOUT = timedelta(seconds=7)
#: The controller's steps come before those of the runs that use its workers too.
CLUSTER_PRIORITY, RUN_PRIORITY = Priority(priority_key=1), Priority(priority_key=3)
#: Steps that a worker takes at once. The interpreter does one of them at a time: where many wait, each that is begun
#: uses up its timeout while others are done, but none that waits at the server does.
STEPS_AT_ONCE = 8
#: A node that is alive answers in milliseconds; one whose machine is overloaded, or whose disks stall, may need more.
PROBE_SECONDS = 3.0
PROBE_TIMEOUT = timedelta(seconds=5)
PROBE_PICK_UP_TIMEOUT = timedelta(seconds=10)
#: A probe has no second attempt on silence; the activity answers with a reason instead of failing.
PROBE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=3)
#: A node that answers its probe gets its lease back after this.
LEASE_AGAIN_AFTER = timedelta(seconds=1)

#: How many partitions the pushes of one task may hold, and how long the next ones wait then: the server accepts 4 MB
#: with a task, and whole images of a large cluster are near that together.
PUSH_TOGETHER = 20_000
PUSH_APART = timedelta(milliseconds=20)
PUSH_TIMEOUT = timedelta(seconds=30)
PUSH_PICK_UP_TIMEOUT = timedelta(seconds=3)
#: One attempt: the next push carries what is new meanwhile.
PUSH_RETRY = RetryPolicy(maximum_attempts=1)
#: After a failed push, the next one comes after 0.5, 1, 2, ... seconds, at most this many.
PUSH_BACK_OFF_MAX = 15.0
#: Changes that only their own node needs soon wait so long for others to share their push.
QUIET_DELAY = timedelta(seconds=1)
#: While collecting, the nodes that have not answered are asked again after this.
COLLECT_AGAIN_AFTER = timedelta(seconds=5)

#: Above so many events, bytes or changes the run continues as new in the first quiet second, at the higher figures at
#: once. They decide when a run does what, so a run keeps those that it began with: other figures apply to the runs that
#: follow. A worker that takes a run over must replay it within CLUSTER_TASK_TIMEOUT, also on a tenth of a core: 1,500
#: events take half a second of processor time.
CONTINUE_AT = Limits(events=(500, 1_500), bytes=(1_000_000, 4_000_000), changes=(2_000, 6_000))
QUIET_FOR = timedelta(seconds=1)
#: At the higher figure it happens on a timer of this length, so that no update is answered in the same task.
CONTINUE_PAUSE = timedelta(milliseconds=50)
#: Before that, a run waits so long for the server to acknowledge child starts, signals and cancels, which takes
#: milliseconds. The run that follows sends the others again.
OUTBOUND_TIMEOUT = timedelta(seconds=20)
#: A run carries at most so many of these; where more wait, it sends them first.
CARRIED_OUTBOUND = 500

# --- a failed directory

#: How long a run waits until the controller says that it has put a failure into the metadata, before it tells it again.
RECORD_AGAIN_AFTER = timedelta(seconds=5)
#: The same once it was told in vain several times: the controller is away, or collects the nodes' images.
RECORD_AGAIN_AFTER_MAX = timedelta(minutes=1)

# --- a reassignment

#: Steps of a reassignment are retried for ever (but see DELETION_PATIENCE): the node may be away for a night. A dead
#: node's attempt ends after the heartbeat timeout, unless the node fails it itself at its next start.
FOLLOW_HEARTBEAT_TIMEOUT = timedelta(seconds=15)
#: Catching up takes as long as it takes.
FOLLOW_TIMEOUT = timedelta(days=365)
#: Before the controller is asked for a reassignment, its new nodes are told of the directories asked for. One that does
#: not hear it in time is not waited for: what it puts elsewhere is moved at the end.
PREFER_TIMEOUT = timedelta(seconds=10)
#: A run hears of every change from its nodes or the controller. In case a word was lost it asks again after this, then
#: after twice as long each time.
LOOK_AGAIN_AFTER = timedelta(minutes=1)
LOOK_AGAIN_AFTER_MAX = timedelta(hours=1)
#: A node that was dropped, and does not take the step in which it says that its data is gone, is not waited for longer:
#: it deletes it by itself, when it is back at the latest.
DELETION_PATIENCE = timedelta(minutes=10)
#: A cancel that the controller refuses (it would need an unclean election) is asked for again after this, then after
#: twice as long each time, up to LOOK_AGAIN_AFTER_MAX.
CANCEL_AGAIN_AFTER = timedelta(seconds=15)
#: How long a run waits until the controller answers, before it asks again; doubles up to the second.
ASK_AGAIN_AFTER = timedelta(seconds=5)
ASK_AGAIN_AFTER_MAX = timedelta(minutes=1)

# --- history

EXPORT_TIMEOUT = timedelta(hours=6)
EXPORT_HEARTBEAT_TIMEOUT = timedelta(seconds=60)
EXPORT_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=20,
    non_retryable_error_types=[errors.INVALID_PLAN],
)
