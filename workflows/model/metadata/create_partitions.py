"""CreatePartitions: adds empty partitions to a topic, and leaves the existing ones as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from storage_node.model.commands import CreatePartitions, MorePartitions
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import TopicImage
from workflows.model.metadata import topic_rules
from workflows.model.metadata.outcome import Change, Refused, Result
from workflows.model.metadata.placement import Room, check_assigned
from workflows.model.metadata.state import ClusterState
from workflows.model.metadata.topics import each_topic, new_partition


def create_partitions(state: ClusterState, command: CreatePartitions, _new_id: Callable[[], str]) -> Change:
    """Add partitions up to a `count` in all; without an assignment the controller chooses their replicas.

    Each topic succeeds or fails by itself. A name that occurs twice in the request fails both times. Delivered twice,
    the command fails the second time, since the topic has that many partitions already.
    """
    room = Room(state)

    def grow(after: ClusterState, request: MorePartitions) -> tuple[ClusterState, Result]:
        topic, added = _grown(after, room, request)
        after = after.with_topics(topic)
        room.hold(added)
        return after, {"topic_id": topic.id, "version": after.version, "value": len(topic.partitions)}

    return each_topic(state, command, grow)


def _grown(state: ClusterState, room: Room, request: MorePartitions) -> tuple[TopicImage, list[tuple[int, ...]]]:
    """Return the topic with its new partitions, and their replicas; raises Refused with Kafka's messages."""
    name, count = request.name, request.count
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    held = len(topic.partitions)
    if count == held:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {held} partition(s).")
    if count < held:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {held} partition(s); {count} would not be an increase.",
        )
    if count > topic_rules.MAX_PARTITIONS:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions, but {count} were requested.",
        )
    factor = len(topic.partitions[0].assignment.target) if topic.partitions else 1
    total = room.replicas + (count - held) * factor
    if total > topic_rules.MAX_REPLICAS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"With {count} partitions of topic '{name}' the cluster would hold {total} replicas; its limit is "
            f"{topic_rules.MAX_REPLICAS}.",
        )
    if request.assignment is None:
        placed = room.place(count - held, factor)
    else:
        placed = _assigned(state, request.assignment, held, count - held, factor)
    added = tuple(new_partition(state, held + index, replicas) for index, replicas in enumerate(placed))
    return replace(topic, partitions=(*topic.partitions, *added)), placed


def _assigned(
    state: ClusterState, rows: Sequence[tuple[int, ...]], held: int, additional: int, factor: int
) -> list[tuple[int, ...]]:
    if len(rows) != additional:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(rows)} assignment(s) were "
            "specified.",
        )
    for index, replicas in enumerate(rows):
        check_assigned(state, held + index, replicas, factor)
    return list(rows)
