"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: decided by the controller, listed from
the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage_node.errors import ErrorCode
from storage_node.ports import ChangeResult, Reassign
from storage_node.protocol.codec import milliseconds
from storage_node.protocol.framing import Answer
from storage_node.protocol.off_loop import off_loop_when
from storage_node.protocol.request import Request
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.metadata import PartitionImage
    from storage_node.node import Node

PREFERRED, UNCLEAN = 0, 1


def _late(answers: Sequence[ChangeResult]) -> dict[str, Any]:
    """The error of the whole request, when the controller did not answer in time or this node has not heard of it."""
    late = next((answer for answer in answers if answer.error == ErrorCode.REQUEST_TIMED_OUT), None)
    return {} if late is None else {"error_code": ErrorCode.REQUEST_TIMED_OUT, "error_message": late.message}


def _error(answer: ChangeResult) -> dict[str, Any]:
    return {"error_code": answer.error, "error_message": answer.message or None if answer.error else None}


async def list_partition_reassignments(node: Node, request: Request) -> Answer:
    """The partitions whose replica set is changing, of those asked for (null: all).

    As new as any answer that was given before, by whichever node: REQUEST_TIMED_OUT while the controller is away.
    """
    call = request.decode()
    asked = None
    if call.topics is not None:
        asked = await off_loop_when(
            sum(len(topic.partition_indexes) for topic in call.topics),
            lambda: {(topic.name, index) for topic in call.topics for index in topic.partition_indexes},
        )
    if asked is None or asked:
        now = await node.admin.come_up_to_date(milliseconds(call.timeout) / 1000)
        if now.error:
            return request.encode(topics=[], **_error(now))
    topics = []
    for topic in node.metadata.image.topics.values() if asked is None or asked else ():
        rows = [
            {
                "partition_index": row.partition,
                "replicas": row.replicas,
                "adding_replicas": row.adding,
                "removing_replicas": row.removing,
            }
            for row in topic.partitions.values()
            if (row.adding or row.removing) and (asked is None or (topic.name, row.partition) in asked)
        ]
        if rows:
            topics.append({"name": topic.name, "partitions": rows})
    return request.encode(topics=topics)


async def alter_partition_reassignments(node: Node, request: Request) -> Answer:
    """Begin, change and cancel reassignments, each partition with its own result; answers when this node has applied
    them.

    Without an answer of the controller in time the request and each partition are REQUEST_TIMED_OUT.
    """
    call = request.decode()
    may_change = getattr(call, "allow_replication_factor_change", True)
    asked = [(topic.name, row) for topic in call.topics for row in topic.partitions]
    wanted = await off_loop_when(
        len(asked),
        lambda: [
            Reassign(TopicPartition(name, row.partition_index), None if row.replicas is None else tuple(row.replicas))
            for name, row in asked
        ],
    )
    who = f"{request.client_id} at {request.peer}"
    seconds = milliseconds(call.timeout) / 1000
    answers = await node.admin.reassign(wanted, may_change_factor=may_change, seconds=seconds, client=who)
    late = _late(answers)
    each = iter(answers)
    topics = []
    for topic in call.topics:
        rows = [{"partition_index": row.partition_index, **(late or _error(next(each)))} for row in topic.partitions]
        topics.append({"name": topic.name, "partitions": rows})
    return request.encode(responses=topics, allow_replication_factor_change=may_change, **late)


async def elect_leaders(node: Node, request: Request) -> Answer:
    """Preferred and unclean elections; asked for all partitions (null), those are named that lack such a leader."""
    call = request.decode()
    image, kind = node.metadata.image, getattr(call, "election_type", PREFERRED)
    asked: list[tuple[str, list[int]]]
    if call.topic_partitions is None:
        asked = [
            (topic.name, [row.partition for row in topic.partitions.values() if _lacks(row, kind)])
            for topic in image.topics.values()
        ]
    else:
        asked = [(topic.topic, list(topic.partitions)) for topic in call.topic_partitions]
    if kind not in (PREFERRED, UNCLEAN):
        message = f"Unknown election type {kind}"
        refused = [] if call.topic_partitions is None else asked
        error = {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message}
        return request.encode(error_code=ErrorCode.INVALID_REQUEST, replica_election_results=_elected(refused, error))
    partitions = await off_loop_when(
        sum(len(indexes) for _, indexes in asked),
        lambda: [TopicPartition(name, index) for name, indexes in asked for index in indexes],
    )
    answers = await node.admin.elect(partitions, kind == UNCLEAN, milliseconds(call.timeout) / 1000)
    if late := _late(answers):
        refused = [] if call.topic_partitions is None else asked
        return request.encode(error_code=late["error_code"], replica_election_results=_elected(refused, late))
    each = iter(answers)
    results = []
    for name, indexes in asked:
        pairs = [(index, next(each)) for index in indexes]
        if call.topic_partitions is None:  # another one may have elected them meanwhile
            pairs = [(index, answer) for index, answer in pairs if answer.error != ErrorCode.ELECTION_NOT_NEEDED]
        rows = [{"partition_id": index, **_error(answer)} for index, answer in pairs]
        results.append({"topic": name, "partition_result": rows})
    return request.encode(replica_election_results=results)


def _elected(asked: Sequence[tuple[str, Sequence[int]]], error: dict[str, Any]) -> list[dict[str, Any]]:
    """The same result for all partitions."""
    return [
        {"topic": name, "partition_result": [{"partition_id": index, **error} for index in indexes]}
        for name, indexes in asked
    ]


def _lacks(row: PartitionImage, kind: int) -> bool:
    """Whether an election of that kind would be of any use to the partition."""
    return row.leader != row.replicas[0] if kind == PREFERRED else row.leader < 0
