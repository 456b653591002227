"""How workflow code is run: in the SDK's sandbox, this package passed through.

Importing the package anew for every run would cost several times a run's work, and values would have a second class
identity. What is passed through keeps no state: values, constants and pure functions.
"""

from __future__ import annotations

from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker._workflow_instance import _WorkflowLogicFlag
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions


def workflow_runner() -> WorkflowRunner:
    """The runner for every worker and every replay of these workflows."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("workflows"))


def in_one_batch(worker: Worker) -> Worker:
    """Let all that a workflow task brings be there before workflow code runs; for every worker of these workflows.

    A worker that begins afresh joins a task that led to nothing with the one it was given, if that is an update: the
    update would be handled before the end of an activity which, for the first worker, came earlier. What follows from
    the two, in another order, would be recorded, and no later replay would agree with it. The SDK knows the remedy as a
    flag that each history carries, and has not made it the default yet; temporalio is pinned.
    """
    worker._set_default_workflow_logic_flag(
        _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH, enabled=True
    )
    return worker
