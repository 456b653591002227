"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage_node.admin import TopicSpec
from storage_node.model.commands import MorePartitions
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.protocol.host import AdminHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request
from storage_node.wire.codec import id_of, milliseconds, uuid_of


async def create_topics(node: AdminHost, request: Request) -> Answer:
    """Create topics; each has its own result. The response follows once this node has applied them."""
    call = request.decode()
    times = Counter(topic.name for topic in call.topics)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "Duplicate topic name.",
        }
        for name, count in times.items()
        if count > 1
    ]
    specs = [
        TopicSpec(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {config.name: config.value for config in topic.configs},
            {row.partition_index: tuple(row.broker_ids) for row in topic.assignments},
            len(topic.assignments),
        )
        for topic in call.topics
        if times[topic.name] == 1
    ]
    done = await node.admin.create_topics(specs, call.validate_only, milliseconds(call.timeout) / 1000)
    for spec, result in zip(specs, done, strict=True):
        row: dict[str, Any] = {
            "name": spec.name,
            "topic_id": uuid_of(result.topic_id),
            "error_code": result.error,
            "error_message": result.message if result.error else None,
        }
        if not result.error:
            row |= {
                "num_partitions": result.partitions,
                "replication_factor": result.replication_factor,
                "configs": [
                    {"name": row.name, "value": row.value, "config_source": int(row.source)} for row in result.configs
                ],
            }
        rows.append(row)
    return request.encode(topics=rows)


async def delete_topics(node: AdminHost, request: Request) -> Answer:
    """Delete topics by name (or, from version 6 on, by id).

    The response follows once this node has applied the deletions.
    """
    call = request.decode()
    requested = [_Named(name) for name in call.topic_names] if request.version < 6 else []
    if request.version >= 6:
        requested = [_Named(state.name, id_of(state.topic_id)) for state in call.topics]
    rows, names = _to_delete(node.metadata.image, requested)
    done = await node.admin.delete_topics(list(names), milliseconds(call.timeout) / 1000)
    for (name, topic_id), result in zip(names.items(), done, strict=True):
        row = {"name": name, "topic_id": uuid_of(result.topic_id or topic_id), "error_code": result.error}
        rows.append(row | {"error_message": result.message if result.error else None})
    return request.encode(responses=rows)


@dataclass(frozen=True, slots=True)
class _Named:
    """A topic as the request names it: by its name or by its id."""

    name: str | None
    id: str = ""


def _to_delete(image: ClusterImage, asked: Sequence[_Named]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the results of the invalid requests, with Kafka's messages, and the other topics' names with their ids.

    A topic that the request names twice, by name or id, is not deleted.
    """
    refused: list[dict[str, Any]] = []
    wanted: dict[str, str] = {}

    def refuse(each: _Named, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        refused.append({"name": each.name, "topic_id": uuid_of(each.id), "error_code": code, "error_message": message})

    names = Counter(each.name for each in asked if each.name is not None and not each.id)
    ids = Counter(each.id for each in asked if each.name is None and each.id)
    for each in dict.fromkeys(asked):
        if each.name is not None and each.id:
            refuse(each, "You may not specify both topic name and topic id.")
        elif each.name is not None and names[each.name] > 1:
            refuse(each, "Duplicate topic name.")
        elif each.name is not None:
            topic = image.topics.get(each.name)
            if topic is not None and ids[topic.id]:
                refuse(each, "The provided topic name maps to an ID that was already supplied.")
            else:
                wanted[each.name] = ""
        elif not each.id:
            refuse(each, "Neither topic name nor id were specified.")
        elif ids[each.id] > 1:
            refuse(each, "Duplicate topic id.")
        elif (topic := image.topic_by_id(each.id)) is None:
            refuse(each, "This server does not host this topic ID.", ErrorCode.UNKNOWN_TOPIC_ID)
        elif not names[topic.name]:
            wanted[topic.name] = each.id
        else:
            refuse(each, "The provided topic name maps to an ID that was already supplied.")
    return refused, wanted


async def create_partitions(node: AdminHost, request: Request) -> Answer:
    """Add partitions to topics; each topic has its own result. The response follows once this node has applied them."""
    call = request.decode()
    times = Counter(topic.name for topic in call.topics)
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(row.broker_ids) for row in topic.assignments),
        )
        for topic in call.topics
        if times[topic.name] == 1
    ]
    rows = [
        {"name": name, "error_code": ErrorCode.INVALID_REQUEST, "error_message": "Duplicate topic name."}
        for name, count in times.items()
        if count > 1
    ]
    seconds = milliseconds(call.timeout) / 1000
    done = await node.admin.create_partitions(wanted, call.validate_only, seconds)
    for topic, result in zip(wanted, done, strict=True):
        message = result.message or None if result.error else None
        rows.append({"name": topic.name, "error_code": result.error, "error_message": message})
    return request.encode(results=rows)
