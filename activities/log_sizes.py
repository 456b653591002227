"""How many bytes a node holds of partitions: DescribeLogDirs as a client asks it, for the nodes that lead them."""

from __future__ import annotations

from collections.abc import Iterable

from storage_node.protocol.codec import group
from storage_node.protocol.kafka_client import ask
from storage_node.protocol.table import DESCRIBE_LOG_DIRS
from storage_node.types import TopicPartition

VERSION = 1


def log_sizes(
    host: str, port: int, wanted: Iterable[TopicPartition], timeout: float = 5.0
) -> dict[TopicPartition, int]:
    """Bytes of the replicas that a node holds, copies under way left out; what it does not hold is missing.

    Blocking. Raises OSError where the node does not answer, or not as Kafka does.
    """
    topics = [{"topic": name, "partitions": each} for name, each in group([(tp.topic, tp.partition) for tp in wanted])]
    answer = ask(host, port, DESCRIBE_LOG_DIRS, VERSION, timeout=timeout, client="rehome-sizes", topics=topics)
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
        if not row.is_future_key
    }
