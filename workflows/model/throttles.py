"""The configs of throttles: KIP-73's lists and rates of replication, and KIP-113's rate of moves between directories.

How leases of them are recorded and end is decided by `workflows/model/metadata/throttle_leases.py`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from storage_node.model import fields

LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def parse(value: Any, path: str = "$.throttles") -> dict[str, Any]:
    """Read the throttles of a lease: {"topics": {topic: {list: [entries]}}, "nodes": {node: {rate: value}}}.

    Raises BadField.
    """
    row = fields.an_object(value, path, ("topics", "nodes"))
    topics: dict[str, dict[str, list[str]]] = {}
    for topic, lists in fields.an_object(row.get("topics") or {}, f"{path}.topics").items():
        here = f"{path}.topics.{topic}"
        topics[topic] = {
            key: [_entry(each, f"{here}.{key}") for each in fields.a_list(entries, f"{here}.{key}")]
            for key, entries in fields.an_object(lists, here, LISTS).items()
        }
    nodes: dict[str, dict[str, str]] = {}
    for node, rates in fields.an_object(row.get("nodes") or {}, f"{path}.nodes").items():
        here = f"{path}.nodes.{node}"
        if not _is_node(node):
            raise fields.BadField(here, "is not a valid node id")
        nodes[node] = {
            key: _rate(rate, f"{here}.{key}")
            for key, rate in fields.an_object(rates, here, (*RATES, MOVE_RATE)).items()
        }
    return {"topics": topics, "nodes": nodes}


def _is_node(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("0|[1-9][0-9]{0,9}", text) is not None


def _rate(value: Any, path: str) -> str:
    text = fields.a_string(value, path)
    if not (re.fullmatch("[0-9]{1,19}", text) and 0 < int(text) < 1 << 63):
        raise fields.BadField(path, f"is '{text}', but must be bytes per second, a whole number above 0")
    return text


def _entry(value: Any, path: str) -> str:
    text = fields.a_string(value, path)
    partition, colon, node = text.partition(":")
    if not (colon and _is_node(partition) and _is_node(node)):
        raise fields.BadField(path, f"has '{text}', which is not of the form partition:node")
    return text


def of_group(throttles: Mapping[str, Any], group: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return a run's share of a whole plan's throttles: the entries of its partitions, and all rates."""
    mine = set(group)
    topics: dict[str, dict[str, list[str]]] = {}
    for topic, lists in throttles["topics"].items():
        for key, entries in lists.items():
            held = [each for each in entries if (topic, _partition(each)) in mine]
            if held:
                topics.setdefault(topic, {})[key] = held
    return {"topics": topics, "nodes": throttles["nodes"]}


def _partition(entry: str) -> int:
    number, _, _ = entry.partition(":")
    return int(number) if re.fullmatch("[0-9]{1,10}", number) else -1
