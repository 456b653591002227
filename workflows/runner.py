"""The runner of workflow code: the SDK's own, without its sandbox.

The sandbox restricts only what it imports again for every run. Workflow code is imported once for all runs, since an
import per run would cost several times a run's work, and values would have a second class identity: the sandbox would
guard nothing. A test searches the source for what it would guard against (tests/workflows/test_determinism.py). This
module is not workflow code: it configures workers.

Three things that it uses of the SDK are not public; tests/workflows/test_sdk_hooks.py fails, and names the place, when
another version has changed them. Flag 2, all jobs of a task as one batch: the SDK knows it and will make it its default
(sdk-python issues 606, and 673, the failure without it); every history carries it. The bridge's eviction of a run after
a direct query, whose history may be ahead of the tasks (sdk-go issue 755, sdk-java issue 643, features issue 573). The
deadlock detector's timeout; `debug_mode` turns the detector off, but runs activations on the event loop's thread too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._workflow_instance import _WorkflowLogicFlag
from temporalio.workflow import Info

from workflows.handlers import ReadableConverter

#: The SDK's id of a query that arrives without a workflow task.
_DIRECT = "legacy_query"

#: Seconds of wall-clock time that an activation may take until the SDK's deadlock detector interrupts it and fails its
#: task. An overloaded machine exceeds the SDK's own 2 s without a deadlock: an interrupted run is replayed, which takes
#: longer still, and may never leave the cache. Workflow code here awaits nothing outside of its run.
DEADLOCK = 60


class Runner(UnsandboxedWorkflowRunner):
    """A runner that evicts a run after a query that arrives without a workflow task.

    For such a query the SDK applies all events of the history to the run, also those that no task has delivered yet: a
    timer that fired, the end of an activity. The run reacts to them, and handles an update in the next task after them;
    a replay, which gets both at once, handles the update first, and fails for good. A run that is evicted before its
    next task gets the same there as a replay.

    Undecodable payloads go to the run's strict parsers, see `handlers.ReadableConverter`.
    """

    worker: Worker | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        make = det.payload_converter_factory
        details = replace(det, payload_converter_factory=lambda: ReadableConverter(make()))
        return _Forgetful(super().create_instance(details), self)


class _Forgetful(WorkflowInstance):
    """The SDK's instance of a run, which requests its eviction when it responds to a direct query."""

    def __init__(self, instance: WorkflowInstance, runner: Runner) -> None:
        self._instance, self._runner = instance, runner

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See WorkflowInstance."""
        worker = self._runner.worker
        if worker is not None and any(job.query_workflow.query_id == _DIRECT for job in act.jobs):
            # Requested while the query still runs, so that no task comes in between.
            bridge = worker._bridge_worker
            if bridge is not None:
                bridge.request_workflow_eviction(act.run_id)
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        """See WorkflowInstance."""
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        """See WorkflowInstance."""
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """See WorkflowInstance."""
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """See WorkflowInstance."""
        return self._instance.get_thread_id()


def workflow_runner() -> Runner:
    """Return a runner for one worker or one replay of these workflows."""
    return Runner()


def deciding_as_replays(worker: Worker, runner: Runner) -> Worker:
    """Configure a worker to produce the commands that a replay would; for every worker of these workflows.

    A run is evicted after a direct query, see `Runner`, and all jobs of a workflow task are applied before workflow
    code runs.

    A worker that starts with an empty cache joins a task that led to no command with the update that it was given: the
    update would be handled before the end of an activity which, for the first worker, came earlier. The server would
    record the commands that follow in this other order, and no later replay would agree with them. The SDK has the
    remedy as a flag that each history carries, and has not made it the default yet; temporalio is pinned.

    An activation may take as long as an overloaded machine needs for it, see `DEADLOCK`.

    The SDK has no public API for any of these (tests/workflows/test_sdk_hooks.py fails when that changes).
    """
    runner.worker = worker
    if (decider := worker._workflow_worker) is not None:
        decider._deadlock_timeout_seconds = DEADLOCK
    worker._set_default_workflow_logic_flag(
        _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH, enabled=True
    )
    return worker
