"""Making states for the model's tests: a cluster of registered nodes, and commands as nodes send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from storage_node.model.image import ImageMessage
from storage_node.model.metadata import TopicImage
from workflows.model.metadata import commands
from workflows.model.metadata.outcome import Change
from workflows.model.metadata.state import ClusterState

_ids = count()


def new_id() -> str:
    """An id like a topic's, never the same twice."""
    return f"id{next(_ids):020d}"


def registration(node: int, incarnation: str = "", *, online: bool = True, directory: str = "") -> dict[str, Any]:
    return {
        "do": "register",
        "node": node,
        "incarnation": incarnation or f"i{node}",
        "host": "localhost",
        "port": 9092,
        "directories": [[directory or f"d{node}", "/a", online], [f"e{node}", "/b", True]],
    }


def cluster(nodes: int = 3, **topics: int) -> ClusterState:
    """A cluster with so many nodes, and topics with so many partitions."""
    state = ClusterState("c")
    for node in range(1, nodes + 1):
        state = done(state, registration(node))
    for name, partitions in topics.items():
        state = done(state, create(name, partitions))
    return state


def apply(state: ClusterState, command: Any) -> Change:
    return commands.apply(state, command, new_id)


def done(state: ClusterState, command: Any) -> ClusterState:
    """The state after a command that must succeed."""
    change = apply(state, command)
    assert not any(result.get("error") for result in change.results), change.results
    return change.state


def refused(state: ClusterState, command: Any) -> tuple[int, str]:
    """The error and message of a command that must be refused without a trace."""
    change = apply(state, command)
    assert change.state == state
    (result,) = change.results
    assert result["error"]
    return result["error"], result["message"]


def create(name: str, partitions: int = 1, **more: Any) -> dict[str, Any]:
    return {"do": "create_topics", "topics": [{"name": name, "partitions": partitions, **more}]}


def lost(node: int, incarnation: str = "") -> dict[str, Any]:
    return {"do": "lease_ended", "node": node, "incarnation": incarnation or f"i{node}"}


def raising_rows(node: int) -> dict[str, Any]:
    """A node is about to move its replica of t-1."""
    return {"do": "raise_generations", "node": node, "replicas": [["t", 1, "", f"d{node}", 0]]}


def topics_after(topics: Mapping[str, TopicImage], found: ImageMessage) -> dict[str, TopicImage]:
    """What a receiver of these topics knows of topics after an image."""
    held = {} if found.since == 0 else dict(topics)
    held = {name: topic for name, topic in held.items() if topic.id not in found.gone}
    held.update(found.topics)
    for name, changed in found.partitions.items():
        rows = {each.index: each for each in (*held[name].partitions, *changed)}
        held[name] = replace(held[name], partitions=tuple(rows[index] for index in sorted(rows)))
    return held
