"""The sizes of a leader's logs, by DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterable

from storage_node.model.ids import TopicPartition
from storage_node.wire.client.kafka_client import ask
from storage_node.wire.codec import group
from storage_node.wire.table import DESCRIBE_LOG_DIRS

VERSION = 1


def log_sizes(
    host: str, port: int, wanted: Iterable[TopicPartition], timeout: float = 5.0
) -> dict[TopicPartition, int]:
    """Return the bytes of a node's replicas, without future copies and without partitions that it does not host.

    Blocking. Raises OSError if the node does not respond, or its response is invalid.
    """
    topics = [{"topic": name, "partitions": each} for name, each in group([(tp.topic, tp.partition) for tp in wanted])]
    response = ask(host, port, DESCRIBE_LOG_DIRS, VERSION, timeout=timeout, client="rehome-sizes", topics=topics)
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for directory in response.results
        for topic in directory.topics
        for row in topic.partitions
        if not row.is_future_key
    }
