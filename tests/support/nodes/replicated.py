"""Looking at the replicas of a partition on several nodes of one process."""

from __future__ import annotations

from collections.abc import Iterable

from storage_node.log.log import Log
from tests.support.nodes.memory_cluster import MemoryCluster
from tests.support.nodes.node_harness import until


def content(log: Log, start: int | None = None, upto: int | None = None) -> bytes:
    """The batches of a log as they are on the disk."""
    at = log.log_start_offset if start is None else start
    end = log.log_end_offset if upto is None else upto
    parts = []
    while at < end:
        found = log.read(at, 1 << 20, upto=end)
        if not found.data:
            break
        parts.append(found.data)
        at = found.next_offset
    return b"".join(parts)


def ends(cluster: MemoryCluster, topic: str, partition: int = 0, nodes: Iterable[int] | None = None) -> list[int]:
    """The log end offset of each replica, -1 where there is none."""
    found = [cluster.replica(node, topic, partition) for node in (nodes or cluster.nodes)]
    return [each.log.log_end_offset if each is not None else -1 for each in found]


def settled(
    cluster: MemoryCluster, topic: str, partition: int = 0, nodes: Iterable[int] | None = None, seconds: float = 30.0
) -> int:
    """Wait until these replicas have the same end, and know that all have it; answers it."""
    names = list(nodes or cluster.nodes)

    def same() -> bool:
        replicas = [cluster.replica(node, topic, partition) for node in names]
        if any(each is None for each in replicas):
            return False
        marks = {(each.log.log_end_offset, each.high_watermark) for each in replicas}
        return len(marks) == 1 and len(set(marks.pop())) == 1

    until(same, seconds, f"all of {names} have all of {topic}-{partition}: {ends(cluster, topic, partition, names)}")
    return ends(cluster, topic, partition, names)[0]


def assert_equal(cluster: MemoryCluster, topic: str, partition: int = 0, nodes: Iterable[int] | None = None) -> None:
    """The replicas hold the same bytes, from where the last of them starts."""
    names = list(nodes or cluster.nodes)
    logs = {node: cluster.replica(node, topic, partition).log for node in names}
    start = max(log.log_start_offset for log in logs.values())
    found = {node: content(log, start) for node, log in logs.items()}
    first = found[names[0]]
    assert all(each == first for each in found.values()), {node: len(each) for node, each in found.items()}


def in_sync(
    cluster: MemoryCluster, topic: str, nodes: Iterable[int], partition: int = 0, seconds: float = 30.0
) -> None:
    """Wait until just these are in sync, as the metadata has it."""
    wanted = set(nodes)
    until(
        lambda: set(cluster.controller.partition(topic, partition).isr) == wanted,
        seconds,
        f"{sorted(wanted)} are in sync, not {cluster.controller.partition(topic, partition).isr}",
    )
