"""AlterReplicaLogDirs (34) and DescribeLogDirs (35) on the wire; the flow is in `storage_node.alter_log_dirs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from storage_node.alter_log_dirs import LogDirRequests
from storage_node.model.ids import TopicPartition
from storage_node.protocol.apis.metadata_responses import LARGE
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.off_loop import off_loop_when
from storage_node.protocol.request import Request
from storage_node.wire.codec import group

if TYPE_CHECKING:
    from storage_node.alter_log_dirs import DirectoryInfo


class LogDirsHost(Protocol):
    """The node, as the requests for log directories see it."""

    @property
    def log_dirs(self) -> LogDirRequests: ...


async def alter_replica_log_dirs(node: LogDirsHost, request: Request) -> Answer:
    """Request moves between directories; each partition has its own result, and its last directory counts."""
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


async def describe_log_dirs(node: LogDirsHost, request: Request) -> Answer:
    """Return every configured directory with the requested replicas and copies (topics=null: all, empty: none)."""
    call = request.decode()
    requested = None
    if call.topics is not None:
        requested = await off_loop_when(
            sum(len(topic.partitions) for topic in call.topics),
            lambda: {TopicPartition(topic.topic, index) for topic in call.topics for index in topic.partitions},
        )
    rows = await node.log_dirs.describe(requested)
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
