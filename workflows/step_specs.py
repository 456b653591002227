"""The steps of the workflows: a row for each activity with its queue, limits, retries and compensation.

The values and their reasons are in `options`. Workflows start activities by `start` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from workflows import options
from workflows.model import calls, names
from workflows.model.plans.running import calls as plans


class Queue(Enum):
    """The task queues of a cluster. Long activities of a node are on its queue of moves, so that the other one always
    has a slot for the node's lease and images.
    """

    CLUSTER = "cluster"
    NODE = "node"
    MOVES = "moves"
    HISTORY = "history"
    PLANS = "plans"

    def of(self, cluster: str, node: int | None) -> str:
        """Return the queue's name. Raises ValueError for a node's queue without a node."""
        if self is Queue.CLUSTER:
            return names.cluster_queue(cluster)
        if self is Queue.HISTORY:
            return names.history_queue(cluster)
        if self is Queue.PLANS:
            return names.plans_queue(cluster)
        if node is None:
            raise ValueError(f"a queue of kind {self.value!r} needs a node")
        return names.moves_queue(cluster, node) if self is Queue.MOVES else names.node_queue(cluster, node)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """How an activity is started.

    `pick_up` is how long it may wait for a worker (None: for ever), `accepted_pick_up` the same if its node accepted
    the work itself, and so exists. `brief` is how long a caller that can do without the step waits for a worker; in all
    it waits twice as long. `retry_again` replaces `retry` in a run whose step has died many times. `compensation`
    is the activity that undoes what the step may have left. WAIT_CANCELLATION_COMPLETED is for steps that must not be
    undone while they write.
    """

    queue: Queue
    attempt: timedelta
    retry: RetryPolicy
    pick_up: timedelta | None = None
    accepted_pick_up: timedelta | None = None
    heartbeat: timedelta | None = None
    brief: timedelta | None = None
    in_all: timedelta | None = None
    retry_again: RetryPolicy | None = None
    cancellation: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL
    compensation: str | None = None

    def patient(self) -> StepSpec:
        """Return the step of a run that waits for its node for ever."""
        return replace(self, pick_up=None)

    def accepted(self) -> StepSpec:
        """Return the step of a run whose node has accepted the work itself."""
        return replace(self, pick_up=self.accepted_pick_up or self.pick_up)

    def briefly(self) -> StepSpec:
        """Return the step of a caller that can do without it. Raises ValueError for a step that has no such limit."""
        if self.brief is None:
            raise ValueError("the step has no brief limit: no caller can do without it")
        return replace(self, pick_up=self.brief, in_all=2 * self.brief)

    def retried_in_silence(self) -> StepSpec:
        """Return the step whose attempts die without an event in the run's history."""
        return replace(self, retry=self.retry_again or self.retry)


