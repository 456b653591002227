"""KIP-73's throttles on running nodes: they delay only listed replicas that are not in sync, at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from storage_node.model.ids import TopicPartition
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import assert_equal, in_sync, settled

RATE = 100_000
RECORDS, SIZE = 200, 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path, nodes=2, dirs=1, extra={"replica.lag.time.max.ms": "10000"}) as made:
        yield made


def configure(admin: AdminClient, kind: ResourceType, name: str, values: dict[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(20)


def limit(cluster: MemoryCluster, values: dict[str, str]) -> None:
    """Set configs of all brokers."""
    controller = cluster.nodes[1].controller
    assert controller is not None
    result = asyncio.run(controller.alter_configs("broker", "", values, timeout=10))
    assert not result.error, result


@pytest.mark.conformance(195, 196)
@pytest.mark.feature("455-27")
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_listed_replica_is_throttled_until_the_rate_is_raised(cluster: MemoryCluster, side: str) -> None:
    cluster.create_topic("t", [[1, 2], [1, 2]])
    admin, rate = cluster.admin(), f"{side}.replication.throttled.rate"
    listed = "0:1" if side == "leader" else "0:2"
    configure(admin, ResourceType.TOPIC, "t", {f"{side}.replication.throttled.replicas": listed})
    limit(cluster, {rate: str(RATE)})
    cluster.controller.spread()
    cluster.stop(2)
    for partition in (0, 1):
        in_sync(cluster, "t", [1], partition)
        cluster.produce("t", [bytes(SIZE)] * RECORDS, partition, batch_size=50_000)
    cluster.start(2)
    began = time.monotonic()
    # The partition that is not listed is not delayed.
    in_sync(cluster, "t", [1, 2], 1)
    assert time.monotonic() - began < 12
    replica = cluster.replica(2, "t")
    # At the rate, give or take a batch and a response in flight.
    until(lambda: replica.log.size > 0)
    first, before = time.monotonic(), replica.log.size
    time.sleep(3)
    passed, came = time.monotonic() - first, replica.log.size - before
    assert came <= RATE * passed + 150_000 and came >= RATE * passed * 0.5 - 100_000
    assert tuple(cluster.controller.partition("t").isr) == (1,)
    # Records of the partition in sync are replicated although the topic's other partition is throttled.
    assert len(cluster.produce("t", [b"new"], 1)) == 1
    limit(cluster, {rate: "1000000000"})
    raised = time.monotonic()
    until(lambda: replica.log.size >= RECORDS * SIZE, what="all records are replicated")
    assert time.monotonic() - raised < 8
    in_sync(cluster, "t", [1, 2])
    # A replica in sync is not throttled, whatever the rate.
    limit(cluster, {rate: "1"})
    cluster.produce("t", [bytes(SIZE)] * 20)
    settled(cluster, "t")
    assert_equal(cluster, "t")


@pytest.mark.feature("113-42")
def test_replication_throttle_holds_back_the_copy_to_another_node_alone(tmp_path: Path) -> None:
    """A move between two directories of a node continues while the follower of the same replica is throttled."""
    with running_cluster(tmp_path, nodes=2, dirs=2, extra={"replica.lag.time.max.ms": "10000"}) as cluster:
        cluster.create_topic("t", [[1, 2]])
        sides = ("leader", "follower")
        lists = {f"{side}.replication.throttled.replicas": "*" for side in sides}
        configure(cluster.admin(), ResourceType.TOPIC, "t", lists)
        limit(cluster, {f"{side}.replication.throttled.rate": "1" for side in sides})
        cluster.controller.spread()
        cluster.stop(2)
        in_sync(cluster, "t", [1])
        cluster.produce("t", [bytes(SIZE)] * RECORDS, batch_size=50_000)
        cluster.start(2)
        node, tp = cluster.nodes[1], TopicPartition("t", 0)
        source = cluster.replica(1, "t").directory.name
        (target,) = (path for path in cluster.paths[1] if path != source)
        claim = node.engine.create(tp, target, owner="run").claim
        node.engine.start_copy(tp, claim)
        assert node.engine.wait(tp, claim, 60).state == "caught_up"
        assert node.engine.swap(tp, claim).outcome == "swapped"
        assert cluster.replica(1, "t").directory.name == target
        assert cluster.replica(1, "t").log.size >= RECORDS * SIZE
        assert cluster.replica(2, "t").log.size < RECORDS * SIZE, "the copy to the other node waits for its throttle"
        assert tuple(cluster.controller.partition("t").isr) == (1,)
