"""DescribeProducers (key 61, KIP-664): who writes to a partition idempotently, as this node's replica has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from storage_node.errors import LogDirectoryOffline, RequestRefused, StorageError, UnknownTopicOrPartition
from storage_node.protocol.codec import group
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node


async def describe_producers(node: Node, request: Request) -> Answer:
    """Return each partition's producers that have not expired, from a leader's replica and from a follower's alike.

    Errors are per partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER where other nodes hold the replicas,
    KAFKA_STORAGE_ERROR where this node's replica is offline.
    """
    # Not on the loop: a partition may have as many producers as there were clients within a day.
    return await asyncio.to_thread(_described, node, request, request.decode())


def _described(node: Node, request: Request, call: Any) -> Answer:
    asked = [TopicPartition(topic.name, index) for topic in call.topics for index in topic.partition_indexes]
    rows = [(tp.topic, _row(node, tp)) for tp in asked]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


def _row(node: Node, tp: TopicPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"partition_index": tp.partition, "error_message": None, "active_producers": []}
    try:
        replica = node.partition(tp)
        if replica is None:
            node.leader(tp)  # raises why there is none
            raise UnknownTopicOrPartition(f"this node knows no partition {tp}")
        if replica.offline:
            raise LogDirectoryOffline(replica.directory.name, replica.offline)
    except (RequestRefused, StorageError) as error:
        return row | {"error_code": error.code, "error_message": str(error)}
    row["active_producers"] = [
        {
            "producer_id": number,
            "producer_epoch": known.epoch,
            "last_sequence": known.last_sequence,
            "last_timestamp": known.timestamp,
            "coordinator_epoch": known.coordinator_epoch,
            "current_txn_start_offset": known.transaction_start,
        }
        for number, known in replica.log.producers.known().items()
    ]
    return row | {"error_code": 0}
