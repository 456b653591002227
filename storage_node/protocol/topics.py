"""CreateTopics, DeleteTopics, CreatePartitions: read from the wire, carried out by the node's administration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_node.admin import TopicSpec
from storage_node.errors import ErrorCode
from storage_node.protocol.codec import id_of, milliseconds, uuid_of
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request

if TYPE_CHECKING:
    from storage_node.node import Node


async def create_topics(node: Node, request: Request) -> Answer:
    """Create topics, each with its own result; answers when this node has applied them."""
    call = request.decode()
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
    ]
    done = await node.admin.create_topics(specs, call.validate_only, milliseconds(call.timeout) / 1000)
    rows: list[dict[str, Any]] = []
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
                    {"name": name, "value": value, "config_source": int(source)}
                    for name, (value, source) in result.configs.items()
                ],
            }
        else:
            row["configs"] = None if request.version >= 5 else ()
        rows.append(row)
    return request.encode(topics=rows)


async def delete_topics(node: Node, request: Request) -> Answer:
    """Delete topics by name (or, from version 6 on, by id); answers when this node has applied it."""
    call = request.decode()
    image = node.metadata.image
    asked: list[tuple[str | None, str]] = []
    if request.version >= 6:
        for state in call.topics:
            topic_id = id_of(state.topic_id)
            found = image.topic_by_id(topic_id) if state.name is None else None
            asked.append((found.name if found else state.name, topic_id))
    else:
        asked = [(name, "") for name in call.topic_names]
    names = [name for name, _ in asked if name is not None]
    done = iter(await node.admin.delete_topics(names, milliseconds(call.timeout) / 1000))
    rows = []
    for name, topic_id in asked:
        if name is None:
            message = "This server does not host this topic ID."
            code = ErrorCode.UNKNOWN_TOPIC_ID
            rows.append({"name": None, "topic_id": uuid_of(topic_id), "error_code": code, "error_message": message})
            continue
        result = next(done)
        row: dict[str, Any] = {
            "name": name,
            "topic_id": uuid_of(result.topic_id or topic_id),
            "error_code": result.error,
        }
        rows.append(row | {"error_message": result.message if result.error else None})
    return request.encode(responses=rows)


async def create_partitions(node: Node, request: Request) -> Answer:
    """Refused: a topic has the number of partitions it was created with."""
    call = request.decode()
    message = "this cluster does not add partitions to a topic; create it with the number of partitions it needs"
    rows = [
        {"name": topic.name, "error_code": ErrorCode.INVALID_PARTITIONS, "error_message": message}
        for topic in call.topics
    ]
    return request.encode(results=rows)
