"""Create, reassign, throttle and poll replicas over Kafka's protocol alone, the same for rehome and Apache Kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from ops.bench.bench import Bench, Stack
from ops.kafka.cluster import KafkaCluster

NODES = (1, 2, 3)
PATIENCE = 600.0
#: Both servers free the space of dropped replicas soon, for the next round; the config's name differs.
PROPERTIES = {"file.delete.delay.ms": "1000"}
KAFKA_PROPERTIES = {"log.segment.delete.delay.ms": "1000"}
#: Kafka's defaults instead of the test cluster's values; our nodes run with their defaults.
AS_STARTED = {"num.network.threads": "3", "num.io.threads": "8", "background.threads": "10"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three nodes with one log directory each: a name, the bootstrap address, the directories."""

    name: str
    bootstrap: str
    disks: Mapping[int, Path]
    stack: Stack | None = None
    kafka: KafkaCluster | None = None


@contextlib.contextmanager
def ours(bench: Bench, name: str) -> Iterator[Cluster]:
    """Run a stack of three nodes for one benchmark."""
    stack = Stack(bench.folder / name, nodes=len(NODES), dirs=1)
    try:
        stack.configure(PROPERTIES)
        yield Cluster("rehome", stack.bootstrap, {node: dirs[0] for node, dirs in stack.log_dirs.items()}, stack)
    finally:
        stack.down()


@contextlib.contextmanager
def theirs(bench: Bench, name: str) -> Iterator[Cluster]:
    """Run three brokers of Apache Kafka for one benchmark. Raises KafkaUnavailable."""
    folder = bench.folder / f"{name}-kafka"
    folder.mkdir(parents=True, exist_ok=True)
    kafka = KafkaCluster(
        folder, log_dirs=dict.fromkeys(NODES, 1), properties={**AS_STARTED, **KAFKA_PROPERTIES}, quick=False
    )
    with kafka:
        yield Cluster("kafka", kafka.bootstrap, {node: dirs[0] for node, dirs in kafka.log_dirs.items()}, kafka=kafka)


class Reassigner:
    """Create topics with a given assignment, and reassign their partitions. A context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._kafka = KafkaAdminClient(
            bootstrap_servers=cluster.bootstrap.split(","), request_timeout_ms=int(PATIENCE * 1000)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kafka.close()

    def create(self, topic: str, replicas: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None) -> None:
        """Create a topic with these replicas per partition; return when all replicas are in sync."""
        made = NewTopic(topic, num_partitions=len(replicas), replica_assignment=[list(r) for r in replicas])
        made.config = dict(configs or {})
        self._admin.create_topics([made], operation_timeout=60)[topic].result(90)
        self.wait({(topic, number): tuple(each) for number, each in enumerate(replicas)}, look=0.05)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.delete_topics([topic], operation_timeout=60)[topic].result(90)

    def ask(self, wanted: Mapping[tuple[str, int], Sequence[int]]) -> float:
        """Send one request for all partitions; return the seconds until the response. Raises RuntimeError on errors."""
        began = time.monotonic()
        response = self._kafka.alter_partition_reassignments(
            {TopicPartition(*place): list(to) for place, to in wanted.items()}, timeout_ms=int(PATIENCE * 1000)
        )
        took = time.monotonic() - began
        errors = {error.__name__ for error in response.values() if error is not None}
        if errors or len(response) != len(wanted):
            raise RuntimeError(f"reassignments failed: {', '.join(sorted(errors)) or 'the response lacks partitions'}")
        return took

    def wait(self, wanted: Mapping[tuple[str, int], Sequence[int]], look: float = 0.02) -> float:
        """Poll until every partition has exactly these replicas, all in sync; return the time (`time.monotonic`)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self.settled(wanted):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(wanted)} reassignments did not end within {PATIENCE:.0f} s")
            time.sleep(look)

    def wait_in_sync(self, topic: str, node: int, look: float = 0.02) -> float:
        """Poll until a node is in the ISR of partition 0; return the time (`time.monotonic`)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self._partitions(topic).get(0)
            if found is not None and node in found.isrs:
                return time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"node {node} was not in sync after {PATIENCE:.0f} s")
            time.sleep(look)

    def limit(self, topic: str, node: int, side: str, rate: int | None) -> None:
        """Throttle a topic's replication on a node as "leader" or "follower" (`side`); None removes the throttle."""
        operation = AlterConfigOpType.SET if rate is not None else AlterConfigOpType.DELETE
        for kind, name, key, value in (
            (ConfigResource.Type.TOPIC, topic, f"{side}.replication.throttled.replicas", "*"),
            (ConfigResource.Type.BROKER, str(node), f"{side}.replication.throttled.rate", str(rate)),
        ):
            entry = ConfigEntry(key, value if rate is not None else None, incremental_operation=operation)
            resource = ConfigResource(kind, name, incremental_configs=[entry])
            for future in self._admin.incremental_alter_configs([resource]).values():
                future.result(30)

    def settled(self, wanted: Mapping[tuple[str, int], Sequence[int]]) -> bool:
        """Return whether every partition has exactly these replicas, all in sync."""
        by_topic = {topic: self._partitions(topic) for topic in {topic for topic, _ in wanted}}
        for (topic, number), to in wanted.items():
            found = by_topic[topic].get(number)
            if found is None or found.leader < 0 or sorted(found.replicas) != sorted(to):
                return False
            if sorted(found.isrs) != sorted(to):
                return False
        return True

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        found: Mapping[int, Any] = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
        return found


def stored(disk: Path, topic: str, partition: int = 0) -> int:
    """Return the size of a replica's segments; 0 if it does not exist."""
    try:
        return sum(file.stat().st_size for file in (disk / f"{topic}-{partition}").glob("*.log"))
    except OSError:  # a segment was renamed meanwhile
        return 0


def wait_gone(disk: Path, topic: str, partition: int = 0) -> None:
    """Wait until no folder of a dropped replica is left. Raises RuntimeError."""
    deadline = time.monotonic() + PATIENCE
    while any(disk.glob(f"{topic}-{partition}*")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic}-{partition} was still in {disk} after {PATIENCE:.0f} s")
        time.sleep(0.05)
