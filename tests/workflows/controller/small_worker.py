"""A worker in a process of its own, to be killed: `python -m tests.workflows.controller.small_worker ADDRESS QUEUE`.

Its workflow sleeps, then has an activity done, and takes updates and queries meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from workflows.runner import deciding_as_replays, workflow_runner

SLEEP = 2.0


@activity.defn
async def nothing() -> None:
    """What follows from the timer."""


@workflow.defn
class Sleeper:
    """Counts updates."""

    def __init__(self) -> None:
        self._count = 0

    @workflow.run
    async def run(self) -> int:
        await workflow.sleep(SLEEP)
        await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=30))
        await workflow.wait_condition(lambda: self._count > 1)
        return self._count

    @workflow.update
    def submit(self) -> int:
        self._count += 1
        return self._count

    @workflow.query
    def count(self) -> int:
        return self._count


async def main(address: str, queue: str) -> None:
    """Work until killed."""
    runner = workflow_runner()
    worker = Worker(
        await Client.connect(address),
        task_queue=queue,
        workflows=[Sleeper],
        activities=[nothing],
        workflow_runner=runner,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
    )
    await deciding_as_replays(worker, runner).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
