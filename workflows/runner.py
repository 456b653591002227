"""How workflow code is run: in the SDK's sandbox, this package passed through.

Importing the package anew for every run would cost several times a run's work, and values would have a second class
identity. What is passed through keeps no state: values, constants and pure functions.
"""

from __future__ import annotations

from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions


def workflow_runner() -> WorkflowRunner:
    """The runner for every worker and every replay of these workflows."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("workflows"))
