"""CreateTopics, DeleteTopics, AlterConfigs, and the allocation of producer ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from storage_node.model.assignment import Assignment
from storage_node.model.commands import (
    AlterConfigs,
    ConfigChange,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ListChange,
    Malformed,
    NewTopic,
    NextProducerIds,
)
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import NO_LEADER
from storage_node.model.metadata import PartitionImage, TopicImage
from workflows.model.metadata import throttle_leases, topic_rules
from workflows.model.metadata.election import UNCLEAN, decide, decide_all
from workflows.model.metadata.outcome import Change, Refused, Result
from workflows.model.metadata.placement import Room, check_assigned
from workflows.model.metadata.state import ClusterState


def create_topics(state: ClusterState, command: CreateTopics, new_id: Callable[[], str]) -> Change:
    """Create topics; an assignment overrides the two counts, which are -1 for the defaults.

    Each topic succeeds or fails by itself. A name that occurs twice in the request fails both times.
    """
    room = Room(state)

    def create(after: ClusterState, request: NewTopic) -> tuple[ClusterState, Result]:
        topic = _new_topic(after, room, request, new_id)
        after = after.with_topics(topic)
        room.take(topic)
        return after, {"topic_id": topic.id, "version": after.version, "value": len(topic.partitions)}

    change = each_topic(state, command, create)
    if command.validate_only:
        for result in change.results:
            result.pop("topic_id", None)
    return change


Step = Callable[[ClusterState, Any], tuple[ClusterState, Result]]


def each_topic(state: ClusterState, command: CreateTopics | CreatePartitions, step: Step) -> Change:
    """Apply a step to each of a command's topics, which succeed or fail by themselves; with `validate_only` the state
    does not change.

    `step` gets the state so far and the topic's request. A name that occurs twice fails both times.
    """
    names = Counter(each.name for each in command.topics)
    results: list[Result] = []
    after = state
    for request in command.topics:
        try:
            if request.name and names[request.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if isinstance(request, Malformed):
                raise Refused(ErrorCode.INVALID_REQUEST, f"The request is malformed: {request.problem}.")
            after, result = step(after, request)
            results.append(result)
        except Refused as refused:
            results.append(refused.result())
    if command.validate_only:
        for result in results:
            result["version"] = state.version
    return Change(state if command.validate_only else after, results)


def _new_topic(state: ClusterState, room: Room, request: NewTopic, new_id: Callable[[], str]) -> TopicImage:
    name = request.name
    if problem := topic_rules.name_problem(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in state.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other := room.names.get(topic_rules.collision_key(name)):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{other}': metric names do not distinguish '.' and '_'.",
        )
    if len(state.topics) >= topic_rules.MAX_TOPICS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster has {topic_rules.MAX_TOPICS} topics, which is its limit; delete one first.",
        )
    for key, value in request.configs.items():
        if bad := topic_rules.config_problem("topic", key, value):
            raise Refused(ErrorCode.INVALID_CONFIG, bad)
    placed = _placement(state, room, request)
    after = room.replicas + sum(map(len, placed))
    if after > topic_rules.MAX_REPLICAS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"With topic '{name}' the cluster would hold {after} replicas; its limit is {topic_rules.MAX_REPLICAS}.",
        )
    partitions = tuple(new_partition(state, index, replicas) for index, replicas in enumerate(placed))
    return TopicImage(name, new_id(), dict(request.configs), partitions)


def new_partition(state: ClusterState, index: int, replicas: tuple[int, ...]) -> PartitionImage:
    """Return an empty partition with its elected leader."""
    none = len(replicas)
    fresh = PartitionImage(index, Assignment(replicas), ("",) * none, (0,) * none, replicas, leader=replicas[0])
    led = decide(fresh, state.nodes)
    return replace(led, leader_epoch=0, partition_epoch=0)


def _placement(state: ClusterState, room: Room, request: NewTopic) -> list[tuple[int, ...]]:
    """Return the replicas of each partition: as requested, or spread over racks and nodes."""
    if request.assignment:
        return _assigned(state, request)
    count, factor = request.partitions, request.replication_factor
    count = 1 if count == -1 else count
    if not 1 <= count <= topic_rules.MAX_PARTITIONS:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions, but {count} were requested.",
        )
    if factor != -1 and factor < 1:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    return room.place(count, max(factor, 1))


def _assigned(state: ClusterState, request: NewTopic) -> list[tuple[int, ...]]:
    if request.partitions not in (-1, len(request.assignment)) or request.replication_factor not in (-1, 1):
        raise Refused(
            ErrorCode.INVALID_REQUEST, "Counts and a manual assignment exclude each other: give -1 for both counts."
        )
    if len(request.assignment) > topic_rules.MAX_PARTITIONS:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions.")
    for index, replicas in enumerate(request.assignment):
        check_assigned(state, index, replicas, len(request.assignment[0]))
    return list(request.assignment)


def delete_topics(state: ClusterState, command: DeleteTopics, _new_id: Callable[[], str]) -> Change:
    """Delete topics; results have the topic's id."""
    by_id = {topic.id: topic.name for topic in state.topics.values()} if command.ids else {}
    results: list[Result] = []
    for name in (*command.names, *(by_id.get(topic_id, "") for topic_id in command.ids)):
        if name not in state.topics:
            message = "This server does not host this topic-partition."
            results.append({"error": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "message": message})
            continue
        results.append({"topic_id": state.topics[name].id})
        state = state.without_topic(name)
    for result in results:
        result.setdefault("version", state.version)
    return Change(state, results)