#: A few renames and flushes per replica.
_SHORT = StepSpec(
    Queue.NODE,
    options.SHORT_STEP_TIMEOUT,
    options.MOVE_RETRY,
    pick_up=options.PICK_UP_TIMEOUT,
    accepted_pick_up=options.ACCEPTED_PICK_UP_TIMEOUT,
    cancellation=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
#: Observes a node until an event has happened there; changes nothing.
_WATCH = StepSpec(Queue.MOVES, options.FOLLOW_TIMEOUT, options.MOVE_RETRY, heartbeat=options.FOLLOW_HEARTBEAT_TIMEOUT)

#: Reads the cluster of a plan through its admin API.
_PLAN = StepSpec(Queue.PLANS, options.PLAN_STEP_TIMEOUT, options.PLAN_RETRY, heartbeat=options.PLAN_HEARTBEAT_TIMEOUT)

SPECS: dict[str, StepSpec] = {
    calls.CREATE_MOVE: replace(_SHORT, compensation=calls.CANCEL_MOVE),
    calls.COPY: replace(
        _SHORT,
        queue=Queue.MOVES,
        attempt=options.COPY_TIMEOUT,
        pick_up=None,
        accepted_pick_up=None,
        heartbeat=options.COPY_HEARTBEAT_TIMEOUT,
        retry=options.COPY_RETRY,
        retry_again=options.MOVE_RETRY,
        compensation=calls.CANCEL_MOVE,
    ),
    calls.SWAP: _SHORT,
    calls.CANCEL_MOVE: _SHORT,
    calls.DELETE_REPLICA: _SHORT,
    calls.PLACE_REPLICAS: StepSpec(
        Queue.NODE, options.SHORT_STEP_TIMEOUT, options.MOVE_RETRY, brief=options.PREFER_TIMEOUT
    ),
    calls.CATCH_UP: _WATCH,
    calls.AWAIT_DELETION: replace(_WATCH, pick_up=options.DELETION_PATIENCE),
    calls.AWAIT_MOVES: _WATCH,
    calls.APPLY_IMAGE: StepSpec(
        Queue.NODE, options.PUSH_TIMEOUT, options.PUSH_RETRY, pick_up=options.PUSH_PICK_UP_TIMEOUT
    ),
    calls.HOLD_LEASE: StepSpec(
        Queue.NODE,
        options.LEASE_ATTEMPT_TIMEOUT,
        options.LEASE_RETRY,
        pick_up=options.LEASE_PICK_UP_TIMEOUT,
        heartbeat=options.LEASE_HEARTBEAT_TIMEOUT,
    ),
    calls.PROBE_NODE: StepSpec(
        Queue.CLUSTER, options.PROBE_TIMEOUT, options.PROBE_RETRY, pick_up=options.PROBE_PICK_UP_TIMEOUT
    ),
    calls.EXPORT_HISTORIES: StepSpec(
        Queue.HISTORY, options.EXPORT_TIMEOUT, options.EXPORT_RETRY, heartbeat=options.EXPORT_HEARTBEAT_TIMEOUT
    ),
    plans.KEEP_PLAN: _PLAN,
    plans.CHECK_PLAN: _PLAN,
    plans.CHOOSE_LANES: _PLAN,
    plans.VERIFY_PLAN: _PLAN,
    plans.REQUEST_MOVES: replace(_PLAN, cancellation=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED),
    # It requests moves again, too: a cancel must come after what it has requested.
    plans.FOLLOW_MOVES: replace(
        _PLAN,
        attempt=options.PLAN_FOLLOW_TIMEOUT,
        cancellation=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    ),
    plans.SEND_ALERT: replace(
        _PLAN, attempt=options.ALERT_TIMEOUT, retry=options.ALERT_RETRY, in_all=options.ALERT_PATIENCE
    ),
    plans.RELEASE_SLOTS: _PLAN,
    plans.READ_CORDON: _PLAN,
    plans.SET_CORDON: _PLAN,
    plans.PLAN_DRAIN: _PLAN,
    plans.VERIFY_DRAINED: _PLAN,
    plans.HOLD_THROTTLES: _PLAN,
    plans.RELEASE_THROTTLES: _PLAN,
    plans.READ_THROTTLES: _PLAN,
    plans.WRITE_THROTTLES: _PLAN,
    plans.CANCEL_MOVES: _PLAN,
}


def start(
    activity: str,
    call: Any,
    *,
    spec: StepSpec | None = None,
    cluster: str | None = None,
    node: int | None = None,
    summary: str | None = None,
) -> ActivityHandle[Any]:
    """Start an activity by its row of SPECS, or by a variant of it; await the handle for what the activity returns.

    `cluster` is the run's own one by default; `node` is needed for a node's queue.
    """
    spec = spec or SPECS[activity]
    return workflow.start_activity(
        activity,
        call,
        task_queue=spec.queue.of(workflow.info().task_queue if cluster is None else cluster, node),
        schedule_to_start_timeout=spec.pick_up,
        schedule_to_close_timeout=spec.in_all,
        start_to_close_timeout=spec.attempt,
        heartbeat_timeout=spec.heartbeat,
        retry_policy=spec.retry,
        cancellation_type=spec.cancellation,
        summary=summary,
    )
