"""The throttles of a cluster, by who holds them: the keeper of plans, or none of its plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workflows.model.plans.running.throttling import Leases
from workflows.model.plans.values import ClusterView
from workflows.model.throttles import MOVE_RATE

Configs = Mapping[str, Mapping[str, str]]
"""Configs that are set, by broker's id or topic's name."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A throttle that is set, but not by the keeper: a broker's rate, or entries of a topic's list.

    `in_use` names what it slows at the moment, "" for nothing.
    """

    kind: str
    name: str
    key: str
    value: str
    in_use: str = ""

    @property
    def change(self) -> tuple[str, str | None]:
        """Return the operation that removes it. Entries that another client adds meanwhile stay."""
        return ("DELETE", None) if self.kind == "broker" else ("SUBTRACT", self.value)

    @property
    def label(self) -> str:
        """Return the throttle for people."""
        return f"{self.kind} {self.name}: {self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Throttled:
    """The configs of throttles that are set on a cluster, and the brokers that did not respond."""

    brokers: Configs = field(default_factory=dict)
    topics: Configs = field(default_factory=dict)
    silent: tuple[str, ...] = ()


def leftovers(found: Throttled, leases: Leases, view: ClusterView) -> list[Leftover]:
    """Return the throttles that no lease of the keeper holds, in order of their names."""
    rates, topics = _busy(view)
    rows = []
    for node, values in sorted(found.brokers.items(), key=lambda each: int(each[0])):
        for key, value in sorted(values.items()):
            if (node, key) not in leases.values:
                rows.append(Leftover("broker", node, key, value, rates.get((node, key == MOVE_RATE), "")))
    for topic, lists in sorted(found.topics.items()):
        for key, text in sorted(lists.items()):
            entries = [each for each in (part.strip() for part in text.split(",")) if each]
            mine = [each for each in entries if (topic, key, each) not in leases.entries]
            if mine:
                rows.append(Leftover("topic", topic, key, ",".join(mine), topics.get(topic, "")))
    return rows


def _busy(view: ClusterView) -> tuple[dict[tuple[str, bool], str], dict[str, str]]:
    """Return what is being moved, by broker (and whether between its directories), and by topic."""
    rates: dict[tuple[str, bool], str] = {}
    topics: dict[str, str] = {}
    for tp, state in sorted(view.partitions.items()):
        if state.adding or state.removing:
            what = f"the reassignment of {tp} is in progress"
            topics.setdefault(tp.topic, what)
            for node in state.replicas:
                rates.setdefault((str(node), False), what)
    for node, tp in sorted(view.futures):
        rates.setdefault((str(node), True), f"a move of {tp} between directories is in progress")
    return rates, topics


def still(chosen: Iterable[Leftover], now: Iterable[Leftover]) -> list[Leftover]:
    """Return those of some leftovers that are the same now, and slow nothing."""
    unchanged = set(now)
    return [each for each in chosen if each in unchanged and not each.in_use]


def changes(chosen: Iterable[Leftover]) -> dict[str, dict[str, dict[str, tuple[str, str | None]]]]:
    """Return the requests that remove leftovers, one for each kind: by name, a change for each config."""
    grouped: dict[str, dict[str, dict[str, tuple[str, str | None]]]] = {}
    for each in chosen:
        grouped.setdefault(each.kind, {}).setdefault(each.name, {})[each.key] = each.change
    return grouped
