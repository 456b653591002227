"""When a plan alerts, and the text of an alert. Pure.

An occurrence of an event begins when its condition begins to hold, and ends once the condition has not held for
`QUIET`: a rate that swings around what a deadline needs is one occurrence. Each is alerted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model import names
from workflows.model.plans import options
from workflows.model.plans.running.lane_request import workflow_id

#: Seconds for which a condition must not hold until it counts as over.
QUIET = 600.0
_LARGEST_COUNT = 1_000_000


class AlertEvent(StrEnum):
    """What a plan alerts about."""

    STALLED = "stalled"
    """No move has advanced for a while, though the plan may move."""
    AT_RISK = "at_risk"
    """The deadline will be missed."""
    APPROVAL = "approval"
    """The plan waits for approval again: the cluster has changed much since its check."""
    FAILED = "failed"
    DONE = "done"


@dataclass
class Alarms:
    """The occurrences of a plan's events: how many there were, and the last time (epoch s) that each open one held."""

    counts: dict[str, int] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)

    def due(self, event: AlertEvent, holds: bool, now: float) -> int:
        """Note whether a condition holds; return the number of the occurrence that begins now, from 1, else 0."""
        last = self.held.get(event)
        if not holds:
            if last is not None and now >= last + QUIET:
                del self.held[event]
            return 0
        self.held[event] = now
        if last is not None and now < last + QUIET:
            return 0
        self.counts[event] = self.counts.get(event, 0) + 1
        return self.counts[event]

    def over(self, event: AlertEvent) -> None:
        """Note that an occurrence has ended for good: when the condition holds next, it is another one."""
        self.held.pop(event, None)

    def as_json(self) -> dict[str, Any]:
        """Return the value that `of` reads."""
        return {"counts": self.counts, "held": self.held}

    @staticmethod
    def of(value: Any, path: str) -> Alarms:
        """Read `as_json`. Raises BadField."""
        row = fields.an_object(value, path, ("counts", "held"))
        counts = fields.an_object(row.get("counts", {}), f"{path}.counts", tuple(AlertEvent))
        held = fields.an_object(row.get("held", {}), f"{path}.held", tuple(AlertEvent))
        return Alarms(
            {name: fields.a_number(each, f"{path}.counts.{name}", 0, _LARGEST_COUNT) for name, each in counts.items()},
            {name: fields.a_measure(each, f"{path}.held.{name}") for name, each in held.items()},
        )


@dataclass
class Advance:
    """When a plan last advanced: `mark` is what it has reached, bytes copied and moves ended; `since` epoch seconds."""

    mark: list[int] = field(default_factory=lambda: [0, 0])
    since: float = 0.0

    def note(self, copied: int, ended: int, now: float) -> float:
        """Note what the plan has reached; return the seconds for which it has not advanced."""
        if not self.since or self.mark != [copied, ended]:
            self.mark, self.since = [copied, ended], now
        return now - self.since

    def rest(self) -> None:
        """Note that the plan may not move now: the next `note` begins another time."""
        self.since = 0.0

    @staticmethod
    def of(value: Any, path: str) -> Advance:
        """Read the list [copied, ended, since]. Raises BadField."""
        row = fields.a_list(value, path)
        if len(row) != 3:
            raise BadField(path, "must be bytes, moves, and a time")
        mark = [fields.a_number(each, f"{path}[{at}]") for at, each in enumerate(row[:2])]
        return Advance(mark, fields.a_measure(row[2], f"{path}[2]"))


@dataclass(frozen=True, slots=True)
class AlertRequest:
    """The parameter of the run that sends an alert, and of its activity. `webhook` is a name that the workers know.

    `id` is the same for every attempt, so that a receiver recognises an alert whose response was lost; `at` is in epoch
    seconds.
    """

    cluster: str
    webhook: str
    plan: str
    event: str
    id: str
    reason: str = ""
    summary: str = ""
    at: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the parameter that `parse` reads."""
        return {"version": 1} | {name: getattr(self, name) for name in _FIELDS}


_FIELDS = ("cluster", "webhook", "plan", "event", "id", "reason", "summary", "at")


def parse(parameter: Any) -> AlertRequest:
    """Read the parameter. Raises BadField."""
    row = fields.an_object(parameter, "$", ("version", *_FIELDS))
    fields.a_number(fields.need(row, "version", "$"), "$.version", 1, 1)
    event = fields.a_string(fields.need(row, "event", "$"), "$.event")
    if event not in set(AlertEvent):
        raise BadField("$.event", f"is {fields.shown(event)!r}, but must be one of {', '.join(AlertEvent)}")
    return AlertRequest(
        workflow_id(fields.need(row, "cluster", "$"), "$.cluster", names.LONGEST_CLUSTER),
        options.webhook_name(fields.need(row, "webhook", "$"), "$.webhook"),
        workflow_id(fields.need(row, "plan", "$"), "$.plan"),
        event,
        workflow_id(fields.need(row, "id", "$"), "$.id"),
        fields.shown(fields.a_note(row.get("reason", ""), "$.reason")),
        fields.shown(fields.a_note(row.get("summary", ""), "$.summary")),
        fields.a_measure(row.get("at", 0.0), "$.at"),
    )


_WORDS: Mapping[str, str] = {
    AlertEvent.STALLED: "is stalled",
    AlertEvent.AT_RISK: "is at risk of its deadline",
    AlertEvent.APPROVAL: "waits for approval again",
    AlertEvent.FAILED: "has failed",
    AlertEvent.DONE: "is done",
}


def sentence(alert: AlertRequest) -> str:
    """Return the text of an alert for people."""
    why = f": {alert.reason}" if alert.reason else ""
    summary = f" ({alert.summary})" if alert.summary else ""
    return f"rehome: the plan {alert.plan} {_WORDS[alert.event]}{why}{summary}"
