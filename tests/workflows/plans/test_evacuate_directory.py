"""How a run that empties a log directory ends when it is cancelled."""

from __future__ import annotations

from temporalio.api.enums.v1 import TimeoutType
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from tests.workflows.driven import draining


def test_cancelled_run_ends_as_cancelled_though_its_worker_is_dead() -> None:
    """A cancelled activity is not tried again: that of a dead worker ends by its heartbeat timeout."""
    run = draining()
    (step,) = (seq for kind, seq in run.open if kind == "schedule_activity")
    run.send(run.cancel())
    assert run.ended is None, "it waits for its step"
    job = WorkflowActivationJob()
    job.resolve_activity.seq = step
    failure = job.resolve_activity.result.failed.failure
    failure.activity_failure_info.activity_type.name = "plan_drain"
    failure.cause.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    run.send(job)
    assert run.ended is not None and run.ended.HasField("cancel_workflow_execution"), run.ended
