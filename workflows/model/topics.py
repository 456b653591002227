"""Topics and configs: creating, deleting, altering; and producer ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workflows.model import fields, throttles, topic_rules
from workflows.model.assignment import Assignment
from workflows.model.election import UNCLEAN, decide, decide_all
from workflows.model.outcome import Change, Code, Refused, Result
from workflows.model.placement import Room, check_assigned
from workflows.model.state import NO_LEADER, ClusterState, Configs, Partition, Topic


def create_topics(state: ClusterState, command: Mapping[str, Any], new_id: Callable[[], str]) -> Change:
    """{"topics": [{"name", "partitions", "replication_factor", "configs", "assignment"}], "validate_only": bool}.

    `assignment` (a list of replicas per partition) overrides the two counts, which are -1 or absent for the defaults.
    Each topic succeeds or fails by itself. A name that stands twice in the request fails both times.
    """
    room = Room(state)

    def create(after: ClusterState, request: Mapping[str, Any], path: str) -> tuple[ClusterState, Result]:
        topic = _new_topic(after, room, request, path, new_id)
        after = after.with_topics(topic)
        room.take(topic)
        return after, {"topic_id": topic.id, "version": after.version, "value": len(topic.partitions)}

    change = each_topic(state, command, create)
    if command.get("validate_only"):
        for result in change.results:
            result.pop("topic_id", None)
    return change


Step = Callable[[ClusterState, Mapping[str, Any], str], tuple[ClusterState, Result]]


def each_topic(state: ClusterState, command: Mapping[str, Any], step: Step) -> Change:
    """Do a step for each of a command's `topics`, which succeed or fail by themselves; with `validate_only` the state
    stays what it is.

    `step` gets the state so far, the topic's request and its path. A name that stands twice fails both times.
    """
    wanted = fields.a_list(fields.need(command, "topics", "$"), "$.topics")
    only_check = fields.a_flag(command.get("validate_only", False), "$.validate_only")
    names = Counter(
        each.get("name") for each in wanted if isinstance(each, Mapping) and isinstance(each.get("name"), str)
    )
    results: list[Result] = []
    after = state
    for place, each in enumerate(wanted):
        path = f"$.topics[{place}]"
        try:
            request = fields.an_object(each, path)
            name = request.get("name")
            if isinstance(name, str) and names[name] > 1:
                raise Refused(Code.INVALID_REQUEST, "Duplicate topic name.")
            after, result = step(after, request, path)
            results.append(result)
        except Refused as refused:
            results.append(refused.result())
        except fields.BadField as bad:
            results.append({"error": Code.INVALID_REQUEST, "message": f"The request is malformed: {bad}."})
    if only_check:
        for result in results:
            result["version"] = state.version
    return Change(state if only_check else after, results)


def _new_topic(
    state: ClusterState, room: Room, request: Mapping[str, Any], path: str, new_id: Callable[[], str]
) -> Topic:
    name = request.get("name")
    problem = topic_rules.name_problem(name)
    if problem or not isinstance(name, str):
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, str(problem))
    if name in state.topics:
        raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other := room.names.get(topic_rules.collision_key(name)):
        raise Refused(
            Code.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{other}': metrics do not tell '.' and '_' apart.",
        )
    if len(state.topics) >= topic_rules.MAX_TOPICS:
        raise Refused(Code.POLICY_VIOLATION, f"The cluster has its {topic_rules.MAX_TOPICS} topics; delete one first.")
    configs = fields.an_object(request.get("configs") or {}, f"{path}.configs")
    for key, value in configs.items():
        if bad := topic_rules.config_problem("topic", key, value):
            raise Refused(Code.INVALID_CONFIG, bad)
    placed = _placement(state, room, request, path)
    after = room.replicas + sum(map(len, placed))
    if after > topic_rules.MAX_REPLICAS:
        raise Refused(
            Code.POLICY_VIOLATION,
            f"With topic '{name}' the cluster would hold {after} replicas; its limit is {topic_rules.MAX_REPLICAS}.",
        )
    partitions = tuple(new_partition(state, index, replicas) for index, replicas in enumerate(placed))
    return Topic(name, new_id(), dict(configs), partitions)


def new_partition(state: ClusterState, index: int, replicas: tuple[int, ...]) -> Partition:
    """An empty partition under the leader it should have."""
    none = len(replicas)
    fresh = Partition(index, Assignment(replicas), ("",) * none, (0,) * none, replicas, leader=replicas[0])
    led = decide(fresh, state.nodes)
    return replace(led, leader_epoch=0, partition_epoch=0)


def _placement(state: ClusterState, room: Room, request: Mapping[str, Any], path: str) -> list[tuple[int, ...]]:
    """The replicas of each partition: as asked for, or spread over racks and nodes."""
    assignment = fields.a_list(request.get("assignment") or [], f"{path}.assignment")
    if assignment:
        return _assigned(state, request, assignment, f"{path}.assignment")
    count = fields.a_number(request.get("partitions", -1), f"{path}.partitions", -(1 << 31), (1 << 31) - 1)
    count = 1 if count == -1 else count
    if not 1 <= count <= topic_rules.MAX_PARTITIONS:
        raise Refused(
            Code.INVALID_PARTITIONS,
            f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions, but {count} were asked for.",
        )
    factor = fields.a_number(
        request.get("replication_factor", -1), f"{path}.replication_factor", -(1 << 31), (1 << 31) - 1
    )
    if factor != -1 and factor < 1:
        raise Refused(Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    return room.place(count, max(factor, 1))


def _assigned(
    state: ClusterState, request: Mapping[str, Any], assignment: Sequence[Any], path: str
) -> list[tuple[int, ...]]:
    counts = (request.get("partitions", -1), request.get("replication_factor", -1))
    if counts[0] not in (-1, len(assignment)) or counts[1] not in (-1, 1):
        raise Refused(
            Code.INVALID_REQUEST, "Counts and a manual assignment exclude each other: give -1 for both counts."
        )
    if len(assignment) > topic_rules.MAX_PARTITIONS:
        raise Refused(Code.INVALID_PARTITIONS, f"A topic has 1 to {topic_rules.MAX_PARTITIONS} partitions.")
    placed: list[tuple[int, ...]] = []
    for index, row in enumerate(assignment):
        here = f"{path}[{index}]"
        replicas = tuple(fields.a_number(node, here, -(1 << 31), (1 << 31) - 1) for node in fields.a_list(row, here))
        check_assigned(state, index, replicas, len(placed[0]) if placed else len(replicas))
        placed.append(replicas)
    return placed


def delete_topics(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"names": [...]} or {"ids": [...]}: delete topics for good; results carry the topic's id."""
    by_id = {topic.id: topic.name for topic in state.topics.values()} if command.get("ids") else {}
    results: list[Result] = []
    for place, name in enumerate(fields.a_list(command.get("names") or [], "$.names")):
        results.append({"name": fields.a_string(name, f"$.names[{place}]", empty=True)})
    for place, topic_id in enumerate(fields.a_list(command.get("ids") or [], "$.ids")):
        results.append({"name": by_id.get(fields.a_string(topic_id, f"$.ids[{place}]"), "")})
    for result in results:
        name = result.pop("name")
        if name not in state.topics:
            result.update(
                error=Code.UNKNOWN_TOPIC_OR_PARTITION, message="This server does not host this topic-partition."
            )
            continue
        result["topic_id"] = state.topics[name].id
        state = state.without_topic(name)
    for result in results:
        result.setdefault("version", state.version)
    return Change(state, results)


