"""Starting the run of a failed log directory: tried until Temporal takes it, however long it is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities.supervision import until_done
from storage_node.ports import DirectoryFailed, EndedMove
from workflows.model import names

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0


class FailureStarter:
    """Lives on the client's event loop."""

    def __init__(self, cluster: str, node: int, client: Callable[[], Awaitable[Client]]) -> None:
        self._cluster, self._node, self._client = cluster, node, client
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """Start the run in the background, and call `taken` once the server has it."""
        task = asyncio.get_running_loop().create_task(self._start(failure, taken))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a failed directory could not be told to Temporal", exc_info=task.exception())

    async def close(self) -> None:
        """Give up what was not taken; the node has noted it, and tells it at its next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        async def attempt() -> None:
            await self._start_once(await self._client(), failure)

        what = f"the failure of {failure.path} is not reported to Temporal yet"
        await until_done(what, attempt, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
        taken()

    async def _start_once(self, client: Client, failure: DirectoryFailed) -> None:
        workflow_id = names.directory_failure_id(self._cluster, self._node, failure.directory_id, failure.noticed)
        try:
            await client.start_workflow(
                names.DIRECTORY_FAILURE,
                parameter(self._node, failure),
                id=workflow_id,
                task_queue=names.cluster_queue(self._cluster),
                # The id names this one failure: whoever started it, it is on its way or on record.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={"node": self._node, "directory": failure.path},
                static_summary=f"{failure.path} of node {self._node} is offline",
            )
        except WorkflowAlreadyStartedError:
            log.info("%s was told before", workflow_id)


def parameter(node: int, failure: DirectoryFailed) -> dict[str, Any]:
    """The run's parameter: replicas grouped by topic, since a directory may hold thousands."""
    topics: dict[tuple[str, str], list[list[int]]] = {}
    for row in failure.replicas:
        pairs = topics.setdefault((row.partition.topic, row.topic_id), [])
        pairs.append([row.partition.partition, row.generation])
    return {
        "node": node,
        "incarnation": failure.incarnation,
        "directory": failure.path,
        "directory_id": failure.directory_id,
        "reason": failure.reason,
        "noticed": round(failure.noticed, 3),
        "replicas": [[topic, topic_id, pairs] for (topic, topic_id), pairs in topics.items()],
        "moves": [_move(move) for move in failure.moves],
    }


def _move(move: EndedMove) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "source": move.source,
        "directory": move.directory,
        "workflow_id": move.owner,
        "run_id": move.run_id,
        "message": move.message,
    }
