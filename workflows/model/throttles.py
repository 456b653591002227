"""KIP-73's throttles that end with a reassignment: what its run was given to take back, and how that is done. Pure.

Who sets them gives the run what it has set itself, and nothing else: lists and rates that were there before stay. Runs
of one plan share the nodes' rates; the last of them takes a node's rate back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workflows.model import fields
from workflows.model.outcome import Change
from workflows.model.state import ClusterState, Configs

LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def parse(value: Any, path: str = "$.throttles") -> dict[str, Any]:
    """Read {"topics": {topic: {list: [entries]}}, "nodes": {node: {rate: value}}, "others": {topic: [partitions]}}.

    `topics` and `nodes` were set for this run's partitions; `others` are the plan's partitions that other runs see
    through. Raises BadField.
    """
    row = fields.an_object(value, path, ("topics", "nodes", "others"))
    topics: dict[str, dict[str, list[str]]] = {}
    for topic, lists in fields.an_object(row.get("topics") or {}, f"{path}.topics").items():
        here = f"{path}.topics.{topic}"
        topics[topic] = {
            key: [fields.a_string(each, f"{here}.{key}") for each in fields.a_list(entries, f"{here}.{key}")]
            for key, entries in fields.an_object(lists, here, LISTS).items()
        }
    nodes: dict[str, dict[str, str]] = {}
    for node, rates in fields.an_object(row.get("nodes") or {}, f"{path}.nodes").items():
        here = f"{path}.nodes.{node}"
        nodes[node] = {
            key: fields.a_string(rate, f"{here}.{key}") for key, rate in fields.an_object(rates, here, RATES).items()
        }
    others = {
        topic: [fields.a_number(each, f"{path}.others.{topic}") for each in fields.a_list(numbers, f"{path}.others")]
        for topic, numbers in fields.an_object(row.get("others") or {}, f"{path}.others").items()
    }
    return {"topics": topics, "nodes": nodes, "others": others}


def of_group(throttles: Mapping[str, Any], group: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """The share of a run that sees these partitions through, of what was set for a whole plan."""
    mine = set(group)

    def shared(wanted: bool) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {}
        for topic, lists in throttles["topics"].items():
            for key, entries in lists.items():
                held = [each for each in entries if ((topic, _partition(each)) in mine) is wanted]
                if held:
                    found.setdefault(topic, {})[key] = held
        return found

    others = {
        topic: sorted({_partition(each) for entries in lists.values() for each in entries})
        for topic, lists in shared(False).items()
    }
    return {"topics": shared(True), "nodes": throttles["nodes"], "others": others}


def _partition(entry: str) -> int:
    number, _, _ = entry.partition(":")
    return int(number) if number.isdigit() else -1


def release(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"topics", "nodes", "others"} as `parse` reads them: take these entries out of the topics' lists, and the rates
    of nodes that nobody needs any more: none of the plan's other partitions, and no other that is being reassigned.

    A rate that somebody has changed since is theirs. Done again, nothing changes.
    """
    wanted = parse({key: command[key] for key in ("topics", "nodes", "others") if key in command}, "$")
    after = state
    for name, lists in wanted["topics"].items():
        topic = after.topics.get(name)
        if topic is None:
            continue
        values = dict(topic.configs)
        for key, entries in lists.items():
            _subtract(values, key, entries)
        if values != topic.configs:
            after = after.with_topics(replace(topic, configs=values))
    needed = _needed(after, wanted["others"])
    for node, rates in wanted["nodes"].items():
        known = after.configs.get(("broker", node), Configs("broker", node, {}))
        gone = {key for key, rate in rates.items() if known.values.get(key) == rate} if node not in needed else set()
        if gone:
            values = {key: value for key, value in known.values.items() if key not in gone}
            after = after.with_configs(replace(known, values=values))
    return Change(after, [{"version": after.version}])


def _subtract(values: dict[str, str], key: str, entries: Sequence[str]) -> None:
    held = [each.strip() for each in values.get(key, "").split(",") if each.strip()]
    left = [each for each in held if each not in entries]
    if left:
        values[key] = ",".join(left)
    else:
        values.pop(key, None)


def _needed(state: ClusterState, others: Mapping[str, Sequence[int]]) -> set[str]:
    """The nodes for which one of these partitions is listed, or one that is being reassigned."""
    found: set[str] = set()
    for topic in state.topics.values():
        entries = {each.strip() for key in LISTS for each in topic.configs.get(key, "").split(",")} - {""}
        if entries:
            wanted = {part.index for part in topic.partitions if part.assignment.reassigning}
            wanted |= set(others.get(topic.name, ()))
            found |= {each.partition(":")[2] for each in entries if _partition(each) in wanted}
    return found
