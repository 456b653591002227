"""AlterPartitionReassignments, ListPartitionReassignments (KIP-455) and ElectLeaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage_node.model.commands import Reassign
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.ports import ChangeResult
from storage_node.protocol.host import AdminHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.off_loop import off_loop_when
from storage_node.protocol.request import Request
from storage_node.wire.codec import milliseconds

if TYPE_CHECKING:
    from storage_node.model.metadata import PartitionImage

PREFERRED, UNCLEAN = 0, 1


def _late(responses: Sequence[ChangeResult]) -> dict[str, Any]:
    """Return the error of the whole request if a result is REQUEST_TIMED_OUT: the controller did not respond in time,
    or this node has not applied the change.
    """
    late = next((response for response in responses if response.error == ErrorCode.REQUEST_TIMED_OUT), None)
    return {} if late is None else {"error_code": ErrorCode.REQUEST_TIMED_OUT, "error_message": late.message}


def _error(response: ChangeResult) -> dict[str, Any]:
    return {"error_code": response.error, "error_message": response.message or None if response.error else None}


async def list_partition_reassignments(node: AdminHost, request: Request) -> Answer:
    """Return the requested partitions (null: all) that are being reassigned.

    The response is at least as new as any node's earlier response: the error is REQUEST_TIMED_OUT while the controller
    is unavailable.
    """
    call = request.decode()
    requested = None
    if call.topics is not None:
        requested = await off_loop_when(
            sum(len(topic.partition_indexes) for topic in call.topics),
            lambda: {(topic.name, index) for topic in call.topics for index in topic.partition_indexes},
        )
    if requested is None or requested:
        now = await node.admin.come_up_to_date(milliseconds(call.timeout) / 1000)
        if now.error:
            return request.encode(topics=[], **_error(now))
    topics = []
    for topic in node.metadata.image.topics.values() if requested is None or requested else ():
        rows = [
            {
                "partition_index": row.index,
                "replicas": row.replicas,
                "adding_replicas": row.assignment.adding,
                "removing_replicas": row.assignment.removing,
            }
            for row in topic.partitions
            if row.assignment.reassigning and (requested is None or (topic.name, row.index) in requested)
        ]
        if rows:
            topics.append({"name": topic.name, "partitions": rows})
    return request.encode(topics=topics)


async def alter_partition_reassignments(node: AdminHost, request: Request) -> Answer:
    """Begin, change and cancel reassignments; each partition has its own result.

    The response follows once this node has applied them. If the controller does not respond in time, the error of the
    request and of each partition is REQUEST_TIMED_OUT.
    """
    call = request.decode()
    may_change = getattr(call, "allow_replication_factor_change", True)
    requested = [(topic.name, row) for topic in call.topics for row in topic.partitions]
    wanted = await off_loop_when(
        len(requested),
        lambda: [
            Reassign(TopicPartition(name, row.partition_index), None if row.replicas is None else tuple(row.replicas))
            for name, row in requested
        ],
    )
    who = f"{request.client_id} at {request.peer}"
    seconds = milliseconds(call.timeout) / 1000
    responses = await node.admin.reassign(wanted, may_change_factor=may_change, seconds=seconds, client=who)
    late = _late(responses)
    each = iter(responses)
    topics = []
    for topic in call.topics:
        rows = [{"partition_index": row.partition_index, **(late or _error(next(each)))} for row in topic.partitions]
        topics.append({"name": topic.name, "partitions": rows})
    return request.encode(responses=topics, allow_replication_factor_change=may_change, **late)


async def elect_leaders(node: AdminHost, request: Request) -> Answer:
    """Elect preferred or unclean leaders; if the request is for all partitions (null), of those that need one only."""
    call = request.decode()
    image, kind = node.metadata.image, getattr(call, "election_type", PREFERRED)
    requested: list[tuple[str, list[int]]]
    if call.topic_partitions is None:
        requested = [
            (topic.name, [row.index for row in topic.partitions if _needs_election(row, kind)])
            for topic in image.topics.values()
        ]
    else:
        requested = [(topic.topic, list(topic.partitions)) for topic in call.topic_partitions]
    if kind not in (PREFERRED, UNCLEAN):
        message = f"Unknown election type {kind}"
        refused = [] if call.topic_partitions is None else requested
        error = {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message}
        return request.encode(error_code=ErrorCode.INVALID_REQUEST, replica_election_results=_elected(refused, error))
    partitions = await off_loop_when(
        sum(len(indexes) for _, indexes in requested),
        lambda: [TopicPartition(name, index) for name, indexes in requested for index in indexes],
    )
    responses = await node.admin.elect(partitions, kind == UNCLEAN, milliseconds(call.timeout) / 1000)
    if late := _late(responses):
        refused = [] if call.topic_partitions is None else requested
        return request.encode(error_code=late["error_code"], replica_election_results=_elected(refused, late))
    each = iter(responses)
    results = []
    for name, indexes in requested:
        pairs = [(index, next(each)) for index in indexes]
        if call.topic_partitions is None:  # another request may have elected their leaders meanwhile
            pairs = [(index, response) for index, response in pairs if response.error != ErrorCode.ELECTION_NOT_NEEDED]
        rows = [{"partition_id": index, **_error(response)} for index, response in pairs]
        results.append({"topic": name, "partition_result": rows})
    return request.encode(replica_election_results=results)


def _elected(asked: Sequence[tuple[str, Sequence[int]]], error: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the same result for all partitions."""
    return [
        {"topic": name, "partition_result": [{"partition_id": index, **error} for index in indexes]}
        for name, indexes in asked
    ]


def _needs_election(row: PartitionImage, kind: int) -> bool:
    """Return whether a partition needs an election of that type."""
    return row.leader != row.replicas[0] if kind == PREFERRED else row.leader < 0
