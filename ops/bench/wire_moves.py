"""Moves between the log directories of one broker over Kafka's protocol alone: the same for every server."""

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
    """Asks node 1 for moves (AlterReplicaLogDirs) and looks where replicas are (DescribeLogDirs).

    Use as a context manager.
    """

    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=int(PATIENCE * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def ask(self, wanted: Mapping[tuple[str, int], Path]) -> None:
        """One request for all; raises RuntimeError when a partition is refused."""
        answer = self._admin.alter_replica_log_dirs({(t, p, 1): str(path) for (t, p), path in wanted.items()})
        refused = {error.__name__ for error in answer.values() if error.errno}
        if refused:
            raise RuntimeError(f"moves were refused: {', '.join(sorted(refused))}")

    def wait(self, wanted: Mapping[tuple[str, int], Path], look: float = LOOK) -> float:
        """Poll until every partition is where it was wanted and no copy is left; the moment (`time.monotonic`)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._arrived(wanted):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(wanted)} moves did not end within {PATIENCE:.0f} s")
            time.sleep(look)

    def move(self, wanted: Mapping[tuple[str, int], Path], look: float = LOOK) -> float:
        """Ask and wait; the seconds from the request to the last swap."""
        began = time.monotonic()
        self.ask(wanted)
        return self.wait(wanted, look) - began

    def _arrived(self, wanted: Mapping[tuple[str, int], Path]) -> bool:
        left = {(topic, partition, str(path)) for (topic, partition), path in wanted.items()}
        for answer in self._admin.describe_log_dirs(brokers=[1]):
            for directory in answer["log_dirs"]:
                for topic in directory["topics"]:
                    for partition in topic["partitions"]:
                        key = (_name(topic), int(partition["partition_index"]), str(directory["log_dir"]))
                        if not partition["is_future_key"]:
                            left.discard(key)
        return not left


def _name(topic: Mapping[str, Any]) -> str:
    return str(topic["name"] if "name" in topic else topic["topic"])


def other_disk(disks: list[Path], topic: str, partition: int = 0) -> Path:
    """The directory where a replica is not."""
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
