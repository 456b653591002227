"""Running workers side by side, until one of them fails or there is a reason to replace them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from temporalio.worker import Worker

#: Seconds a worker has for its shutdown, beyond the grace of its activities (a few seconds).
SHUTDOWN = 30.0


class WorkerHangs(Exception):
    """A worker did not shut down in time: something in it goes on, and it is left behind.

    It polls no more, so that the server gives what it held to others: tasks of workflows after
    `sticky_queue_schedule_to_start_timeout`, activities after their own timeouts.
    """


#: Workers that were left behind, by their tasks: the event loop itself refers to tasks weakly.
_left: set[asyncio.Task[Any]] = set()


async def serve(workers: Sequence[Worker], *until: Coroutine[Any, Any, None], shutdown: float = SHUTDOWN) -> None:
    """Run `workers` until one of them ends, one of `until` returns, or this is cancelled; then shut down all.

    Raises what a worker failed with, or `WorkerHangs` when one has not ended `shutdown` seconds later.
    """
    running = [asyncio.create_task(worker.run()) for worker in workers]
    reasons = [asyncio.create_task(reason) for reason in until]
    try:
        await asyncio.wait({*running, *reasons}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for reason in reasons:
            reason.cancel()
        # `shutdown` waits for an end that a worker which failed in its own shutdown never reports; its task is awaited.
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
            f"the worker of {queues} did not shut down within {shutdown:g} s and was left behind; another one takes"
            " its place"
        )
