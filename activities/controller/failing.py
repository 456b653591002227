"""Starts the run of a failed log directory, and retries until Temporal accepts it, however long it is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities.temporal.supervision import until_done
from storage_node.model.command_rows import failure_row
from storage_node.model.commands import DirectoryFailed, FailDirectory
from workflows.model import names

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0


class FailureStarter:
    """Starts DirectoryFailure runs, on the client's event loop."""

    def __init__(self, cluster: str, node: int, client: Callable[[], Awaitable[Client]]) -> None:
        self._cluster, self._node, self._client = cluster, node, client
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, failure: DirectoryFailed, accepted: Callable[[], None]) -> None:
        """Start the run in the background, and call `accepted` once the server has accepted it."""
        task = asyncio.get_running_loop().create_task(self._start(failure, accepted))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the run of a failed directory could not be started", exc_info=task.exception())

    async def close(self) -> None:
        """Cancel starts that were not accepted; the node has noted the failures, and reports them at its next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, failure: DirectoryFailed, accepted: Callable[[], None]) -> None:
        async def attempt() -> None:
            await self._start_once(await self._client(), failure)

        what = f"the failure of {failure.path} is not reported to Temporal yet"
        await until_done(what, attempt, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
        accepted()

    async def _start_once(self, client: Client, failure: DirectoryFailed) -> None:
        workflow_id = names.directory_failure_id(self._cluster, self._node, failure.directory_id, failure.noticed)
        try:
            await client.start_workflow(
                names.DIRECTORY_FAILURE,
                failure_row(FailDirectory(self._node, failure)),
                id=workflow_id,
                task_queue=names.cluster_queue(self._cluster),
                # The id names this one failure: a run with it, open or closed, reports it.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={"node": self._node, "directory": failure.path},
                static_summary=f"{failure.path} of node {self._node} is offline",
            )
        except WorkflowAlreadyStartedError:
            log.info("the run %s was started before", workflow_id)
