"""A leading node and two followers driven by the test."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.partitions.partition import Partition
from tests.support.nodes.hand_follower import HandFollower
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client, Row


@dataclass(slots=True)
class Led:
    """Node 1, which leads everything created, with the followers 2 and 3."""

    cluster: MemoryCluster
    followers: tuple[HandFollower, HandFollower]
    client: Client

    def create(self, topic: str = "t", partitions: int = 1, **configs: Any) -> None:
        given = {key.replace("_", "."): str(value) for key, value in configs.items()}
        self.cluster.create_topic(topic, [[1, 2, 3]] * partitions, given)

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        found: Partition = self.cluster.replica(1, topic, index)
        return found

    def append(self, count: int = 1, *, acks: int = 1, topic: str = "t", partition: int = 0) -> Row:
        """Append batches of one record each; return the last one's result."""
        for _ in range(count - 1):
            assert not self.client.produce(topic, partition, record(), acks=acks).error
        return self.client.produce(topic, partition, record(), acks=acks)

    def isr(self, topic: str = "t", index: int = 0) -> set[int]:
        """Return the controller's ISR."""
        return set(self.cluster.controller.partition(topic, index).isr)

    def asks_for(self, topic: str = "t", index: int = 0) -> set[int]:
        """Return the ISR that the leader would request now."""
        state = self.partition(topic, index).leading
        assert state is not None
        change = state.change(time.monotonic())
        return set(state.isr) if change is None else {number for number, _ in change.isr}

    def until_isr(self, *members: int, topic: str = "t", index: int = 0) -> None:
        def there() -> bool:
            state = self.partition(topic, index).leading
            return self.isr(topic, index) == set(members) and state is not None and set(state.isr) == set(members)

        until(there, what=f"the ISR is {members}")

    def catch_up(self, *numbers: int, topic: str = "t", partition: int = 0) -> None:
        for follower in self.followers:
            if follower.number in (numbers or (2, 3)):
                follower.catch_up(topic, partition)


def record(value: bytes = b"value") -> bytes:
    return build_batch([value], timestamp=1_700_000_000_000)


def nothing_comes(client: Client, seconds: float = 0.3) -> bool:
    """Return whether the node sends no response for so long."""
    return not select.select([client.socket], [], [], seconds)[0]


@pytest.fixture
def led(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Led]:
    """Return `led` with a replica.lag.time.max.ms of a second, or of what a test sets."""
    lag = getattr(request, "param", 1000)
    with running_cluster(tmp_path, 1, 2, {"replica.lag.time.max.ms": str(lag)}) as cluster:
        followers = HandFollower(cluster, 2), HandFollower(cluster, 3)
        client = Client(f"127.0.0.1:{cluster.nodes[1].port}")
        try:
            yield Led(cluster, followers, client)
        finally:
            client.close()
            for follower in followers:
                follower.close()
