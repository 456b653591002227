"""Topics by their ids in Produce and Fetch (KIP-516)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_node.errors import ErrorCode, RequestRefused
from storage_node.protocol.topic_rows import text_id

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition


def topic_named(node: Node, raw: bytes) -> str:
    """The name of the topic with these 16 bytes; raises RequestRefused with UNKNOWN_TOPIC_ID."""
    topic = node.metadata.image.topic_by_id(text_id(raw))
    if topic is None:
        raise RequestRefused("This server does not host this topic ID.", ErrorCode.UNKNOWN_TOPIC_ID)
    return topic.name


def same_topic(partition: Partition, raw: bytes) -> None:
    """Raises RequestRefused with INCONSISTENT_TOPIC_ID for a replica of another topic of the same name."""
    if partition.topic_id != text_id(raw) and partition.topic_id:
        message = f"The log of {partition.tp} is of another topic of that name."
        raise RequestRefused(message, ErrorCode.INCONSISTENT_TOPIC_ID)