def alter_configs(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"kind": "topic" | "broker", "name", "changes": {key: change}, "validate_only"?}: set configs.

    A change is a value, null to remove it, or {"append": [item]} or {"subtract": [item]} for a config that is a list.
    A broker's name is its id, or "" for the default of all brokers. All changes of a command are made, or none.
    """
    kind = fields.a_string(fields.need(command, "kind", "$"), "$.kind")
    name = fields.a_string(fields.need(command, "name", "$"), "$.name", empty=kind == "broker")
    changes = fields.an_object(fields.need(command, "changes", "$"), "$.changes")
    only_check = fields.a_flag(command.get("validate_only", False), "$.validate_only")
    if kind not in ("topic", "broker"):
        raise Refused(
            Code.INVALID_REQUEST, f"Configs of a '{kind}' are not supported; of a topic and a broker they are."
        )
    topic = state.topics.get(name) if kind == "topic" else None
    held = topic.configs if topic is not None else {}
    _check_configs(kind, {key: _after(held, key, change) for key, change in changes.items()})
    if kind == "topic":
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        values = _changed(topic.configs, changes)
        after = state if values == topic.configs else state.with_topics(replace(topic, configs=values))
    else:
        if name and not (re.fullmatch("[0-9]{1,10}", name) and int(name) in state.nodes):
            raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"There is no broker '{name}'.")
        known = state.configs.get((kind, name), Configs(kind, name, {}))
        values = _changed(known.values, changes)
        after = state if values == known.values else state.with_configs(replace(known, values=values))
        after = throttles.set_by_operator(after, name, changes)
    if only_check or after is state:
        return Change(state, [{"version": state.version}])
    if UNCLEAN in changes:  # who has waited for it
        after = decide_all(after, lambda each: each.leader == NO_LEADER)
    return Change(after, [{"version": after.version}])


def _check_configs(kind: str, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is not None and (bad := topic_rules.config_problem(kind, key, value)):
            raise Refused(Code.INVALID_CONFIG, bad)


def _after(values: Mapping[str, str], key: str, change: Any) -> Any:
    """The value of a config after a change of it; of a list, after items came to it or went from it."""
    if not isinstance(change, Mapping):
        return change
    path = f"$.changes.{key}"
    fields.an_object(change, path, ("append", "subtract"))
    more, less = (
        [fields.a_string(item, f"{path}.{what}") for item in fields.a_list(change.get(what) or [], f"{path}.{what}")]
        for what in ("append", "subtract")
    )
    items = [item for item in values.get(key, "").split(",") if item and item not in less]
    return ",".join(dict.fromkeys([*items, *more]))


def _changed(values: Mapping[str, str], changes: Mapping[str, Any]) -> dict[str, str]:
    after = dict(values)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _after(values, key, value)
    return after


def next_producer_ids(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"count"}: reserve producer ids; the result's `value` is the first. Delivered twice, some ids stay unused."""
    count = fields.a_number(fields.need(command, "count", "$"), "$.count", 1, 1_000_000)
    first = state.next_producer_id
    return Change(
        replace(state, next_producer_id=first + count), [{"version": state.version, "value": first}], quiet=True
    )
