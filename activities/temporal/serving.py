"""Runs workers side by side, until one of them fails or must be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from temporalio.worker import Worker

#: Seconds a worker has for its shutdown, beyond the grace of its activities (a few seconds).
SHUTDOWN = 30.0


class WorkerHangs(Exception):
    """A worker did not shut down in time, and is abandoned while it still runs.

    It no longer polls, so that the server gives its work to other workers: tasks of workflows after
    `sticky_queue_schedule_to_start_timeout`, activities after their own timeouts.
    """


#: The tasks of abandoned workers, kept here since the event loop has only weak references to tasks.
_left: set[asyncio.Task[Any]] = set()


async def serve(workers: Sequence[Worker], *until: Coroutine[Any, Any, None], shutdown: float = SHUTDOWN) -> None:
    """Run `workers` until one of them ends, one of `until` returns, or this is cancelled; then shut down all.

    Raises a worker's error, or `WorkerHangs` if one has not ended `shutdown` seconds later.
    """
    running = [asyncio.create_task(worker.run()) for worker in workers]
    reasons = [asyncio.create_task(reason) for reason in until]
    try:
        await asyncio.wait({*running, *reasons}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for reason in reasons:
            reason.cancel()
        # `shutdown` never returns for a worker that failed while shutting down, so the workers' tasks are awaited.
        ending = [asyncio.create_task(worker.shutdown()) for worker in workers]
        ended, hanging = await asyncio.wait(running, timeout=shutdown)
        for task in ending:
            task.cancel()
        for task in hanging:
            _left.add(task)
            task.add_done_callback(_left.discard)
    for task in ended:
        task.result()
    if hanging:
        queues = ", ".join(worker.task_queue for worker, task in zip(workers, running, strict=True) if task in hanging)
        raise WorkerHangs(
            f"the worker of {queues} did not shut down within {shutdown:g} s and was abandoned; another one replaces it"
        )
