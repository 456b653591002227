"""How a run handles its cancel request: waits end at once, and the run ends as cancelled. No state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import options
from workflows.model import names

T = TypeVar("T")


def requested() -> bool:
    """Return whether a cancel of the run was requested."""
    return workflow.cancellation_reason() is not None


async def uncancelled(waiting: Awaitable[Any]) -> None:
    """Wait; a cancel ends the wait without an error, since the run checks for one before each step."""
    try:
        await waiting
    except asyncio.CancelledError:
        if not requested():
            raise


async def shielded(work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Await work to its end, even if the run is cancelled meanwhile; return its result."""
    task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
    while not task.done():
        await uncancelled(workflow.wait_condition(task.done))
    return task.result()


async def handlers_finished() -> None:
    """Wait until all updates have got their responses, even if the run is cancelled: a run ends without open ones."""
    while not workflow.all_handlers_finished():
        await uncancelled(workflow.wait_condition(workflow.all_handlers_finished))


def retry_pauses() -> Iterator[timedelta]:
    """Yield the pauses after which a request is repeated while the controller does not respond. Endless."""
    pause = options.LOCATE_TIMEOUT
    while True:
        yield pause
        pause = min(2 * pause, max(pause, options.REQUEST_AGAIN_AFTER_MAX))


async def request_own() -> None:
    """Have the controller cancel this run: the server closes a run as cancelled only if its cancel was requested, and a
    run cannot request its own.
    """
    info = workflow.info()
    controller = workflow.get_external_workflow_handle(names.cluster_id(info.task_queue))
    pauses = retry_pauses()
    while not requested():
        try:
            await controller.signal("cancel_run", {"workflow_id": info.workflow_id, "run_id": info.run_id})
            await workflow.wait_condition(requested, timeout=next(pauses))
        except ApplicationError:
            await uncancelled(workflow.sleep(options.LOCATE_TIMEOUT, summary="until there is a controller"))
        except TimeoutError:
            continue
        except asyncio.CancelledError:
            if not requested():
                raise
