"""AlterReplicaLogDirs (34) and DescribeLogDirs (35) on the wire; the flow is in `storage_node.alter_log_dirs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage_node.protocol.answers import LARGE
from storage_node.protocol.codec import group
from storage_node.protocol.framing import Answer
from storage_node.protocol.off_loop import off_loop_when
from storage_node.protocol.request import Request
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.alter_log_dirs import DirectoryInfo
    from storage_node.node import Node


async def alter_replica_log_dirs(node: Node, request: Request) -> Answer:
    """Each partition with its own result; a partition named twice goes to the last directory named."""
    call = request.decode()
    wanted = await off_loop_when(
        sum(len(topic.partitions) for directory in call.dirs for topic in directory.topics),
        lambda: {
            TopicPartition(topic.name, partition): directory.path
            for directory in call.dirs
            for topic in directory.topics
            for partition in topic.partitions
        },
    )
    codes = await node.log_dirs.alter(wanted)
    rows = [(tp.topic, {"partition_index": tp.partition, "error_code": codes[tp]}) for tp in wanted]
    return request.encode(results=[{"topic_name": name, "partitions": items} for name, items in group(rows)])


async def describe_log_dirs(node: Node, request: Request) -> Answer:
    """Every configured directory, with the replicas and copies asked for (null: all, none: none)."""
    call = request.decode()
    asked = None
    if call.topics is not None:
        asked = await off_loop_when(
            sum(len(topic.partitions) for topic in call.topics),
            lambda: {TopicPartition(topic.topic, index) for topic in call.topics for index in topic.partitions},
        )
    rows = await node.log_dirs.describe(asked)
    if sum(len(row.replicas) for row in rows) > LARGE:
        return await asyncio.to_thread(_described, request, rows)
    return _described(request, rows)


def _described(request: Request, rows: Sequence[DirectoryInfo]) -> Answer:
    results = []
    for row in rows:
        replicas = [
            (
                replica.tp.topic,
                {
                    "partition_index": replica.tp.partition,
                    "partition_size": replica.size,
                    "offset_lag": replica.lag,
                    "is_future_key": replica.is_future,
                },
            )
            for replica in row.replicas
        ]
        results.append(
            {
                "error_code": row.error,
                "log_dir": row.path,
                "topics": [{"name": name, "partitions": items} for name, items in group(replicas)],
                "total_bytes": row.total_bytes,
                "usable_bytes": row.usable_bytes,
                "is_cordoned": row.cordoned,
            }
        )
    return request.encode(results=results)
