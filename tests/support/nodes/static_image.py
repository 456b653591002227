"""Cluster images made by hand, for nodes without a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage_node.model.assignment import Assignment
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from tests.support.nodes.node_harness import CLUSTER_ID

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def row(
    replicas: Sequence[int] = (1, 2, 3),
    *,
    leader: int = 1,
    epoch: int = 1,
    partition_epoch: int = 0,
    isr: Sequence[int] = (),
    partition: int = 0,
) -> PartitionImage:
    """A partition's row; everybody is in sync unless `isr` says less."""
    given = tuple(replicas)
    return PartitionImage(
        partition,
        Assignment(given),
        directories=("",) * len(given),
        generations=(0,) * len(given),
        isr=tuple(isr) or given,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
    )


def image(
    version: int,
    rows: Sequence[PartitionImage],
    ports: Mapping[int, int],
    *,
    generation: int = 1,
    topic: str = "t",
    topic_id: str = TOPIC_ID,
    configs: Mapping[str, str] | None = None,
    broker: Mapping[str, str] | None = None,
    gone: Mapping[str, str] | None = None,
) -> ClusterImage:
    """One topic with these partitions, nodes at these ports of the loopback; `broker`: configs of all brokers."""
    partitions = tuple(sorted(rows, key=lambda each: each.index))
    topics = {topic: TopicImage(topic, topic_id, dict(configs or {}), partitions)}
    nodes = {node: NodeImage(node, f"i{node}", 10 + node, "127.0.0.1", port) for node, port in ports.items()}
    return ClusterImage(
        CLUSTER_ID,
        generation,
        version,
        topics if rows else {},
        dict(gone or {}),
        nodes,
        {("broker", ""): dict(broker or {})},
    )
