"""The reader of a cluster: one look for all who ask at the same time, none older than asked for, and silent brokers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.errors import NoResponse
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import SPACING, ClusterReader
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from workflows.model.plans.values import Disk

ONE = TopicPartition("t", 0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reader() -> tuple[KafkaInMemory, ClusterReader, Clock]:
    kafka, clock = KafkaInMemory({ONE: {1: "/disk/a"}}), Clock()
    return kafka, ClusterReader(cast(AdminPool, kafka), clock), clock


def test_all_who_ask_at_the_same_time_get_one_look() -> None:
    async def work() -> None:
        kafka, it, _ = reader()
        views = await asyncio.gather(*(it.view() for _ in range(20)))
        assert kafka.requests.count("cluster") == 1 and all(view is views[0] for view in views)

    asyncio.run(work())


@pytest.mark.parametrize(("age", "passed", "looks"), [(2.0, 1.0, 1), (2.0, 3.0, 2), (0.0, 1.0, 2)])
def test_view_is_at_most_as_old_as_asked_for(age: float, passed: float, looks: int) -> None:
    async def work() -> None:
        kafka, it, clock = reader()
        await it.view()
        clock.now += passed
        await it.view(max_age=age)
        assert kafka.requests.count("cluster") == looks

    asyncio.run(work())


def test_look_that_began_before_the_question_does_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kafka, it, clock = reader()
        gate, run = asyncio.Event(), kafka.run

        async def slow(call: Any) -> Any:
            found = await run(call)
            if call is KafkaAdmin.partitions:
                await gate.wait()
            return found

        monkeypatch.setattr(kafka, "run", slow)
        first = asyncio.create_task(it.view())
        await asyncio.sleep(0.01)
        clock.now += 1
        second = asyncio.create_task(it.view())
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, second)
        assert kafka.requests.count("cluster") == 2

    asyncio.run(work())


def test_silent_broker_is_part_of_the_view() -> None:
    async def work() -> None:
        kafka, it, _ = reader()
        kafka.silent = {1}
        view = await it.view()
        assert {node: each.responds for node, each in view.nodes.items()} == {1: False, 2: True, 3: True}
        assert Disk(2, "/disk/a") in view.directories and Disk(1, "/disk/a") not in view.directories
        assert view.partitions[ONE].replicas == (1,)

    asyncio.run(work())


def test_failed_look_fails_all_who_asked_and_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kafka, it, _ = reader()
        run = kafka.run

        async def fails(call: Any) -> Any:
            raise NoResponse("no node responded")

        monkeypatch.setattr(kafka, "run", fails)
        found = await asyncio.gather(*(it.view() for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in found] == [NoResponse] * 3
        monkeypatch.setattr(kafka, "run", run)
        assert (await it.view()).cluster_id == "in-memory"

    asyncio.run(work())


def test_caller_that_gives_up_does_not_end_the_look_of_the_others() -> None:
    async def work() -> None:
        kafka, it, _ = reader()
        one, other = asyncio.create_task(it.view()), asyncio.create_task(it.view())
        await asyncio.sleep(0)
        one.cancel()
        assert (await other).cluster_id == "in-memory" and kafka.requests.count("cluster") == 1

    asyncio.run(work())


@pytest.mark.parametrize("callers", [1, 100])
def test_reads_of_some_partitions_in_a_minute_are_as_many_for_one_caller_as_for_a_hundred(callers: int) -> None:
    async def work() -> None:
        clock, partitions = Clock(), [TopicPartition("t", number) for number in range(callers)]
        kafka = KafkaInMemory({tp: {1: "/disk/a"} for tp in partitions})

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0)
            clock.now += seconds

        it = ClusterReader(cast(AdminPool, kafka), clock, sleep)

        async def follow(tp: TopicPartition) -> None:
            while clock.now < 160:
                assert tp in (await it.of([tp], [1])).partitions
                clock.now += 1e-6

        await asyncio.gather(*map(follow, partitions))
        reads = 60 / SPACING
        assert reads - 1 <= kafka.requests.count("cluster") <= reads + 2

    asyncio.run(work())
