"""Running workers side by side, until one of them fails or there is a reason to replace them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from temporalio.worker import Worker


async def serve(workers: Sequence[Worker], *until: Coroutine[Any, Any, None]) -> None:
    """Run `workers` until one of them ends, one of `until` returns, or this is cancelled; then shut down all.

    Raises what a worker failed with.
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
        ended = await asyncio.gather(*running, return_exceptions=True)
        for shutdown in ending:
            shutdown.cancel()
    for result in ended:
        if isinstance(result, BaseException):
            raise result
