"""The throttles of a reassignment (KIP-73): set before it, removed after it, except those that others have set.

With Temporal runs hold them on lease (`workflows.model.metadata.throttle_leases`), and this command sets nothing.
Without Temporal this command sets them and records them in a file beside the plan, so that a second call removes what
an interrupted first one has set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign.comparing import Row
from ops.stack.errors import OpsError
from workflows.model.throttles import LISTS, RATES

LEADERS, FOLLOWERS = LISTS


@dataclass(slots=True)
class Throttles:
    """Throttles that were set: items of the topics' lists, and the nodes' rates (bytes/s)."""

    topics: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.topics or self.nodes)

    def with_all(self, other: Mapping[str, Any]) -> Throttles:
        """Return these throttles with those that a run holds."""
        topics = {topic: dict(lists) for topic, lists in self.topics.items()}
        for topic, lists in other.get("topics", {}).items():
            for key, entries in lists.items():
                held = topics.setdefault(topic, {}).get(key, [])
                topics[topic][key] = sorted({*held, *entries})
        return Throttles(topics, {**self.nodes, **other.get("nodes", {})})


def note_of(file: Path) -> Path:
    """Return the file that records the throttles that were set for a plan."""
    return file.with_name(file.name + ".throttles")


def items(rows: Iterable[Row]) -> dict[str, dict[str, list[str]]]:
    """Return the lists for a reassignment: the replicas that are copied from, and those that copy."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        lists = found.setdefault(row.partition.topic, {LEADERS: [], FOLLOWERS: []})
        lists[LEADERS] += [f"{row.partition.partition}:{node}" for node in row.source]
        lists[FOLLOWERS] += [f"{row.partition.partition}:{node}" for node in row.target if node not in row.source]
    return found


def to_set(
    rows: Sequence[Row],
    rate: int,
    topics: Mapping[str, Mapping[str, str]],
    nodes: Mapping[str, Mapping[str, str]],
    before: Throttles,
) -> Throttles:
    """Return the throttles to set beside the current configs (`topics`, `nodes`); `before` was set for this plan.

    A list that is `*` is not changed. A node keeps a rate that was set elsewhere.
    """
    wanted = Throttles()
    for topic, lists in items(rows).items():
        for key, entries in lists.items():
            current = topics.get(topic, {}).get(key, "")
            held = {each.strip() for each in current.split(",") if each.strip()}
            mine = set(before.topics.get(topic, {}).get(key, ()))
            new = [] if "*" in held else sorted({each for each in entries if each not in held} | (mine & held))
            if new:
                wanted.topics.setdefault(topic, {})[key] = new
    for node in sorted({node for row in rows for node in (*row.source, *row.target)}):
        for key in RATES:
            now = nodes.get(str(node), {}).get(key)
            if now is None or now == before.nodes.get(str(node), {}).get(key):
                wanted.nodes.setdefault(str(node), {})[key] = str(rate)
    return wanted


def to_remove(mine: Throttles, nodes: Mapping[str, Mapping[str, str]]) -> Throttles:
    """Return the throttles to remove: a rate that another client has changed since is kept."""
    rates = {
        node: {key: value for key, value in values.items() if nodes.get(node, {}).get(key) == value}
        for node, values in mine.nodes.items()
    }
    return Throttles(mine.topics, {node: values for node, values in rates.items() if values})


