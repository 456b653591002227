"""What the controller has to do with other runs, and carries when it continues as new. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.model.outbound import Outbox
from workflows.model.run_requests import Answers
from workflows.model.state import pack, unpack
from workflows.model.watchers import Watchers

#: Nodes whose lease ended and was not followed by another yet: more than a cluster has.
REMEMBERED_LAPSES = 1_000


@dataclass(slots=True)
class CarriedRuns:
    """Which runs see which reassignment through, the responses to runs, what the server has not acknowledged yet;
    `lapsed`: by node the incarnation whose lease has reported its end, and that has no other yet.
    """

    watchers: Watchers = field(default_factory=Watchers)
    answers: Answers = field(default_factory=Answers)
    outbox: Outbox = field(default_factory=Outbox)
    lapsed: dict[int, str] = field(default_factory=dict)

    def carry(self) -> dict[str, Any]:
        """Return what the next run starts with, beside what `Controller.carry` packs; its four parts are bounded."""
        lapsed = list(self.lapsed.items())[-REMEMBERED_LAPSES:]
        held = {"watched": self.watchers.rows(), "answered": self.answers.rows(), "outbound": self.outbox.rows()}
        return {
            **({"runs": pack(held)} if any(held.values()) else {}),
            **({"lapsed": [list(each) for each in lapsed]} if lapsed else {}),
        }

    @staticmethod
    def start(carried: Any) -> CarriedRuns:
        """Return what an earlier run carried over."""
        if not isinstance(carried, Mapping):
            return CarriedRuns()
        held = unpack(carried["runs"]) if carried.get("runs") else {}
        return CarriedRuns(
            Watchers.of(held.get("watched", ())),
            Answers.of(held.get("answered", ())),
            Outbox.of(held.get("outbound", ())),
            {int(node): str(incarnation) for node, incarnation in carried.get("lapsed", ())},
        )
