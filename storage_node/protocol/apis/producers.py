"""DescribeProducers (key 61, KIP-664): the idempotent producers in the state of this node's replicas."""

from __future__ import annotations

import asyncio
from typing import Any

from storage_node.errors import LogDirectoryOffline, RequestRefused, StorageError, UnknownTopicOrPartition
from storage_node.model.ids import TopicPartition
from storage_node.protocol.host import ReplicaHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request
from storage_node.wire.codec import group


async def describe_producers(node: ReplicaHost, request: Request) -> Answer:
    """Return each partition's producers that have not expired, from leaders and followers alike.

    Errors are per partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if only other nodes have replicas,
    KAFKA_STORAGE_ERROR if this node's replica is offline.
    """
    # Not on the loop: a partition has all producers of the last day (producer.id.expiration.ms).
    return await asyncio.to_thread(_described, node, request, request.decode())


def _described(node: ReplicaHost, request: Request, call: Any) -> Answer:
    requested = [TopicPartition(topic.name, index) for topic in call.topics for index in topic.partition_indexes]
    rows = [(tp.topic, _row(node, tp)) for tp in requested]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


def _row(node: ReplicaHost, tp: TopicPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"partition_index": tp.partition, "error_message": None, "active_producers": []}
    try:
        replica = node.partition(tp)
        if replica is None:
            node.leader(tp)  # raises the reason
            raise UnknownTopicOrPartition(f"partition {tp} does not exist on this node")
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