def to_lease(
    admin: KafkaAdmin,
    rows: Sequence[Row],
    rate: int,
    held: Iterable[Mapping[str, Any]] = (),
    beside: Iterable[Mapping[str, Any]] = (),
) -> tuple[Throttles, list[str]]:
    """Return the throttles that runs are to hold for these rows, and sentences about nodes that keep another rate.

    `held` are the throttles of this plan's open runs, which get the new rate; `beside` those of other plans, whose
    rates the nodes keep until the last plan has ended.
    """
    before, shared = Throttles(), Throttles()
    for each in held:
        before = before.with_all(each)
    for each in beside:
        shared = shared.with_all(each)
    nodes = _rates(admin, rows)
    wanted = to_set(rows, rate, {}, nodes, before)
    for node, rates in shared.nodes.items():
        same = {key: value for key, value in rates.items() if nodes.get(node, {}).get(key) == value}
        if same:
            wanted.nodes[node] = {**same, **wanted.nodes.get(node, {})}
    return wanted, _kept(nodes, {node: [k for k in r if r[k] == str(rate)] for node, r in wanted.nodes.items()})


def throttle(admin: KafkaAdmin, file: Path, rows: Sequence[Row], rate: int) -> tuple[Throttles, list[str]]:
    """Record the throttles and set them; return them, and sentences about nodes that keep another rate."""
    before = _noted(file)
    topics = admin.configs("topic", sorted({row.partition.topic for row in rows}))
    nodes = _rates(admin, rows)
    wanted = to_set(rows, rate, topics, nodes, before)
    mine = Throttles({**before.topics, **wanted.topics}, {**before.nodes, **wanted.nodes})
    _note(file, mine)
    admin.change_configs("broker", {node: _each("SET", values) for node, values in wanted.nodes.items()})
    admin.change_configs(
        "topic",
        {
            topic: {key: ("APPEND", ",".join(entries)) for key, entries in lists.items()}
            for topic, lists in wanted.topics.items()
        },
    )
    return mine, _kept(nodes, wanted.nodes)


def _rates(admin: KafkaAdmin, rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    return admin.configs("broker", sorted({str(node) for row in rows for node in (*row.source, *row.target)}))


def _kept(nodes: Mapping[str, Mapping[str, str]], wanted: Mapping[str, Collection[str]]) -> list[str]:
    """Return a sentence for each node whose rate (`nodes`: the current ones) is not to be changed."""
    return [
        f"node {node} keeps its throttle, which this plan has not set: "
        + ", ".join(values[key] for key in RATES if key in values)
        for node, values in nodes.items()
        if any(key in values and key not in wanted.get(node, ()) for key in RATES)
    ]


def remove(admin: KafkaAdmin, file: Path) -> bool:
    """Remove the throttles that were set for this plan; return False if there are none."""
    mine = _noted(file)
    if not mine:
        return False
    gone = to_remove(mine, admin.configs("broker", sorted(mine.nodes)))
    lists = {
        topic: {key: ("SUBTRACT", ",".join(entries)) for key, entries in values.items()}
        for topic, values in gone.topics.items()
    }
    try:
        admin.change_configs("topic", lists)
    except OpsError:  # A deleted topic has no lists any more; the request may not have changed those of the others.
        known = set(admin.topics())
        if known.issuperset(lists):
            raise
        admin.change_configs("topic", {topic: values for topic, values in lists.items() if topic in known})
    admin.change_configs("broker", {node: _each("DELETE", values) for node, values in gone.nodes.items()})
    note_of(file).unlink(missing_ok=True)
    return True


def _each(operation: str, values: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    return {key: (operation, None if operation == "DELETE" else value) for key, value in values.items()}


def _noted(file: Path) -> Throttles:
    try:
        value: Any = json.loads(note_of(file).read_text())
        return Throttles(dict(value["topics"]), dict(value["nodes"]))
    except FileNotFoundError:
        return Throttles()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OpsError(
            f"cannot read {note_of(file)}, which records the throttles of this plan: {error}; "
            "remove them with kafka-configs and delete the file"
        ) from error


def _note(file: Path, mine: Throttles) -> None:
    try:
        note_of(file).write_text(json.dumps({"topics": mine.topics, "nodes": mine.nodes}, indent=1) + "\n")
    except OSError as error:
        raise OpsError(f"cannot write the throttles of this plan to {note_of(file)}: {error.strerror}") from error
