"""All clients at once while their replicas are moved, swapped, and while their node is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients.conftest import fresh
from tests.conformance.clients.java import JavaClients, ok
from tests.conformance.clients.test_spark import SparkAndKafka
from tests.conformance.clients.traffic import (
    VALUES,
    JavaTraffic,
    KafkaPythonTraffic,
    KcatTraffic,
    LibrdkafkaFollower,
    LibrdkafkaTraffic,
)
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.temporal, pytest.mark.spark, pytest.mark.timeout(400)]

#: More than Kafka's mover takes in its first fetch, which no throttle holds back.
LOADED, RECORD_BYTES = 400, 10_000


@pytest.fixture
def throttled(cluster: Any) -> Iterator[None]:
    cluster.set_broker_config(1, replica_alter_log_dirs_io_max_bytes_per_second="1000")
    yield
    cluster.set_broker_config(1, replica_alter_log_dirs_io_max_bytes_per_second=None)


def group_of(cluster: Any, node: int) -> str:
    """A name for a group that this node coordinates."""
    for _ in range(1000):
        name = fresh()
        (row,) = cluster.call("FindCoordinator", 4, node=2, key_type=0, coordinator_keys=[name]).coordinators
        if row.node_id == node:
            return name
    raise AssertionError(f"node {node} coordinates no group")


def test_nothing_is_lost_or_doubled_over_moves_swaps_and_a_kill(
    cluster: Any, java: JavaClients, spark_kafka: Any, tmp_path: Path, throttled: None
) -> None:
    bootstrap = cluster.bootstrap
    spark = SparkAndKafka(spark_kafka, bootstrap)
    clients: dict[str, Any] = {
        "java": JavaTraffic(java, bootstrap),
        "librdkafka": LibrdkafkaTraffic(bootstrap),
        "kafka-python": KafkaPythonTraffic(bootstrap),
        "kcat": KcatTraffic(bootstrap),
    }
    topics = {name: cluster.new_topic(assignment={0: [1]}) for name in clients}
    loaded: dict[str, list[str]] = {}
    for name, topic in topics.items():
        cluster.produce(topic, n=LOADED, size=RECORD_BYTES)
        loaded[name] = clients[name].read(topic, LOADED)
        assert len(loaded[name]) == LOADED
    replicas = [[topic, 0, 1] for topic in topics.values()]

    def where() -> list[Any]:
        return [ok(row) for row in java.call(bootstrap, "describeReplicaLogDirs", replicas=replicas).values()]

    one, other = (str(path) for path in cluster.log_dirs[1])
    places = java.call(bootstrap, "describeReplicaLogDirs", replicas=replicas)
    wanted = [[*row, other if ok(places["-".join(map(str, row))])["current"] == one else one] for row in replicas]
    group = group_of(cluster, 1)
    followers = [clients["java"].follow(list(topics.values()), group) for _ in range(2)]
    follower = LibrdkafkaFollower(bootstrap, list(topics.values()), group)
    with ThreadPoolExecutor() as side_by_side:
        ok(java.call(bootstrap, "alterReplicaLogDirs", wanted=wanted)["all"])
        producing = [side_by_side.submit(client.produce, topics[name]) for name, client in clients.items()]
        # A move under way: everything is read as if there were none.
        reading = {name: side_by_side.submit(client.read, topics[name], LOADED) for name, client in clients.items()}
        for name, read in reading.items():
            assert read.result()[:LOADED] == loaded[name]
        streamed = spark.stream(topics["java"], tmp_path)
        assert all(row["future"] for row in where())
        # Over the swap.
        cluster.set_broker_config(1, replica_alter_log_dirs_io_max_bytes_per_second="100000000")
        until(lambda: not any(row["future"] for row in where()), 60, "the replicas are swapped")
        found = java.call(bootstrap, "describeReplicaLogDirs", replicas=replicas)
        assert [ok(found["-".join(map(str, row[:3]))])["current"] for row in wanted] == [row[3] for row in wanted]
        # Over the death of the node.
        cluster.kill(1)
        cluster.start(1)
        for sent in producing:
            sent.result()
        expected = {name: [*loaded[name], *VALUES] for name in clients}
        after = {
            name: side_by_side.submit(client.read, topics[name], len(expected[name]))
            for name, client in clients.items()
        }
        for name, read in after.items():
            assert read.result() == expected[name], name
    streamed += spark.stream(topics["java"], tmp_path)
    assert sorted(streamed) == sorted(expected["java"])
    # A group whose coordinator died as well: every record at least once, and committed.
    ends = {f"{topic}-0": LOADED + len(VALUES) for topic in topics.values()}
    until(
        lambda: java.call(bootstrap, "groupOffsets", group=group) == {"ok": ends}, 60, "the group has read everything"
    )
    clients["java"].stop(group)
    follower.stop()
    read = follower.found.union(*({(r[0], r[3]) for r in row.result(60)["records"]} for row in followers))
    assert {(topics[name], value) for name in clients for value in expected[name]} == read
