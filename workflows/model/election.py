"""Who leads a partition, once nodes and directories have come or gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workflows.model.state import NO_LEADER, ClusterState, Node, Partition, Topic


def elect(partition: Partition, nodes: Mapping[int, Node], restarted: int | None = None) -> Partition:
    """The partition under the leader it should have: the old one while it can serve, else the first replica in the ISR
    that can.

    A leader that cannot serve leaves; with nobody to follow the partition has none (-1) until one is back, and the ISR
    keeps its last members. The leader epoch rises with every election, also of the same node after it `restarted`.
    """

    def can_serve(node: int) -> bool:
        place = partition.replicas.index(node)
        return node in nodes and nodes[node].holds(partition.directories[place])

    candidates = [node for node in partition.replicas if node in partition.isr and can_serve(node)]
    if partition.leader in candidates and partition.leader != restarted:
        return partition
    if not candidates:
        if partition.leader == NO_LEADER:
            return partition
        return replace(partition, leader=NO_LEADER, partition_epoch=partition.partition_epoch + 1)
    leader = partition.leader if partition.leader in candidates else candidates[0]
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def elect_all(state: ClusterState, node: int, restarted: bool) -> ClusterState:
    """All partitions with a replica on the node, under the leaders they should have."""
    changed: list[Topic] = []
    for topic in state.topics.values():
        if not any(node in partition.replicas for partition in topic.partitions):
            continue
        partitions = tuple(
            elect(each, state.nodes, node if restarted else None) if node in each.replicas else each
            for each in topic.partitions
        )
        if partitions != topic.partitions:
            changed.append(replace(topic, partitions=partitions))
    return state.with_topics(*changed) if changed else state
