"""The cost of Temporal itself: sequential no-op activities in a workflow."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "rehome-bench-noop"
ACTIVITIES = 40


@activity.defn(name="noop")
async def noop() -> None:
    """Do nothing."""


@workflow.defn(name="NoOps", sandboxed=False)
class NoOps:
    """A workflow of `count` sequential no-op activities."""

    @workflow.run
    async def run(self, count: int) -> None:
        for _ in range(count):
            await workflow.execute_activity("noop", start_to_close_timeout=timedelta(seconds=10))


async def _measure(address: str, rounds: int) -> list[float]:
    client = await Client.connect(address)
    seconds = []
    async with Worker(
        client, task_queue=QUEUE, workflows=[NoOps], activities=[noop], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        for number in range(rounds + 1):
            started = time.perf_counter()
            await client.execute_workflow(
                NoOps.run, ACTIVITIES, id=f"rehome-bench-noop-{time.time_ns()}", task_queue=QUEUE
            )
            if number:  # the first one warms up
                seconds.append((time.perf_counter() - started) / ACTIVITIES)
    return seconds


def no_op_activity_seconds(address: str, rounds: int = 5) -> float:
    """Return the median seconds of one sequential no-op activity."""
    return statistics.median(asyncio.run(_measure(address, rounds)))
