"""worker.py as `impatient.py` runs it, whose loops and workers fail when a failpoint named for them is armed.

Whatever action arms a point (`raise`), the part fails with an unexpected error: an error of Python, a cancel without a
request, or a panic of the SDK's core, which is not an `Exception`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from temporalio.worker import Worker

import worker
from activities.controller import cluster_run
from activities.controller.batching import Batcher
from activities.controller.cluster_link import ClusterLink
from activities.controller.housekeeping import Housekeeper
from activities.moves import orphans, starter
from activities.temporal import state_file
from activities.temporal.client_state import ClientHealth
from storage_node import failpoints
from storage_node.failpoints import failpoint
from tests.activities import impatient

#: Points of a node's process and the code that passes them at each call.
OF_NODES: dict[str, tuple[Any, str]] = {
    "part.client": (ClientHealth, "connected"),
    "part.updates": (Batcher, "_take"),
    "part.registering": (cluster_run, "current"),
    "part.orphans": (orphans.OrphanWatch, "due"),
    "part.starting": (starter.MoveStarter, "_start_once"),
    "part.thread": (ClusterLink, "_current_cluster"),
}
OF_THE_CONTROLLER: dict[str, tuple[Any, str]] = {
    "part.house": (Housekeeper, "_look"),
    "part.state_file": (state_file, "write"),
}
#: Points in workers, by how their queues' names end; the first that fits.
QUEUES = {"/moves": "part.moves", "/node-1": "part.short", "/history": "part.exports", "": "part.workflows"}


class Panic(BaseException):
    """As the SDK's core raises it."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "part.updates": lambda: Panic("a panic of the core"),
    "part.orphans": asyncio.CancelledError,
    "part.thread": lambda: SystemExit("without a request"),
    "part.moves": lambda: Panic("a panic of the core"),
}


def fail_at(point: str) -> None:
    """Raise what the point is for, if it is armed."""
    try:
        failpoint(point)
    except OSError:
        raise ERRORS.get(point, lambda: ValueError(f"not expected: {point}"))() from None


def install(places: Mapping[str, tuple[Any, str]]) -> None:
    """Put the points into their places, and into every worker."""
    for point, (owner, name) in places.items():
        failpoints.register(point)
        setattr(owner, name, _passing(point, getattr(owner, name)))
    for point in QUEUES.values():
        failpoints.register(point)
    Worker.run = _run_and_look(Worker.run)  # type: ignore[method-assign]


def _passing(point: str, before: Callable[..., Any]) -> Callable[..., Any]:
    def passing(*arguments: Any, **named: Any) -> Any:
        fail_at(point)
        return before(*arguments, **named)

    return passing


def _run_and_look(run: Callable[[Worker], Awaitable[None]]) -> Callable[[Worker], Awaitable[None]]:
    async def run_and_look(self: Worker) -> None:
        mine = next(point for end, point in QUEUES.items() if self.task_queue.endswith(end))
        running = asyncio.ensure_future(run(self))
        while not running.done():
            await asyncio.wait({running}, timeout=0.1)
            try:
                fail_at(mine)
            except BaseException:
                await self.shutdown()
                await running
                raise
        await running

    return run_and_look


if __name__ == "__main__":
    impatient.hurry()
    install(OF_NODES if sys.argv[1] == "node" else OF_THE_CONTROLLER)
    code = worker.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
