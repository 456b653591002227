"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders, as far as partitions of one replica go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_node.assignments import bad_assignment
from storage_node.errors import ErrorCode
from storage_node.metadata import ClusterImage
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request

if TYPE_CHECKING:
    from storage_node.node import Node

PREFERRED, UNCLEAN = 0, 1


async def list_partition_reassignments(node: Node, request: Request) -> Answer:
    """The partitions whose replica set is changing, of those asked for (null: all)."""
    call = request.decode()
    asked = None
    if call.topics is not None:
        asked = {(topic.name, index) for topic in call.topics for index in topic.partition_indexes}
    topics = []
    for topic in node.metadata.image.topics.values():
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
    """Moves between nodes are not offered, but a request that changes no replica set is answered as Kafka does.

    Kafka's tool sends the replica sets along with the log directories, also where only the latter change.
    """
    call = request.decode()
    image = node.metadata.image
    may_grow = getattr(call, "allow_replication_factor_change", True)
    topics = []
    for topic in call.topics:
        rows = []
        for asked in topic.partitions:
            code, message = _reassign(image, topic.name, asked, may_grow)
            rows.append({"partition_index": asked.partition_index, "error_code": code, "error_message": message})
        topics.append({"name": topic.name, "partitions": rows})
    return request.encode(responses=topics, allow_replication_factor_change=may_grow)


def _reassign(image: ClusterImage, name: str, asked: Any, may_grow: bool) -> tuple[ErrorCode, str | None]:
    topic = image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
    row = topic.partitions.get(asked.partition_index)
    if row is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{asked.partition_index}."
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    wanted = tuple(asked.replicas)
    if not may_grow and len(wanted) != len(row.replicas):
        message = f"The replication factor is changed from {len(row.replicas)} to {len(wanted)}"
        return ErrorCode.INVALID_REPLICATION_FACTOR, message
    if problem := bad_assignment(image, wanted):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem
    if wanted == row.replicas:
        return ErrorCode.NONE, None
    message = (
        f"{name}-{asked.partition_index} has the replicas {list(row.replicas)}; moving a replica to another node "
        "is not offered by this cluster, only to another log directory of its node."
    )
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message


async def elect_leaders(node: Node, request: Request) -> Answer:
    """A partition of one replica is led by it or by nobody: no election changes anything, and the answer says why."""
    call = request.decode()
    image, kind = node.metadata.image, getattr(call, "election_type", PREFERRED)
    asked: list[tuple[str, list[int]]]
    if call.topic_partitions is None:
        asked = [(topic.name, list(topic.partitions)) for topic in image.topics.values()]
    else:
        asked = [(topic.topic, list(topic.partitions)) for topic in call.topic_partitions]
    if kind not in (PREFERRED, UNCLEAN):
        refused: list[dict[str, Any]] = [
            {
                "topic": name,
                "partition_result": [
                    {
                        "partition_id": index,
                        "error_code": ErrorCode.INVALID_REQUEST,
                        "error_message": f"Unknown election type {kind}",
                    }
                    for index in indexes
                ],
            }
            for name, indexes in (asked if call.topic_partitions is not None else ())
        ]
        return request.encode(error_code=ErrorCode.INVALID_REQUEST, replica_election_results=refused)
    results = []
    for name, indexes in asked:
        rows = []
        for index in indexes:
            code, message = _elect(image, name, index, kind)
            if code is ErrorCode.ELECTION_NOT_NEEDED and call.topic_partitions is None:
                continue  # of all partitions only those are named that lack a leader
            rows.append({"partition_id": index, "error_code": code, "error_message": message})
        results.append({"topic": name, "partition_result": rows})
    return request.encode(replica_election_results=results)


def _elect(image: ClusterImage, name: str, index: int, kind: int) -> tuple[ErrorCode, str]:
    topic = image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    row = topic.partitions.get(index)
    if row is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    if row.leader == row.replicas[0] or (kind == UNCLEAN and row.leader >= 0):
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if kind == PREFERRED:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
