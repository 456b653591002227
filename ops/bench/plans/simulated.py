"""A Kafka cluster in memory, with what plans need of its admin API: moves between directories that take simulated time.

What a real cluster does on its own machines costs nothing here; what the worker does with its responses costs what it
costs beside a real one, without the wire.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from activities.kafka_admin.admin import KafkaAdmin, LogDirectoryView, PlacedReplica, Reassignment
from activities.kafka_admin.client_config import ClientConfig
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition

#: Bytes per second that a directory is written with, and seconds of each request.
RATE, LATENCY = 100_000_000, 0.002
CLUSTER_ID = "simulated0000000000000"
TOPIC_PARTITIONS = 100
DISK_SIZE = 1 << 42


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a cluster; `size` is the bytes of a replica, and every partition has `replicas` of them."""

    partitions: int
    brokers: int = 12
    disks: int = 4
    replicas: int = 3
    size: int = 256 << 10

    @property
    def nodes(self) -> range:
        """Return the brokers' ids."""
        return range(1, self.brokers + 1)

    @property
    def paths(self) -> list[str]:
        """Return the log directories of each broker."""
        return [f"/data/disk-{number}" for number in range(1, self.disks + 1)]

    def partition(self, number: int) -> TopicPartition:
        """Return a partition by its number."""
        return TopicPartition(f"topic-{number // TOPIC_PARTITIONS:04}", number % TOPIC_PARTITIONS)

    def nodes_of(self, number: int) -> list[int]:
        """Return the replicas of a partition, the leader first."""
        return [(number + at * (1 + number // self.brokers % 3)) % self.brokers + 1 for at in range(self.replicas)]

    def path_of(self, number: int, node: int) -> str:
        """Return where a replica lies before the plan."""
        return self.paths[(number // self.brokers + node) % self.disks]

    def plan(self) -> dict[str, Any]:
        """Return a plan that moves one replica of each partition to another directory of its broker."""
        return {
            "version": 1,
            "partitions": [
                {
                    "topic": self.partition(number).topic,
                    "partition": self.partition(number).partition,
                    "replicas": self.nodes_of(number),
                    "log_dirs": self._directories(number),
                }
                for number in range(self.partitions)
            ],
        }

    def _directories(self, number: int) -> list[str]:
        moved = number // 7 % self.replicas
        return [self._next(number, node) if at == moved else "any" for at, node in enumerate(self.nodes_of(number))]

    def _next(self, number: int, node: int) -> str:
        at = self.paths.index(self.path_of(number, node))
        return self.paths[(at + 1 + number // 11 % (self.disks - 1)) % self.disks]


@dataclass
class SimulatedCluster:
    """The state; thread-safe. `counted` is called with the name of each request."""

    shape: Shape
    counted: Callable[[str], None] = lambda name: None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        numbers = range(self.shape.partitions)
        self.replicas = {self.shape.partition(number): self.shape.nodes_of(number) for number in numbers}
        self.by_topic: dict[str, list[TopicPartition]] = {}
        for tp in self.replicas:
            self.by_topic.setdefault(tp.topic, []).append(tp)
        self.placed: dict[int, dict[TopicPartition, str]] = {node: {} for node in self.shape.nodes}
        for number in numbers:
            for node in self.shape.nodes_of(number):
                self.placed[node][self.shape.partition(number)] = self.shape.path_of(number, node)
        self.futures: dict[int, dict[TopicPartition, tuple[str, float]]] = {node: {} for node in self.shape.nodes}
        self._busy: dict[tuple[int, str], float] = {}
        self._ends: list[tuple[float, int, TopicPartition]] = []

    def count(self, kind: str) -> None:
        """Count a request, which takes its time."""
        self.counted(kind)
        time.sleep(LATENCY)

    def settle(self) -> None:
        """Complete the copies whose time is over."""
        now = time.monotonic()
        while self._ends and self._ends[0][0] <= now:
            end, node, tp = heapq.heappop(self._ends)
            found = self.futures[node].get(tp)
            if found is not None and found[1] == end:
                self.placed[node][tp] = found[0]
                del self.futures[node][tp]

    def move(self, node: int, tp: TopicPartition, path: str) -> ErrorCode:
        """Begin a copy, as AlterReplicaLogDirs does, after those that its two directories have already."""
        self.settle()
        if tp not in self.placed[node]:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        source = self.placed[node][tp]
        self.futures[node].pop(tp, None)
        if source == path:
            return ErrorCode.NONE
        begin = max(time.monotonic(), *(self._busy.get((node, each), 0.0) for each in (source, path)))
        end = begin + self.shape.size / RATE
        self._busy[node, source] = self._busy[node, path] = end
        self.futures[node][tp] = path, end
        heapq.heappush(self._ends, (end, node, tp))
        return ErrorCode.NONE


class SimulatedAdmin(KafkaAdmin):
    """A client of a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(ClientConfig("simulated:9092"))
        self._of = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def cluster(self) -> tuple[str, dict[int, str | None]]:
        self._of.count("DescribeCluster")
        return CLUSTER_ID, dict.fromkeys(self._of.shape.nodes)

    def topics(self) -> list[str]:
        self._of.count("Metadata")
        return sorted(self._of.by_topic)

    def partitions(self, topics: Sequence[str] | None = None) -> dict[TopicPartition, dict[str, Any]]:
        self._of.count("Metadata")
        names = self._of.by_topic if topics is None else [name for name in topics if name in self._of.by_topic]
        return {
            tp: {
                "partition": tp.partition,
                "leader": self._of.replicas[tp][0],
                "replicas": self._of.replicas[tp],
                "isr": self._of.replicas[tp],
                "offline": [],
            }
            for name in names
            for tp in self._of.by_topic[name]
        }

    def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Reassignment]:
        self._of.count("ListPartitionReassignments")
        return {}

    def log_dirs(
        self, nodes: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[LogDirectoryView]:
        self._of.count("DescribeLogDirs")
        wanted = None if partitions is None else list(partitions)
        with self._of.lock:
            self._of.settle()
            return [view for node in nodes or self._of.shape.nodes for view in self._views(node, wanted)]

    def _views(self, node: int, wanted: list[TopicPartition] | None) -> list[LogDirectoryView]:
        size, now = self._of.shape.size, time.monotonic()
        held, copied = self._of.placed[node], self._of.futures[node]
        rows: dict[str, list[PlacedReplica]] = {path: [] for path in self._of.shape.paths}
        for tp in held if wanted is None else wanted:
            if tp in held:
                rows[held[tp]].append(PlacedReplica(node, held[tp], tp, size, 0, False))
            if tp in copied:
                path, end = copied[tp]
                done = max(0, min(size, size - int((end - now) * RATE)))
                rows[path].append(PlacedReplica(node, path, tp, done, size - done, True))
        return [
            LogDirectoryView(node, path, "", DISK_SIZE, DISK_SIZE // 2, tuple(replicas))
            for path, replicas in rows.items()
        ]

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        self._of.count("AlterReplicaLogDirs")
        with self._of.lock:
            return {tp: self._of.move(node, tp, path) for tp, path in moves.items()}
