"""OffsetCommit, OffsetFetch, OffsetDelete.

As in Kafka, the group with the empty name may have offsets, but no members.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from storage_node.groups.group import Group
from storage_node.groups.offsets import Offset
from storage_node.groups.room import Commit
from storage_node.groups.values import GroupRefused
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import TopicImage
from storage_node.protocol.host import GroupsHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.off_loop import off_loop_when
from storage_node.protocol.network.turns import in_slices
from storage_node.protocol.request import MANY, Request
from storage_node.wire.codec import id_of, milliseconds, uuid_of

#: The most characters of metadata in one commit; no consumer is known to send as many.
LARGEST_COMMIT: Final = 8 << 20

#: A commit's retention time that stands for offsets.retention.minutes.
_AS_CONFIGURED: Final = -1

_METADATA: Final = 4
"""The index of the metadata in an offset's row."""

_IDS: Final = 10
"""The first version with topic ids instead of names."""


async def offset_commit(node: GroupsHost, request: Request) -> Answer:
    """Commit offsets; the response follows once they are on disk."""
    call = request.decode()
    instance = getattr(call, "group_instance_id", None)
    generation = call.generation_id_or_member_epoch
    topics = [(_topic(node, request.version, topic), topic) for topic in call.topics]
    count = sum(len(topic.partitions) for topic in call.topics)
    prepare = partial(_prepare, node, call, topics, request.version, f"/{request.peer}")
    errors, commit = await asyncio.to_thread(prepare) if count > MANY else prepare()
    # Checked last, so that no generation ends between the check and the entry.
    try:
        whole = node.groups.may_commit(call.group_id, call.member_id, instance, generation)
        if whole is ErrorCode.GROUP_ID_NOT_FOUND and request.version < 9:
            whole = ErrorCode.ILLEGAL_GENERATION
    except GroupRefused as refused:
        whole = refused.code
    if whole is ErrorCode.NONE and sum(len(row[_METADATA]) for row in commit.rows) > LARGEST_COMMIT:
        whole = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    kept = await node.groups.commit(call.group_id, commit) if whole is ErrorCode.NONE else whole

    def answer() -> dict[str, Any]:
        rows = [
            _head(request.version, topic)
            | {
                "partitions": [
                    {"partition_index": row.partition_index, "error_code": whole or errors[id(row)] or kept}
                    for row in topic.partitions
                ]
            }
            for _, topic in topics
        ]
        return {"topics": rows}

    return request.encode_many(count, answer)


def _prepare(
    node: GroupsHost, call: Any, topics: list[tuple[TopicImage | None, Any]], version: int, host: str
) -> tuple[dict[int, ErrorCode], Commit]:
    """Return the error of each row, by the row's identity, and the offsets of the rows without an error."""
    most = node.config.groups.offset_metadata
    errors = {id(row): _may_commit(known, row, version, most) for known, topic in topics for row in topic.partitions}
    now = time.time_ns() // 1_000_000
    expires = _expires(call, now)
    offsets = (
        (known.name, row.partition_index, _offset(row, known.id, now, expires, host))
        for known, topic in topics
        for row in topic.partitions
        if known is not None and errors[id(row)] is ErrorCode.NONE
    )
    return errors, Commit.of(call.group_id, node.groups.data.get(call.group_id), offsets, host)


def _expires(call: Any, now: int) -> int | None:
    """Return when the offsets of a commit with its own retention time (up to version 4) expire, in milliseconds."""
    retention = getattr(call, "retention_time", None)
    own = milliseconds(retention) if retention is not None else _AS_CONFIGURED
    return None if own == _AS_CONFIGURED else now + own


