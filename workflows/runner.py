"""How workflow code is run: in the SDK's sandbox, this package passed through.

Importing the package anew for every run would cost several times a run's work, and values would have a second class
identity. What is passed through keeps no state: values, constants and pure functions.
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._workflow_instance import _WorkflowLogicFlag
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

#: What the SDK calls a query that came without a workflow task.
_DIRECT = "legacy_query"


class Runner(SandboxedWorkflowRunner):
    """The sandbox, and a run is forgotten once a query was answered that came without a workflow task.

    For such a query the SDK gives a run all events there are, also those that no task has brought yet: a timer that
    fired, the end of an activity. The run decides what follows from them, and if an update comes with the task after
    that, it is handled later than they are; a replay, to whom both come at once, handles it first, and fails for good.
    Forgotten before its next task, a run gets there what a replay would get.
    """

    worker: Worker | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        instance = super().create_instance(det)
        activate = instance.activate

        def forgetting(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if self.worker is not None and any(job.query_workflow.query_id == _DIRECT for job in act.jobs):
                # Asked for while the query is still being answered, so that no task slips in between.
                bridge = self.worker._bridge_worker
                if bridge is not None:
                    bridge.request_workflow_eviction(act.run_id)
            return activate(act)

        instance.activate = forgetting  # type: ignore[method-assign]
        return instance


def workflow_runner() -> Runner:
    """The runner for a worker or a replay of these workflows, one for each."""
    return Runner(restrictions=SandboxRestrictions.default.with_passthrough_modules("workflows"))


def deciding_as_replays(worker: Worker, runner: Runner) -> Worker:
    """Make a worker decide what a replay would; for every worker of these workflows, made with this runner.

    What a direct query has led to is forgotten, see `Runner`, and all that a workflow task brings is there before
    workflow code runs.

    A worker that begins afresh joins a task that led to nothing with the one it was given, if that is an update: the
    update would be handled before the end of an activity which, for the first worker, came earlier. What follows from
    the two, in another order, would be recorded, and no later replay would agree with it. The SDK knows the remedy as a
    flag that each history carries, and has not made it the default yet; temporalio is pinned.
    """
    runner.worker = worker
    worker._set_default_workflow_logic_flag(
        _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH, enabled=True
    )
    return worker
