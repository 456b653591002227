"""Moves between the log directories of a broker over Kafka's protocol alone, the same for rehome and Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient

LOOK = 0.01
PATIENCE = 300.0


class Mover:
    """Request moves of node 1 (AlterReplicaLogDirs) and poll its replicas (DescribeLogDirs). A context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=int(PATIENCE * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def ask(self, wanted: Mapping[tuple[str, int], Path]) -> None:
        """Send one request for all partitions. Raises RuntimeError on errors."""
        response = self._admin.alter_replica_log_dirs({(t, p, 1): str(path) for (t, p), path in wanted.items()})
        errors = {error.__name__ for error in response.values() if error.errno}
        if errors:
            raise RuntimeError(f"moves were rejected: {', '.join(sorted(errors))}")

    def wait(self, wanted: Mapping[tuple[str, int], Path], look: float = LOOK) -> float:
        """Poll until every partition is in its target directory; return the time (`time.monotonic`)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._arrived(wanted):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(wanted)} moves did not end within {PATIENCE:.0f} s")
            time.sleep(look)

    def move(self, wanted: Mapping[tuple[str, int], Path], look: float = LOOK) -> float:
        """Request moves and wait; return the seconds from the request to the last swap."""
        began = time.monotonic()
        self.ask(wanted)
        return self.wait(wanted, look) - began

    def _arrived(self, wanted: Mapping[tuple[str, int], Path]) -> bool:
        left = {(topic, partition, str(path)) for (topic, partition), path in wanted.items()}
        for response in self._admin.describe_log_dirs(brokers=[1]):
            for directory in response["log_dirs"]:
                for topic in directory["topics"]:
                    for partition in topic["partitions"]:
                        key = (_name(topic), int(partition["partition_index"]), str(directory["log_dir"]))
                        if not partition["is_future_key"]:
                            left.discard(key)
        return not left


def _name(topic: Mapping[str, Any]) -> str:
    return str(topic["name"] if "name" in topic else topic["topic"])


def other_disk(disks: list[Path], topic: str, partition: int = 0) -> Path:
    """Return the directory after the replica's own."""
    source = next(d for d in disks if (d / f"{topic}-{partition}").is_dir())
    return disks[(disks.index(source) + 1) % len(disks)]


def fill(bootstrap: str, topic: str, total_bytes: int, *, value: int, batch: int, partitions: int = 1) -> None:
    """Produce `total_bytes` of values into each partition, acks=1, in batches of at most `batch` bytes or one record.

    Raises RuntimeError when a record is not acknowledged.
    """
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "1", "batch.size": batch, "linger.ms": 5})
    record = (bytes(range(256)) * (value // 256 + 1))[:value]
    for number in range(total_bytes // value * partitions):
        while True:
            try:
                producer.produce(topic, record, partition=number % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(300)
    if left or failed:
        raise RuntimeError(f"{left + len(failed)} records were not acknowledged: {failed[:1]}")
