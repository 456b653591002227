"""Topic ids in Produce and Fetch requests (KIP-516)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_node.errors import RequestRefused
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.apis.topic_rows import text_id
from storage_node.protocol.host import MetadataHost

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition


def topic_named(node: MetadataHost, raw: bytes) -> str:
    """Return the name of the topic with this id; raises RequestRefused with UNKNOWN_TOPIC_ID."""
    topic = node.metadata.image.topic_by_id(text_id(raw))
    if topic is None:
        raise RequestRefused("This server does not host this topic ID.", ErrorCode.UNKNOWN_TOPIC_ID)
    return topic.name


def same_topic(partition: Partition, raw: bytes) -> None:
    """Raise RequestRefused with INCONSISTENT_TOPIC_ID for a replica of another topic with the same name."""
    if partition.topic_id != text_id(raw) and partition.topic_id:
        message = f"The log of {partition.tp} belongs to another topic with the same name."
        raise RequestRefused(message, ErrorCode.INCONSISTENT_TOPIC_ID)
