"""What a plan remembers of its rechecks: what changed, what a person has accepted, and whether it waits for one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from storage_node.model import fields
from workflows.model.plans.recheck import Change


@dataclass
class Rechecks:
    """`at` is when the plan was last compared with the cluster, epoch seconds; `reasons` are the large changes, in
    words; `waiting`: the plan begins no lane until they are approved.
    """

    at: float = 0.0
    seen: Change = field(default_factory=Change)
    accepted: Change = field(default_factory=Change)
    reasons: list[str] = field(default_factory=list)
    waiting: bool = False

    def request(self, now: float, every: float, *, waits: bool) -> dict[str, Any] | None:
        """Return what the next choice compares with the cluster, None if the last time was less than `every` ago."""
        if now < self.at + every:
            return None
        return {"seen": self.seen.as_json(), "accepted": self.accepted.as_json(), "waits": waits}

    def found(self, seen: Change, reasons: list[str], now: float, *, waits: bool) -> bool:
        """Note what a recheck found; return whether the plan begins to wait for approval."""
        self.at, self.seen, self.reasons = now, seen, reasons
        begins = bool(reasons) and waits and not self.waiting
        self.waiting = self.waiting or begins
        return begins

    def accept(self) -> None:
        """Note that a person has approved the plan with what has changed."""
        self.accepted, self.reasons, self.waiting = self.seen, [], False

    def as_json(self) -> dict[str, Any]:
        """Return the value that `of` reads."""
        return {
            "at": self.at,
            "seen": self.seen.as_json(),
            "accepted": self.accepted.as_json(),
            "reasons": self.reasons,
            "waiting": self.waiting,
        }

    @staticmethod
    def of(value: Any, path: str) -> Rechecks:
        """Read `as_json`. Raises BadField."""
        row = fields.an_object(value, path, ("at", "seen", "accepted", "reasons", "waiting"))
        return Rechecks(
            fields.a_measure(row.get("at", 0.0), f"{path}.at"),
            Change.of(row.get("seen", {}), f"{path}.seen"),
            Change.of(row.get("accepted", {}), f"{path}.accepted"),
            [
                fields.shown(fields.a_note(each, f"{path}.reasons[{at}]"))
                for at, each in enumerate(fields.a_list(row.get("reasons", []), f"{path}.reasons"))
            ],
            fields.a_flag(row.get("waiting", False), f"{path}.waiting"),
        )
