"""A node in this process with its directories below a test's folder, and clients for it."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from storage_node.config.node_config import NodeConfig
from storage_node.directories.formatting import format_directories
from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from tests.support.nodes.local_controller import LocalController

T = TypeVar("T")

CLUSTER_ID = "test-cluster"


def until(found: Callable[[], T], seconds: float = 60.0, what: str = "") -> T:
    """Poll until `found` answers something true; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or found}")
        time.sleep(0.01)


def removed(path: str) -> None:
    """Remove a log directory that a node uses: a check that is under way creates its file elsewhere, or nowhere."""
    shutil.rmtree(Path(path).rename(f"{path}.gone"), ignore_errors=True)


def replaced(path: str) -> None:
    """Put an empty disk in the place of one."""
    removed(path)
    Path(path).mkdir()


def make_dirs(root: Path, count: int, node: int = 1) -> list[str]:
    """Formatted log directories below `root`."""
    paths = [str(root / f"node-{node}" / f"d{index}") for index in range(count)]
    fresh = [path for path in paths if not (Path(path) / "meta.properties").exists()]
    if fresh:
        for path in fresh:
            Path(path).mkdir(parents=True, exist_ok=True)
        format_directories(paths, cluster_id=CLUSTER_ID, node_id=node)
    return paths


def make_config(dirs: list[str], node: int = 1, port: int = 0, extra: Mapping[str, str] | None = None) -> NodeConfig:
    """A configuration with short intervals."""
    values = {
        "node.id": str(node),
        "log.dirs": ",".join(dirs),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "file.delete.delay.ms": "1000",
        **(extra or {}),
    }
    return NodeConfig.parse(values)


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's names from Python's: callbacks keep their underscore."""
    return {key if key.endswith("_cb") else key.replace("_", "."): value for key, value in given.items()}


class Harness:
    """One node and its controller."""

    def __init__(self, root: Path, dirs: int = 3, extra: Mapping[str, str] | None = None, node: int = 1) -> None:
        self.paths = make_dirs(root, dirs, node)
        self.extra = dict(extra or {})
        self.node_id = node
        self.controller = LocalController(CLUSTER_ID)
        self.node: Node = self._new(0)

    def _new(self, port: int) -> Node:
        return Node(make_config(self.paths, self.node_id, port, self.extra), self.controller)

    def start(self) -> None:
        self.node.start()
        self.controller.attach(self.node)

    def stop(self, clean: bool = True) -> None:
        self.controller.detach(self.node)
        self.node.stop(clean)

    def restart(self, clean: bool = True) -> None:
        """Stop and start again at the same port."""
        port = self.node.port
        self.stop(clean)
        self.node = self._new(port)
        self.start()

    def close(self) -> None:
        self.stop()
        self.controller.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.node.port}"

    def settle(self) -> None:
        """Wait until the controller knows where all replicas are, and the node has its newest image."""
        until(lambda: not self.node.housekeeping.differing() and self.node.metadata.image == self.controller.image)

    # Clients

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
        admin = self.admin()
        admin.create_topics([topic])[name].result(20)

    def delete_topic(self, name: str) -> None:
        admin = self.admin()
        admin.delete_topics([name])[name].result(20)

    def producer(self, **settings: Any) -> Producer:
        base: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
        }
        return Producer({**base, **_settings(settings)})

    def consumer(self, **settings: Any) -> Consumer:
        base = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
        return Consumer({**base, **_settings(settings)})

    def produce(self, topic: str, values: list[bytes], partition: int = 0, **settings: Any) -> None:
        """Produce and wait for every acknowledgement; not idempotent: librdkafka takes half a second for an id."""
        failures: list[Any] = []
        producer = self.producer(**{"enable_idempotence": False, **settings})

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
        assert producer.flush(30) == 0
        assert not failures, failures

    def consume(self, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Any]:
        """Read `count` messages from an offset."""
        consumer = self.consumer()
        consumer.assign([KafkaPartition(topic, partition, offset)])
        found: list[Any] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(min(count - len(found), 1000), timeout=0.5):
                assert message.error() is None, message.error()
                found.append(message)
        consumer.close()
        return found

    def directory_of(self, topic: str, partition: int = 0) -> str:
        """Where a replica is now."""
        replica = self.node.partition(TopicPartition(topic, partition))
        assert replica is not None
        return replica.directory.name

    def other_directory(self, topic: str, partition: int = 0) -> str:
        """A directory where the replica is not."""
        return next(path for path in self.paths if path != self.directory_of(topic, partition))


@contextmanager
def running(root: Path, dirs: int = 3, extra: Mapping[str, str] | None = None) -> Iterator[Harness]:
    """A node that runs while the block does."""
    harness = Harness(root, dirs, extra)
    harness.start()
    try:
        yield harness
    finally:
        harness.close()


def raw_connection(harness: Harness, timeout: float = 10.0) -> socket.socket:
    """A plain connection to the listener."""
    connection = socket.create_connection(("127.0.0.1", harness.node.port), timeout=timeout)
    connection.settimeout(timeout)
    return connection
