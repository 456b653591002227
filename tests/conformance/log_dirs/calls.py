"""AlterReplicaLogDirs and DescribeLogDirs by hand, and moves that are held where a test wants to look at them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.clusters import Cluster

NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
REPLICA_NOT_AVAILABLE = 9
INVALID_TOPIC = 17
STORAGE_ERROR = 56
LOG_DIR_NOT_FOUND = 57

#: Seconds until an accepted move is expected to be over.
MOVED = 60.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica in one directory, or its moving copy: size in bytes, lag in offsets."""

    size: int
    lag: int


@dataclass(frozen=True, slots=True)
class Directory:
    """One log directory: error code, volume bytes (-1: not told), (topic, partition, is future) -> replica."""

    error: int
    total: int
    usable: int
    cordoned: bool
    replicas: Mapping[tuple[str, int, bool], Replica] = field(default_factory=dict)
    topics: tuple[Any, ...] = ()


def alter(cluster: Cluster, node: int, wanted: Mapping[tuple[str, int], str], version: int = 2) -> dict[Any, int]:
    """Ask a node for directories; answers the error code per (topic, partition)."""
    dirs = [{"path": path, "topics": [{"name": t, "partitions": [p]}]} for (t, p), path in wanted.items()]
    answer = cluster.call("AlterReplicaLogDirs", version, node=node, dirs=dirs)
    found = [(t.topic_name, p.partition_index, int(p.error_code)) for t in answer.results for p in t.partitions]
    assert len(found) == len({row[:2] for row in found}), f"answered twice: {found}"
    return {(topic, partition): code for topic, partition, code in found}


def ask(cluster: Cluster, node: int, topic: str, path: str, partition: int = 0) -> int:
    """Ask for the directory of one replica; answers the error code."""
    return alter(cluster, node, {(topic, partition): path})[topic, partition]


def describe(
    cluster: Cluster, node: int, topics: Mapping[str, list[int]] | None = None, version: int = 4
) -> dict[str, Directory]:
    """The log directories of a node by path; `topics` None: all."""
    rows = None if topics is None else [{"topic": name, "partitions": parts} for name, parts in topics.items()]
    answer = cluster.call("DescribeLogDirs", version, node=node, topics=rows)
    assert version < 3 or int(answer.error_code) == NONE
    return {
        row.log_dir: Directory(
            int(row.error_code),
            getattr(row, "total_bytes", -1),
            getattr(row, "usable_bytes", -1),
            getattr(row, "is_cordoned", False),
            {
                (topic.name, p.partition_index, p.is_future_key): Replica(p.partition_size, p.offset_lag)
                for topic in row.topics
                for p in topic.partitions
            },
            row.topics,
        )
        for row in answer.results
    }


def where(cluster: Cluster, node: int, topic: str, partition: int = 0, future: bool = False) -> str | None:
    """The directory of a replica, or of its moving copy; None where there is none."""
    rows = describe(cluster, node, {topic: [partition]})
    found = [path for path, row in rows.items() if (topic, partition, future) in row.replicas]
    assert len(found) <= 1, f"{topic}-{partition} stands in {found}"
    return found[0] if found else None


def others(cluster: Cluster, node: int, topic: str, partition: int = 0) -> list[str]:
    """The directories in which the replica is not."""
    here = where(cluster, node, topic, partition)
    assert here is not None
    return [path for path in cluster.log_dirs[node] if path != here]


def wait_until_in(cluster: Cluster, node: int, topic: str, path: str, partition: int = 0) -> None:
    """Until the replica is in the directory and its copy gone."""

    def there() -> bool:
        # While Apache Kafka swaps, both directories may show it as their own.
        rows = describe(cluster, node, {topic: [partition]})
        return [(where, key[2]) for where, row in rows.items() for key in row.replicas] == [(path, False)]

    cluster.eventually(there, f"{topic}-{partition} is in {path}", MOVED)


def on_disk(cluster: Cluster, node: int, topic: str) -> list[str]:
    """Names of all directories of a topic on a node's disks, with what is to be deleted."""
    return sorted(
        entry.name for path in cluster.log_dirs[node] for entry in Path(path).iterdir() if entry.name.startswith(topic)
    )


@contextlib.contextmanager
def moves_held(cluster: Cluster, node: int, rate: int = 1) -> Iterator[None]:
    """While the block runs, moves on the node get `rate` bytes per second."""
    cluster.set_broker_config(node, replica_alter_log_dirs_io_max_bytes_per_second=str(rate))
    try:
        yield
    finally:
        cluster.set_broker_config(node, replica_alter_log_dirs_io_max_bytes_per_second=None)


@contextlib.contextmanager
def failed_directory(cluster: Cluster, node: int, path: str) -> Iterator[None]:
    """A directory that fails while the node runs, by another taking its place; the node is started again after it."""
    directory, aside = Path(path), Path(f"{path}.aside")
    directory.rename(aside)
    directory.write_text("not a directory")
    try:
        cluster.eventually(lambda: describe(cluster, node)[path].error == STORAGE_ERROR, f"{path} is offline")
        yield
    finally:
        cluster.kill(node)
        directory.unlink()
        aside.rename(directory)
        cluster.start(node)


@contextlib.contextmanager
def unreadable_directory(cluster: Cluster, node: int, path: str) -> Iterator[None]:
    """A directory of mode 000 (KIP-113, system test 2); afterwards it is mended, and `rehome` or a start takes it back.

    The nodes run without root's right to pass permissions (`tests/support/permissions.py`).
    """
    directory = Path(path)
    mode = directory.stat().st_mode
    directory.chmod(0)
    try:
        cluster.eventually(lambda: describe(cluster, node)[path].error == STORAGE_ERROR, f"{path} is offline")
        yield
    finally:
        directory.chmod(mode)
        cluster.take_back(node, path)
