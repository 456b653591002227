"""Which run of `Cluster` the server has, and whether the server went back in time."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from workflows.model import names


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run of `Cluster`: the first of its chain, its own id, its events."""

    first: str
    run: str
    length: int

    def replaces(self, before: ClusterRun) -> bool:
        """Whether it may know less than what was there before.

        True for another chain, for a history that became shorter (the database is that of yesterday), and for any other
        run of the chain, since a later one cannot be told from an earlier one.
        """
        return (self.first, self.run) != (before.first, before.run) or self.length < before.length


async def current(client: Client, cluster: str) -> ClusterRun | None:
    """The `Cluster` that runs now, None when there is none; raises RPCError when the server cannot be asked."""
    try:
        found = await client.get_workflow_handle(names.cluster_id(cluster)).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    if found.status != WorkflowExecutionStatus.RUNNING:
        return None
    first = found.raw_description.workflow_execution_info.first_run_id or found.run_id
    return ClusterRun(first, found.run_id, found.history_length)
