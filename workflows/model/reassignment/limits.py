"""The throttles by which an operator limits or pauses a run of reassignments, as leases of the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workflows.model.reassignment.runs import PartitionRun
from workflows.model.throttles import LISTS, RATES

_LEADERS, _FOLLOWERS = LISTS
_, _FOLLOWER_RATE = RATES

#: Bytes per second of a paused replica, the lowest rate that a node takes: one fetch in some hours.
PAUSED_RATE = 1


def limited(parts: Iterable[PartitionRun], rate: int) -> dict[str, Any]:
    """Return the throttles (KIP-73) that limit these partitions to `rate` bytes per second on each node: of the
    replicas that are copied from, and of those that copy. See `throttles.parse` for the form.
    """
    topics: dict[str, dict[str, list[str]]] = {}
    nodes: dict[str, dict[str, str]] = {}
    for part in parts:
        lists = topics.setdefault(part.topic, {_LEADERS: [], _FOLLOWERS: []})
        lists[_LEADERS] += [f"{part.partition}:{node}" for node in part.original]
        lists[_FOLLOWERS] += [f"{part.partition}:{node}" for node in part.adding]
        nodes |= {str(node): {key: str(rate) for key in RATES} for node in (*part.original, *part.adding)}
    return {"topics": topics, "nodes": nodes}


def paused(parts: Iterable[PartitionRun]) -> dict[str, Any]:
    """Return the throttles that hold these partitions: of the replicas that copy alone, so that a node from which they
    are copied serves others as before.
    """
    topics: dict[str, dict[str, list[str]]] = {}
    nodes: dict[str, dict[str, str]] = {}
    for part in parts:
        lists = topics.setdefault(part.topic, {_FOLLOWERS: []})
        lists[_FOLLOWERS] += [f"{part.partition}:{node}" for node in part.adding]
        nodes |= {str(node): {_FOLLOWER_RATE: str(PAUSED_RATE)} for node in part.adding}
    return {"topics": topics, "nodes": nodes}


def rate_of(throttles: Mapping[str, Any]) -> int | None:
    """Return the lowest rate of some throttles, None without any."""
    rates = [int(rate) for held in throttles.get("nodes", {}).values() for rate in held.values()]
    return min(rates, default=None)
