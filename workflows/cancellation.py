"""How a run stands to a cancel: what it waits for ends with one, and it ends as cancelled if it had one. No state."""

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


def asked() -> bool:
    """Whether the run was asked to cancel."""
    return workflow.cancellation_reason() is not None


async def uncancelled(waiting: Awaitable[Any]) -> None:
    """Wait; a cancel ends it without an error, since it is looked for before the next step."""
    try:
        await waiting
    except asyncio.CancelledError:
        if not asked():
            raise


async def patiently(work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Await something to its end, even if the run is cancelled meanwhile."""
    task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
    while not task.done():
        await uncancelled(workflow.wait_condition(task.done))
    return task.result()


async def handlers_finished() -> None:
    """Wait for the answers to all updates, cancel or not: a run that ends leaves none open."""
    while not workflow.all_handlers_finished():
        await uncancelled(workflow.wait_condition(workflow.all_handlers_finished))


def again_after() -> Iterator[timedelta]:
    """Yield after how long a request to a controller that does not answer is made again, each time. Endless."""
    pause = options.LOCATE_TIMEOUT
    while True:
        yield pause
        pause = min(2 * pause, max(pause, options.ASK_AGAIN_AFTER_MAX))


async def be_asked() -> None:
    """Only a run that was asked to can end as cancelled: have the controller ask, as none can ask itself."""
    info = workflow.info()
    controller = workflow.get_external_workflow_handle(names.cluster_id(info.task_queue))
    pauses = again_after()
    while not asked():
        try:
            await controller.signal("cancel_run", {"workflow_id": info.workflow_id, "run_id": info.run_id})
            await workflow.wait_condition(asked, timeout=next(pauses))
        except ApplicationError:
            await uncancelled(workflow.sleep(options.LOCATE_TIMEOUT, summary="until there is a controller"))
        except TimeoutError:
            continue
        except asyncio.CancelledError:
            if not asked():
                raise