def alter_configs(state: ClusterState, command: AlterConfigs, _new_id: Callable[[], str]) -> Change:
    """Alter configs: a change is a value, None to remove it, or a change of a list (KIP-339's APPEND and SUBTRACT).

    A broker's name is its id, or "" for the default of all brokers. All changes of a command are applied, or none.
    """
    kind, name, changes, only_check = command.kind, command.name, command.changes, command.validate_only
    if kind not in ("topic", "broker"):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"Configs of a '{kind}' are not supported, only those of a topic or a broker."
        )
    topic = state.topics.get(name) if kind == "topic" else None
    held = topic.configs if topic is not None else {}
    _check_configs(kind, {key: _after(held, key, change) for key, change in changes.items()})
    if kind == "topic":
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        values = _changed(topic.configs, changes)
        after = state if values == topic.configs else state.with_topics(replace(topic, configs=values))
    else:
        if name and not (re.fullmatch("[0-9]{1,10}", name) and int(name) in state.nodes):
            raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"The broker '{name}' does not exist.")
        known = state.configs.get((kind, name), {})
        values = _changed(known, changes)
        after = state if values == known else state.with_configs(kind, name, values)
        after = throttle_leases.set_by_operator(after, name, changes)
    if only_check or after is state:
        return Change(state, [{"version": state.version}])
    if UNCLEAN in changes:  # Unclean elections may have become possible for partitions without a leader.
        after = decide_all(after, lambda each: each.leader == NO_LEADER)
    return Change(after, [{"version": after.version}])


def _check_configs(kind: str, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is not None and (bad := topic_rules.config_problem(kind, key, value)):
            raise Refused(ErrorCode.INVALID_CONFIG, bad)


def _after(values: Mapping[str, str], key: str, change: ConfigChange) -> Any:
    """Return the value of a config after a change of it; for a list, with items appended and subtracted."""
    if not isinstance(change, ListChange):
        return change
    items = [item for item in values.get(key, "").split(",") if item and item not in change.subtract]
    return ",".join(dict.fromkeys([*items, *change.append]))


def _changed(values: Mapping[str, str], changes: Mapping[str, ConfigChange]) -> dict[str, str]:
    after = dict(values)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _after(values, key, value)
    return after


def next_producer_ids(state: ClusterState, command: NextProducerIds, _new_id: Callable[[], str]) -> Change:
    """Allocate producer ids; the result's `value` is the first. If it is applied twice, some ids stay unused."""
    first = state.next_producer_id
    after = replace(state, next_producer_id=first + command.count)
    return Change(after, [{"version": state.version, "value": first}], quiet=True)
