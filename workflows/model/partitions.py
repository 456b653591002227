"""More partitions for a topic (CreatePartitions): the ones it has stay as they are, the new ones are empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workflows.model import fields, topic_rules
from workflows.model.outcome import Change, Code, Refused, Result
from workflows.model.placement import Room, check_assigned
from workflows.model.state import ClusterState, Topic
from workflows.model.topics import each_topic, new_partition

_ANY = (-(1 << 31), (1 << 31) - 1)


def create_partitions(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"topics": [{"name", "count", "assignment"}], "validate_only": bool}: `count` partitions in all.

    `assignment` (a list of replicas per new partition) is null or absent where the controller is to choose. Each topic
    succeeds or fails by itself. A name that stands twice in the request fails both times. Delivered twice, the second
    one is told that the topic has that many partitions already.
    """
    room = Room(state)

    def grow(after: ClusterState, request: Mapping[str, Any], path: str) -> tuple[ClusterState, Result]:
        name = fields.a_string(fields.need(request, "name", path), f"{path}.name", empty=True)
        topic, added = _grown(after, room, name, request, path)
        after = after.with_topics(topic)
        room.hold(added)
        return after, {"topic_id": topic.id, "version": after.version, "value": len(topic.partitions)}

    return each_topic(state, command, grow)


def _grown(
    state: ClusterState, room: Room, name: str, request: Mapping[str, Any], path: str
) -> tuple[Topic, list[tuple[int, ...]]]:
    """The topic with its new partitions, and their replicas; raises Refused in Kafka's words."""
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, "")
    count = fields.a_number(fields.need(request, "count", path), f"{path}.count", *_ANY)
    held = len(topic.partitions)
    if count == held:
        raise Refused(Code.INVALID_PARTITIONS, f"Topic already has {held} partition(s).")
    if count < held:
        raise Refused(
            Code.INVALID_PARTITIONS,
            f"The topic {name} currently has {held} partition(s); {count} would not be an increase.",
        )
    if count > topic_rules.MAX_PARTITIONS:
        raise Refused(
            Code.INVALID_PARTITIONS,
            f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions, but {count} were asked for.",
        )
    factor = len(topic.partitions[0].assignment.target) if topic.partitions else 1
    total = room.replicas + (count - held) * factor
    if total > topic_rules.MAX_REPLICAS:
        raise Refused(
            Code.POLICY_VIOLATION,
            f"With {count} partitions of topic '{name}' the cluster would hold {total} replicas; its limit is "
            f"{topic_rules.MAX_REPLICAS}.",
        )
    rows = request.get("assignment")
    if rows is None:
        placed = room.place(count - held, factor)
    else:
        placed = _assigned(state, fields.a_list(rows, f"{path}.assignment"), held, count - held, factor, path)
    added = tuple(new_partition(state, held + index, replicas) for index, replicas in enumerate(placed))
    return replace(topic, partitions=(*topic.partitions, *added)), placed


def _assigned(
    state: ClusterState, rows: Sequence[Any], held: int, additional: int, factor: int, path: str
) -> list[tuple[int, ...]]:
    if len(rows) != additional:
        raise Refused(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(rows)} assignment(s) were "
            "specified.",
        )
    placed: list[tuple[int, ...]] = []
    for index, row in enumerate(rows):
        where = f"{path}.assignment[{index}]"
        replicas = tuple(fields.a_number(node, where, *_ANY) for node in fields.a_list(row, where))
        check_assigned(state, held + index, replicas, factor)
        placed.append(replicas)
    return placed