def _may_commit(topic: TopicImage | None, row: Any, version: int, most: int) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= _IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.partition(row.partition_index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(row.committed_metadata or "") > most:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _offset(row: Any, topic_id: str, now: int, expires: int | None, host: str) -> Offset:
    epoch = getattr(row, "committed_leader_epoch", -1)
    return Offset(row.committed_offset, epoch, row.committed_metadata or "", now, topic_id, expires, host)


async def offset_fetch(node: GroupsHost, request: Request) -> Answer:
    """Return the committed offsets of partitions, or (from version 2 on, topics=null) of all.

    From version 8 on a request may name several groups (KIP-709).
    """
    call = request.decode()
    version = request.version
    if version >= 8:
        count = sum(_count(node, group) for group in call.groups)
        return request.encode_many(count, lambda: {"groups": [_fetch(node, version, group) for group in call.groups]})

    def fetched() -> dict[str, Any]:
        found = _fetch(node, version, call)
        error = found["error_code"]
        if version < 2 and error:
            # These versions have no error of the group, only one of each partition.
            found["topics"] = [
                _head(version, topic) | {"partitions": [_none(index, error) for index in topic.partition_indexes]}
                for topic in call.topics
            ]
        return {"error_code": error, "topics": found["topics"]}

    return request.encode_many(_count(node, call), fetched)


def _count(node: GroupsHost, group: Any) -> int:
    """Estimate how many offsets the response has of a group, plus those of the copy that `_fetch` makes."""
    data = node.groups.data.get(group.group_id)
    return (len(data.offsets) if data is not None else 0) + sum(
        1 + len(topic.partition_indexes) for topic in group.topics or ()
    )


def _fetch(node: GroupsHost, version: int, group: Any) -> dict[str, Any]:
    response: dict[str, Any] = {"group_id": group.group_id, "error_code": ErrorCode.NONE, "topics": []}
    try:
        node.groups.check(group.group_id)
    except GroupRefused as refused:
        return response | {"error_code": refused.code}
    offsets = node.groups.offsets(group.group_id)
    if group.topics is None and version >= 2:
        return response | {"topics": _all(node, version, offsets)}
    for topic in group.topics or ():
        known = _topic(node, version, topic)
        if version >= _IDS and known is None:
            rows = [_none(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
        else:
            name = known.name if known is not None else topic.name
            rows = [_row(index, offsets.get((name, index))) for index in topic.partition_indexes]
        response["topics"].append(_head(version, topic) | {"partitions": rows})
    return response


def _all(node: GroupsHost, version: int, offsets: dict[tuple[str, int], Offset]) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for (name, index), offset in offsets.items():
        known = node.metadata.image.topics.get(name)
        if version >= _IDS and known is None:
            continue
        if name not in topics:
            topics[name] = {"partitions": []} | (
                {"topic_id": uuid_of(known.id)} if version >= _IDS and known is not None else {"name": name}
            )
        topics[name]["partitions"].append(_row(index, offset))
    return list(topics.values())


async def offset_delete(node: GroupsHost, request: Request) -> Answer:
    """Delete offsets, except of topics to which the group's members are subscribed (KIP-496)."""
    call = request.decode()
    try:
        node.groups.check(call.group_id)
    except GroupRefused as refused:
        return request.encode(error_code=refused.code)
    group = node.groups.look(call.group_id)
    if group is None:
        return request.encode(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.may_delete_offsets():
        return request.encode(error_code=ErrorCode.NON_EMPTY_GROUP)
    topics = node.metadata.image.topics
    count = len(call.topics) + sum(len(topic.partitions) for topic in call.topics)
    requested = await off_loop_when(
        count, lambda: [(topic.name, one.partition_index) for topic in call.topics for one in topic.partitions]
    )

    def look(some: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        return [_may_delete(topics.get(name), index, group) for name, index in some]

    errors = await in_slices(requested, look)
    keys = await off_loop_when(
        count,
        lambda: dict.fromkeys(key for key, error in zip(requested, errors, strict=True) if error is ErrorCode.NONE),
    )
    kept = await node.groups.remove_offsets(call.group_id, keys)
    if kept is not ErrorCode.NONE:
        return request.encode(error_code=kept, topics=[])

    def rows() -> list[dict[str, Any]]:
        left = iter(errors)
        return [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": one.partition_index, "error_code": next(left)} for one in topic.partitions
                ],
            }
            for topic in call.topics
        ]

    return request.encode(error_code=kept, topics=await off_loop_when(count, rows))


def _may_delete(topic: TopicImage | None, index: int, group: Group) -> ErrorCode:
    if topic is None or topic.partition(index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.subscribes(topic.name) else ErrorCode.NONE


def _topic(node: GroupsHost, version: int, topic: Any) -> TopicImage | None:
    image = node.metadata.image
    return image.topic_by_id(id_of(topic.topic_id)) if version >= _IDS else image.topics.get(topic.name)


def _head(version: int, topic: Any) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if version >= _IDS else {"name": topic.name}


def _row(index: int, offset: Offset | None) -> dict[str, Any]:
    if offset is None:
        return _none(index, ErrorCode.NONE)
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    }


def _none(index: int, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
