"""Throttles that follow the cluster's health: an additive increase while it is healthy, halving on trouble. Pure.

The signs of trouble are those that the admin API shows: partitions with fewer in-sync replicas than
min.insync.replicas, and partitions of which a replica is out of the ISR, beside those that a reassignment adds. The API
shows no produce latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node.model import fields
from storage_node.model.ids import NO_LEADER
from workflows.model.move import parameter as move_parameter
from workflows.model.plans.problems import Problems
from workflows.model.plans.values import ClusterView

#: Seconds between two decisions: a follower that a throttle holds back needs replica.lag.time.max.ms (30 s) to show it.
EVERY = 60.0
#: Increases from the lower bound to the upper one.
STEPS = 10
#: The paths that have a throttle of their own, by their option.
BROKERS, DIRECTORIES = "between_brokers", "between_directories"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a rate, in bytes/s."""

    low: int
    high: int

    def as_json(self) -> dict[str, Any]:
        """Return what `read_bounds` reads."""
        return {"low": self.low, "high": self.high}

    @property
    def step(self) -> int:
        """Return by how much the rate is increased at a time."""
        return max(1, (self.high - self.low) // STEPS)


def read_bounds(value: Any, path: str) -> Bounds:
    """Read {"low": "10MB", "high": "200MB"}. Raises PlanProblems with every mistake."""
    problems = Problems()
    row = problems.object(value, path, ("low", "high"), ("low", "high"))
    low = problems.read(move_parameter.size, row["low"], f"{path}.low") if "low" in row else None
    high = problems.read(move_parameter.size, row["high"], f"{path}.high") if "high" in row else None
    if low is not None and high is not None and low > high:
        problems.add(f"{path}.low", f"is {low}, but must be at most high, which is {high}")
    problems.finish()
    return Bounds(low or 1, high or 1)


@dataclass(frozen=True, slots=True)
class Signals:
    """The partitions that show whether the cluster is healthy."""

    under_min_isr: int = 0  # partitions under min.insync.replicas, or without a leader
    under_replicated: int = 0  # partitions with a replica out of the ISR, beside those that are being added

    @property
    def trouble(self) -> str:
        """Return what is wrong, "" if nothing is."""
        found = []
        if self.under_min_isr:
            found.append(f"partitions below min.insync.replicas: {self.under_min_isr}")
        if self.under_replicated:
            found.append(f"under-replicated partitions: {self.under_replicated}")
        return ", ".join(found)


def signals_of(view: ClusterView) -> Signals:
    """Return the signs of trouble in a view of the whole cluster's metadata."""
    under = replicated = 0
    for state in view.partitions.values():
        low = len(state.isr) < min(state.min_isr, len(state.target))
        under += low or state.leader == NO_LEADER
        replicated += state.under_replicated
    return Signals(under, replicated)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about throttles that follow the cluster's health."""

    rates: Mapping[str, int] = field(default_factory=dict)  # that hold: `between_brokers`, `between_directories`
    at: float = 0.0  # when it was decided, epoch seconds
    why: str = ""
    signals: Signals = field(default_factory=Signals)  # by which it was decided

    def as_json(self) -> dict[str, Any]:
        """Return the value that `decision_of` reads."""
        return {
            "rates": dict(self.rates),
            "at": self.at,
            "why": self.why,
            "under_min_isr": self.signals.under_min_isr,
            "under_replicated": self.signals.under_replicated,
        }


def decision_of(value: Any, path: str) -> Decision:
    """Read `Decision.as_json`. Raises BadField."""
    row = fields.an_object(value, path, ("rates", "at", "why", "under_min_isr", "under_replicated"))
    rates = fields.an_object(row.get("rates", {}), f"{path}.rates", (BROKERS, DIRECTORIES))
    return Decision(
        {name: fields.a_number(each, f"{path}.rates.{name}", 1) for name, each in rates.items()},
        fields.a_measure(row.get("at", 0.0), f"{path}.at"),
        fields.shown(fields.a_note(row.get("why", ""), f"{path}.why")),
        Signals(
            fields.a_number(row.get("under_min_isr", 0), f"{path}.under_min_isr"),
            fields.a_number(row.get("under_replicated", 0), f"{path}.under_replicated"),
        ),
    )


def decide(bounds: Mapping[str, Bounds], before: Decision, signals: Signals, now: float) -> Decision:
    """Return the rates from now on: the ones before until `EVERY` seconds have passed since they were decided.

    A plan begins at the lower bound; changed bounds hold at once.
    """
    if not bounds:
        return Decision()
    kept = {path: min(max(before.rates.get(path, each.low), each.low), each.high) for path, each in bounds.items()}
    if before.at and now < before.at + EVERY:
        return replace(before, rates=kept)
    if not before.at:
        return Decision(kept, now, "begins at the lower bound", signals)
    if trouble := signals.trouble:
        halved = {path: max(bounds[path].low, rate // 2) for path, rate in kept.items()}
        return Decision(halved, now, f"halved, to the lower bound at least: {trouble}", signals)
    raised = {path: min(bounds[path].high, rate + bounds[path].step) for path, rate in kept.items()}
    return Decision(raised, now, "increased by a step, to the upper bound at most: the cluster is healthy", signals)


def bounded(rate: int | None, adaptive: int | None) -> int | None:
    """Return the lower of a plan's own rate and the adaptive one; None is no limit."""
    return min((each for each in (rate, adaptive) if each is not None), default=None)
