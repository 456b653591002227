"""The server's run of `Cluster`, and whether the server's database was restored from a backup."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from temporalio.client import Client

from activities.temporal.describing import describe_run
from workflows.model import names


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run of `Cluster`: the first of its chain, its own id, its events, and whether an operator has paused it."""

    first: str
    run: str
    length: int
    paused: bool = False

    def replaces(self, before: ClusterRun) -> bool:
        """Return whether this run may lack state of the one before.

        True for another chain, for a history that became shorter (the database was restored from a backup), and for any
        other run of the chain, since a later one cannot be distinguished from an earlier one.
        """
        return (self.first, self.run) != (before.first, before.run) or self.length < before.length


async def current(client: Client, cluster: str) -> ClusterRun | None:
    """Return the open `Cluster`, None if there is none; raises RPCError if the server does not respond."""
    found = await describe_run(client, names.cluster_id(cluster))
    if found is None or found.ended is not None:
        return None
    return ClusterRun(found.first, found.run_id, found.length, found.paused)


def paused_sentence(cluster: str, run: ClusterRun | None) -> str:
    """Return the sentence for operators about a paused `Cluster`; "" for one that is not paused."""
    if run is None or not run.paused:
        return ""
    workflow_id = names.cluster_id(cluster)
    return (
        f"the run {workflow_id} of the controller is paused: changes of the metadata wait, and no leader is elected; "
        f"resume it with: temporal workflow unpause --workflow-id {shlex.quote(workflow_id)}"
    )
