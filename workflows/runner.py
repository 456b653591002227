"""How workflow code is run: by the SDK's own runner, without its sandbox.

The sandbox restricts only what it imports again for every run. Workflow code is imported once for all runs, since
another import for each would cost several times a run's work, and values would have a second class identity: so the
sandbox guarded nothing here. A test searches the source for what it would guard against
(tests/workflows/test_determinism.py). This module is not workflow code: it makes workers.
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

#: What the SDK calls a query that came without a workflow task.
_DIRECT = "legacy_query"

#: Seconds of the clock that an activation may take until the SDK's deadlock detector interrupts it and fails its task.
#: The SDK's own 2 s pass without a deadlock where a machine has no processor left for this process: an interrupted run
#: is replayed, which takes longer still, and may never leave the cache. Nothing here awaits what is outside of its run.
DEADLOCK = 60


class Runner(UnsandboxedWorkflowRunner):
    """Evicts a run after a query that came without a workflow task.

    For such a query the SDK gives a run all events there are, also those that no task has brought yet: a timer that
    fired, the end of an activity. The run decides what follows from them, and if an update comes with the task after
    that, it is handled later than they are; a replay, which gets both at once, handles it first, and fails for good. A
    run that is evicted before its next task gets the same there as a replay.

    Undecodable payloads go to the run's strict parsers, see `handlers.ReadableConverter`.
    """

    worker: Worker | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        make = det.payload_converter_factory
        details = replace(det, payload_converter_factory=lambda: ReadableConverter(make()))
        return _Forgetful(super().create_instance(details), self)


class _Forgetful(WorkflowInstance):
    """A run as the SDK has made it, which requests its eviction when it responds to a direct query."""

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
    """The runner for a worker or a replay of these workflows, one for each."""
    return Runner()


def deciding_as_replays(worker: Worker, runner: Runner) -> Worker:
    """Make a worker decide what a replay would, however slowly; for every worker of these workflows, with this runner.

    What a direct query has led to is forgotten, see `Runner`, and all that a workflow task brings is there before
    workflow code runs.

    A worker that begins afresh joins a task that led to nothing with the one it was given, if that is an update: the
    update would be handled before the end of an activity which, for the first worker, came earlier. What follows from
    the two, in another order, would be recorded, and no later replay would agree with it. The SDK knows the remedy as a
    flag that each history carries, and has not made it the default yet; temporalio is pinned.

    An activation may take as long as a machine that is short of processors needs for it, see `DEADLOCK`.

    The SDK has no public API for any of these (tests/workflows/test_sdk_hooks.py fails when that changes).
    """
    runner.worker = worker
    if (decider := worker._workflow_worker) is not None:
        decider._deadlock_timeout_seconds = DEADLOCK
    worker._set_default_workflow_logic_flag(
        _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH, enabled=True
    )
    return worker
