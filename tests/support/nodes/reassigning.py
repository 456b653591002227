"""Requests for reassignments by hand, and what is answered to them, by topic and partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Ongoing = tuple[list[int], list[int], list[int]]


def wanted_topics(wanted: Mapping[tuple[str, int], Sequence[int] | None]) -> list[dict[str, Any]]:
    """For AlterPartitionReassignments: (topic, partition) -> nodes, None to cancel."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), replicas in wanted.items():
        nodes = None if replicas is None else list(replicas)
        rows.setdefault(topic, []).append({"partition_index": partition, "replicas": nodes})
    return [{"name": topic, "partitions": partitions} for topic, partitions in rows.items()]


def results(answer: Any) -> dict[tuple[str, int], tuple[int, str | None]]:
    """Error code and message of each, as AlterPartitionReassignments answers them."""
    return {
        (topic.name, row.partition_index): (int(row.error_code), row.error_message)
        for topic in answer.responses
        for row in topic.partitions
    }


def ongoing(answer: Any) -> dict[tuple[str, int], Ongoing]:
    """Replicas, adding, removing of each, as ListPartitionReassignments answers them."""
    return {
        (topic.name, row.partition_index): (
            list(row.replicas),
            list(row.adding_replicas),
            list(row.removing_replicas),
        )
        for topic in answer.topics
        for row in topic.partitions
    }
