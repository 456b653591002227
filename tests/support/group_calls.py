"""Calls of the APIs of consumer groups, as clients make them."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

from storage_node.wire.codec import uuid_of
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    *range(8, 17),
    42,
    47,
)
NOW = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def send_join(client: Client, version: int, group: str, member: str = "", **fields: Any) -> None:
    values = {
        "group_id": group,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
    }
    client.send(JOIN, version, values | fields)


def join(client: Client, version: int, group: str, member: str = "", **fields: Any) -> Any:
    send_join(client, version, group, member, **fields)
    return client.receive()[1]


def enter(client: Client, version: int, group: str, **fields: Any) -> Any:
    """Join as a member without an id, as a client of that version does."""
    answer = join(client, version, group, **fields)
    if version >= 4 and "group_instance_id" not in fields:
        assert int(answer.error_code) == 79 and answer.member_id
        answer = join(client, version, group, answer.member_id, **fields)
    assert int(answer.error_code) == 0, answer
    return answer


def send_sync(client: Client, version: int, group: str, joined: Any, data: bytes = b"assigned", **fields: Any) -> None:
    assignments = [{"member_id": member.member_id, "assignment": data} for member in joined.members]
    values = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": assignments,
    }
    client.send(SYNC, version, values | fields)


def sync(client: Client, version: int, group: str, joined: Any, data: bytes = b"assigned", **fields: Any) -> Any:
    send_sync(client, version, group, joined, data, **fields)
    return client.receive()[1]


def beat(client: Client, version: int, group: str, generation: int, member: str) -> int:
    values = {"group_id": group, "generation_id": generation, "member_id": member}
    return int(client.ask(HEARTBEAT, version, values).error_code)


def leave(client: Client, version: int, group: str, member: str, instance: str | None = None) -> int:
    values: dict[str, Any] = {"group_id": group}
    if version < 3:
        return int(client.ask(LEAVE, version, values | {"member_id": member}).error_code)
    values["members"] = [{"member_id": member, "group_instance_id": instance}]
    answer = client.ask(LEAVE, version, values)
    return int(answer.error_code) or int(answer.members[0].error_code)


def topic_row(shared: Harness, version: int, topic: str) -> dict[str, Any]:
    if version < 10:
        return {"name": topic}
    known = shared.node.metadata.image.topics.get(topic)
    return {"topic_id": uuid_of(known.id if known else "A" * 21 + "g")}


def commit(
    shared: Harness,
    client: Client,
    group: str,
    offsets: dict[tuple[str, int], int],
    *,
    version: int = 9,
    member: str = "",
    generation: int = -1,
    metadata: str | None = "note",
) -> list[int]:
    topics = [
        topic_row(shared, version, topic)
        | {
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": 5,
                    "committed_metadata": metadata,
                }
            ]
        }
        for (topic, index), offset in offsets.items()
    ]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "retention_time": timedelta(milliseconds=-1),
        "topics": topics,
    }
    answer = client.ask(COMMIT, version, values)
    return [int(row.error_code) for topic in answer.topics for row in topic.partitions]


def fetch(
    shared: Harness, client: Client, group: str, wanted: dict[str, list[int]] | None, version: int = 9
) -> tuple[int, list[tuple[Any, int, int, int, str | None, int]]]:
    """The group's error, and (topic, partition, offset, epoch, metadata, error) rows."""
    topics = None
    if wanted is not None:
        topics = [
            topic_row(shared, version, topic) | {"partition_indexes": indexes} for topic, indexes in wanted.items()
        ]
    if version >= 8:
        values: dict[str, Any] = {"groups": [{"group_id": group, "topics": topics}]}
        answer = client.ask(FETCH, version, values).groups[0]
    else:
        answer = client.ask(FETCH, version, {"group_id": group, "topics": topics})
    rows = [
        (
            getattr(topic, "name", None) or topic.topic_id,
            row.partition_index,
            row.committed_offset,
            getattr(row, "committed_leader_epoch", -1),
            row.metadata,
            int(row.error_code),
        )
        for topic in answer.topics
        for row in topic.partitions
    ]
    return int(getattr(answer, "error_code", 0)), rows


def described(client: Client, group: str, version: int = 5) -> Any:
    return client.ask(DESCRIBE, version, {"groups": [group]}).groups[0]
