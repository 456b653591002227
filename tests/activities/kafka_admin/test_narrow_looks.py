"""Looks at a cluster: as small as what is asked for, and one for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from ops.bench.plans.simulated import Shape, SimulatedAdmin, SimulatedCluster
from storage_node.model.ids import TopicPartition
from workflows.model.plans.values import ClusterView

SHAPE = Shape(1_000, brokers=4, disks=2, replicas=2)
ONE = SHAPE.partition(150)


def looked(ask: Callable[[ClusterReader], Awaitable[ClusterView]]) -> tuple[ClusterView, Counter[str]]:
    """What the reader returns, and the requests that it costs."""
    requests: Counter[str] = Counter()
    cluster = SimulatedCluster(SHAPE, lambda name: requests.update([name]))

    async def work() -> ClusterView:
        pool = AdminPool(ClientConfig("simulated:9092"), admin=lambda config, timeout: SimulatedAdmin(cluster))
        try:
            return await ask(ClusterReader(pool))
        finally:
            await pool.close()

    return asyncio.run(work()), requests


def test_look_at_one_partition_asks_its_brokers_for_it_alone() -> None:
    node = SHAPE.nodes_of(150)[1]
    view, requests = looked(lambda reader: reader.of({ONE}, {node}))
    assert set(view.partitions) == {ONE} and set(view.replicas) == {(node, ONE)}
    assert {disk.node for disk in view.directories} == {node}
    assert requests == {"DescribeCluster": 1, "ListPartitionReassignments": 1, "Metadata": 1, "DescribeLogDirs": 1}


def test_look_at_a_partition_that_does_not_exist_and_a_broker_that_is_not_registered() -> None:
    gone = TopicPartition("gone", 0)
    view, requests = looked(lambda reader: reader.of({gone}, {99}))
    assert not view.partitions and not view.directories and 99 not in view.nodes
    assert not requests["DescribeLogDirs"]


def test_all_who_ask_at_the_same_time_share_one_look() -> None:
    async def ask(reader: ClusterReader) -> ClusterView:
        asked = [SHAPE.partition(number) for number in range(0, 1_000, 50)]
        views = await asyncio.gather(*(reader.of({tp}, SHAPE.nodes) for tp in asked))
        assert all(tp in view.partitions for tp, view in zip(asked, views, strict=True))
        return views[0]

    _, requests = looked(ask)
    assert requests["Metadata"] == 1 and requests["DescribeLogDirs"] == len(SHAPE.nodes)


def test_look_is_new_for_each_caller_that_accepts_no_older_one() -> None:
    async def ask(reader: ClusterReader) -> ClusterView:
        first = await reader.of({ONE}, SHAPE.nodes)
        assert await reader.of({ONE}, SHAPE.nodes, max_age=60) is first
        assert await reader.of({SHAPE.partition(1)}, SHAPE.nodes, max_age=60) is not first
        return await reader.of({ONE}, SHAPE.nodes)

    assert looked(ask)[1]["Metadata"] == 3


def test_metadata_is_read_without_log_directories_and_kept() -> None:
    async def ask(reader: ClusterReader) -> ClusterView:
        first = await reader.metadata(60)
        assert await reader.metadata(60) is first
        return first

    view, requests = looked(ask)
    assert len(view.partitions) == 1_000 and not view.replicas and all(each.responds for each in view.nodes.values())
    assert requests["Metadata"] == 1 and not requests["DescribeLogDirs"]
