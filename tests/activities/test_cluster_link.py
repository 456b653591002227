"""When a node has to register again: whenever the controller may know less than before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities import cluster_run
from activities.cluster_run import ClusterRun, paused_sentence

BEFORE = ClusterRun("first", "run", 100)


@pytest.mark.parametrize(
    ("now", "again"),
    [
        (ClusterRun("first", "run", 100), False),
        (ClusterRun("first", "run", 140), False),
        (ClusterRun("first", "run", 99), True),  # the database went back
        (ClusterRun("first", "later", 3), True),  # continued as new, or went back: nobody can tell
        (ClusterRun("other", "other", 300), True),  # terminated and started again
    ],
)
def test_another_run_or_a_shorter_history(now: ClusterRun, again: bool) -> None:
    assert now.replaces(BEFORE) is again


def current(status: int, *, ended: bool = False, unknown: bool = False) -> ClusterRun | None:
    """What a server that describes the run so is taken to have."""

    async def describe(request: object, **more: object) -> DescribeWorkflowExecutionResponse:
        if unknown:
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
        found = DescribeWorkflowExecutionResponse()
        info = found.workflow_execution_info
        info.execution.run_id, info.first_run_id, info.history_length = "run", "first", 7
        info.status = cast(Any, status)
        if ended:
            info.close_time.FromSeconds(1)
        return found

    server = SimpleNamespace(
        namespace="default", workflow_service=SimpleNamespace(describe_workflow_execution=describe)
    )
    return asyncio.run(cluster_run.current(cast(Client, server), "c"))


def test_a_run_is_there_until_the_server_names_its_end() -> None:
    paused = current(RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)
    assert current(RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING) == ClusterRun("first", "run", 7)
    assert paused == ClusterRun("first", "run", 7, paused=True)
    assert current(77) == ClusterRun("first", "run", 7), "open in a way that only a later server has"
    assert current(RawStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED, ended=True) is None
    assert current(78, ended=True) is None
    assert current(0, unknown=True) is None
    assert paused_sentence("c", paused).endswith("temporal workflow unpause --workflow-id c")
    assert (
        paused_sentence("c", current(RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)) == paused_sentence("c", None) == ""
    )
