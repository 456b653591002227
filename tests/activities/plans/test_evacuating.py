"""The certificate of an empty directory, where the brokers do not describe all that is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest

from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans.evacuating import EvacuationSteps
from activities.plans.store import PlanStore
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from workflows.model.plans.running.calls import DirectoryCall

SHOWN, HIDDEN = TopicPartition("shown", 0), TopicPartition("hidden", 0)


class Hiding(KafkaInMemory):
    """Brokers that leave a topic out of their metadata: the client may not describe it."""

    def partitions(self, topics: Collection[str] | None = None) -> dict[TopicPartition, dict[str, Any]]:
        return {tp: row for tp, row in super().partitions(topics).items() if tp != HIDDEN}


@pytest.mark.parametrize(("left", "ok"), [("/disk/a", False), ("/disk/b", True)])
def test_replica_of_a_topic_that_is_not_described_fails_the_certificate(tmp_path: Path, left: str, ok: bool) -> None:
    async def searchable() -> bool:
        return False

    async def work() -> None:
        kafka = Hiding({SHOWN: {1: "/disk/b"}, HIDDEN: {1: left}})
        pool = cast(AdminPool, kafka)
        steps = EvacuationSteps(pool, ClusterReader(pool), PlanStore(tmp_path), searchable)
        found = await steps.verify(DirectoryCall("c", 1, "/disk/a"))
        assert found.ok == ok
        said = " ".join(found.differences)
        assert ok or ("1 replica: hidden-0" in said and "do not describe hidden to this client" in said)

    asyncio.run(work())
