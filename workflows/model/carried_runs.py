"""What the controller has to do with other runs, and carries when it continues as new. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.model.controller import Controller
from workflows.model.outbound import Outbox
from workflows.model.run_requests import Answers
from workflows.model.state import pack, unpack
from workflows.model.watchers import Watchers

#: Bytes of a run's parameter: the server ends a run whose command has more than 2 MB.
LARGEST = 1_800_000

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

    def within(self, controller: Controller, more: Mapping[str, Any], limit: int = LARGEST) -> dict[str, Any]:
        """What the next run starts with in all, `more` included: at most so many bytes of JSON, which the server takes.

        Where it would be more, remembered answers are let go: first those to nodes, then those to runs. A node that
        sends a batch again then learns that it was carried out, but not what came of it; a run's request is carried out
        once more.
        """
        for forget in (controller.forget_results, self._forget_answers):
            if len(json.dumps(found := {**controller.carry(), **self.carry(), **more})) <= limit:
                return found
            forget()
        return {**controller.carry(), **self.carry(), **more}

    def _forget_answers(self) -> None:
        self.answers = Answers()

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
