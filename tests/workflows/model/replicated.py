"""Partitions of several replicas for the model's tests, and what their leaders and operators ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from storage_node.model.metadata import PartitionImage
from tests.workflows.model.support import apply, cluster, done
from workflows.model.metadata.state import ClusterState
from workflows.model.metadata.topics import new_partition


def replicated(*replicas: Sequence[int], nodes: int = 5, **more: Any) -> ClusterState:
    """A cluster of so many nodes with a topic `t`, one partition for each list of replicas, of any length."""
    topic = {"name": "t", "partitions": len(replicas), **more}
    state = done(cluster(nodes), {"do": "create_topics", "topics": [topic]})
    partitions = tuple(new_partition(state, index, tuple(each)) for index, each in enumerate(replicas))
    return state.with_topics(replace(state.topics["t"], partitions=partitions))


def row(state: ClusterState, index: int = 0, topic: str = "t") -> PartitionImage:
    """A partition of the state."""
    return state.topics[topic].partitions[index]


def isr_row(state: ClusterState, isr: Iterable[int], index: int = 0, **other: Any) -> list[Any]:
    """A row of alter_partitions as the partition's leader sends it; `other` overrides its epochs."""
    held = row(state, index)
    return [
        "t",
        index,
        other.get("topic_id", state.topics["t"].id),
        other.get("leader_epoch", held.leader_epoch),
        other.get("partition_epoch", held.partition_epoch),
        [[node, other.get("epoch", state.nodes[node].broker_epoch if node in state.nodes else -1)] for node in isr],
    ]


def isr_command(state: ClusterState, isr: Iterable[int], index: int = 0, **other: Any) -> dict[str, Any]:
    """The command that the partition's leader (or `node`) sends."""
    node = other.pop("node", row(state, index).leader)
    return {"do": "alter_partitions", "node": node, "partitions": [isr_row(state, isr, index, **other)]}


def with_isr(state: ClusterState, isr: Iterable[int], index: int = 0) -> ClusterState:
    """The state after the partition's leader has had its ISR changed; it may have been replaced by that."""
    change = apply(state, isr_command(state, isr, index))
    assert change.results[0].get("error", 0) in (0, 108), change.results
    return change.state


def reassign(*wanted: tuple[int, Sequence[int] | None], topic: str = "t", **more: Any) -> dict[str, Any]:
    """The command for some partitions: index, and the target or None."""
    rows = [[topic, index, None if target is None else list(target)] for index, target in wanted]
    return {"do": "alter_reassignments", "partitions": rows, **more}


def elect(*indexes: int, unclean: bool = False) -> dict[str, Any]:
    return {"do": "elect_leaders", "partitions": [["t", index] for index in indexes], "unclean": unclean}
