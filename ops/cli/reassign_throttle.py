"""KIP-73's throttles around a reassignment: set before it, taken back after it, and only what was set here.

With Temporal runs hold them on lease (`workflows.model.throttles`), and this command sets nothing. Without Temporal
this command sets them and keeps them in a file beside the plan, so that a second call removes what an interrupted first
one has set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign_plan import Row
from ops.stack.errors import OpsError
from workflows.model.throttles import LISTS, RATES

LEADERS, FOLLOWERS = LISTS


@dataclass(slots=True)
class Throttles:
    """What was set: items of the topics' lists, and the nodes' rates (bytes/s)."""

    topics: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.topics or self.nodes)

    def with_all(self, other: Mapping[str, Any]) -> Throttles:
        """These and what a run holds."""
        topics = {topic: dict(lists) for topic, lists in self.topics.items()}
        for topic, lists in other.get("topics", {}).items():
            for key, entries in lists.items():
                held = topics.setdefault(topic, {}).get(key, [])
                topics[topic][key] = sorted({*held, *entries})
        return Throttles(topics, {**self.nodes, **other.get("nodes", {})})


def note_of(file: Path) -> Path:
    """Where it stands what was set for a plan."""
    return file.with_name(file.name + ".throttles")


def items(rows: Iterable[Row]) -> dict[str, dict[str, list[str]]]:
    """The lists that a reassignment needs: who is copied from, and who copies."""
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
    """What is to be set beside what others have set (`topics`, `nodes`: the configs now), and `before` was set here.

    A list that says `*` is left as it is. A node that others have given a rate keeps it.
    """
    wanted = Throttles()
    for topic, lists in items(rows).items():
        for key, entries in lists.items():
            there = topics.get(topic, {}).get(key, "")
            held = {each.strip() for each in there.split(",") if each.strip()}
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


def to_take_back(mine: Throttles, nodes: Mapping[str, Mapping[str, str]]) -> Throttles:
    """What was set here and is as it was set: a rate that somebody has changed since is theirs."""
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
    """What runs are to hold for these rows; and sentences about nodes that keep the rate of others.

    `held`: what open runs of this plan hold, and goes on to the new rate; `beside`: those of other plans, whose rates
    the nodes keep until the last of all is done.
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
    """Set the throttles, noting first what is set; returns it, and sentences about nodes that keep others' rates."""
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
    """A sentence for each node that has a rate (`nodes`: what is set) which is not to be changed."""
    return [
        f"node {node} keeps the throttle of others: {', '.join(values[key] for key in RATES if key in values)}"
        for node, values in nodes.items()
        if any(key in values and key not in wanted.get(node, ()) for key in RATES)
    ]


def take_back(admin: KafkaAdmin, file: Path) -> bool:
    """Remove what was set for this plan; false when nothing was."""
    mine = _noted(file)
    if not mine:
        return False
    gone = to_take_back(mine, admin.configs("broker", sorted(mine.nodes)))
    for topic, lists in gone.topics.items():
        try:
            admin.change_configs(
                "topic", {topic: {key: ("SUBTRACT", ",".join(entries)) for key, entries in lists.items()}}
            )
        except OpsError:
            if topic in admin.topics():
                raise
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
            f"cannot read {note_of(file)}, which says what throttles were set for this plan: {error}; "
            "remove them with kafka-configs and delete the file"
        ) from error


def _note(file: Path, mine: Throttles) -> None:
    try:
        note_of(file).write_text(json.dumps({"topics": mine.topics, "nodes": mine.nodes}, indent=1) + "\n")
    except OSError as error:
        raise OpsError(f"cannot note in {note_of(file)} what throttles are set: {error.strerror}") from error
