"""The check of a plan that goes back: what has no space any more stays, and the others go back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans.plan_steps import PlanSteps
from activities.plans.store import PlanStore
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import USABLE, KafkaInMemory
from tests.workflows.model.plans.test_moves import plan
from workflows.model.plans import document
from workflows.model.plans.running.calls import CheckCall


async def _none_closed(_: list[str]) -> list[str]:
    return []


def test_disk_that_has_become_full_fails_its_own_moves_alone(tmp_path: Path) -> None:
    """Partition 0 returns to broker 2, whose directory lacks the space; partition 1 only changes its order."""

    async def work() -> None:
        kafka = KafkaInMemory(
            {TopicPartition("t", 0): {1: "/disk/a"}, TopicPartition("t", 1): {1: "/disk/a", 3: "/disk/a"}}
        )
        kafka.size = USABLE + 1
        store = PlanStore(tmp_path)
        steps = PlanSteps(ClusterReader(cast(AdminPool, kafka)), store, _none_closed)
        back, done = plan(("t-0", "2:/disk/a"), ("t-1", "3 1")), plan(("t-0", "1"), ("t-1", "1 3"))
        names = [store.put(document.to_text(each)) for each in (back, done)]
        found = await steps.check(CheckCall("c", names[0], {}, undoes=names[1]))
        assert (found.problems, found.moves, found.lanes, found.outcomes) == ([], 2, 1, {"failed": 1})
        (row,) = found.failures
        assert row.key == "t-0" and "disk 2:/disk/a would be overfilled" in row.reason
        assert document.parse(store.get(found.plan)).partitions == back.partitions[1:]

    asyncio.run(work())
