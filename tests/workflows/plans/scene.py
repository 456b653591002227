"""Plans on a real Temporal server, by the activities of a real worker, on a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

import workflows
from activities.kafka_admin.pool import AdminPool
from activities.plans.activities import PlanActivities
from activities.plans.alerts import Webhook
from activities.plans.store import PlanStore
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.programs.temporal import TemporalServer
from tests.workflows.fakes import until_true
from workflows.model import names
from workflows.runner import deciding_as_replays, workflow_runner

Handle = WorkflowHandle[Any, Any]

#: Partition 0 moves between directories, partition 1 between brokers.
PLAN = [
    {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/disk/b"]},
    {"topic": "t", "partition": 1, "replicas": [2]},
]
BEFORE = {TopicPartition("t", number): {1: "/disk/a"} for number in range(2)}
SLOW = {"throttle_between_brokers": 200_000, "slots_per_disk": 2, "lane_moves": 1}


class Store(PlanStore):
    """A store that becomes that of another worker, which has none of the texts."""

    def forget_all(self, folder: Path) -> None:
        self.folder = folder
        self._cached.clear()


class Scene:
    """A cluster, a worker, and a client that submits plans."""

    def __init__(
        self, client: Client, name: str, kafka: KafkaInMemory, webhooks: Mapping[str, Webhook] | None = None
    ) -> None:
        self.client, self.name, self.kafka, self.webhooks = client, name, kafka, webhooks
        # A relative path: histories show where plans are stored.
        self.store = Store(Path("plans"))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        activities = PlanActivities(cast(AdminPool, self.kafka), self.store, self.client, self.webhooks)
        runner = workflow_runner()
        worker = Worker(
            self.client,
            task_queue=names.plans_queue(self.name),
            workflows=workflows.PLANS,
            activities=activities.all,
            workflow_runner=runner,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
            max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        )
        async with deciding_as_replays(worker, runner):
            yield

    async def submit(self, options: Mapping[str, Any] | None = None, **more: Any) -> Handle:
        parameter: dict[str, Any] = {"version": 1, "partitions": PLAN, "options": {**SLOW, **(options or {})}} | more
        return await self.client.start_workflow(
            names.REASSIGNMENT_PLAN,
            parameter,
            id=names.plan_id(self.name, "p"),
            task_queue=names.plans_queue(self.name),
        )

    async def running(self, plan: Handle, lanes: int) -> None:
        """Until so many lanes have requested their moves."""

        async def there() -> bool:
            return len(self.kafka.futures) + len(self.kafka.targets) == lanes

        await until_true(there)
        assert len((await plan.query("progress"))["lanes_running"]) == lanes

    async def until_phase(self, plan: Handle, phase: str) -> None:
        async def there() -> bool:
            return bool((await plan.query("progress"))["phase"] == phase)

        await until_true(there)

    async def shown(self, run: Handle) -> tuple[str | None, str]:
        """The summary and the current details of a run, as Temporal's UI has them."""
        metadata = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        return await (await run.describe()).static_summary(), metadata.current_details

    @property
    def keeper(self) -> Handle:
        return self.client.get_workflow_handle(names.throttle_keeper_id(self.name))

    def lane(self, number: int) -> Handle:
        return self.client.get_workflow_handle(names.plan_lane_id(names.plan_id(self.name, "p"), number))


def run(
    server: TemporalServer,
    name: str,
    play: Callable[[Scene], Coroutine[Any, Any, None]],
    webhooks: Mapping[str, Webhook] | None = None,
) -> None:
    """Play a scene with one worker."""

    async def scene() -> None:
        it = Scene(await server.client(), name, KafkaInMemory(BEFORE), webhooks)
        async with it.worker():
            await play(it)

    asyncio.run(scene())
