"""The controller's state of other runs, which it carries when it continues as new. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_node.model.packing import pack, unpack
from workflows.model.controller.controller import Controller
from workflows.model.controller.outbound import Outbox
from workflows.model.controller.run_requests import Responses
from workflows.model.reassignment.watchers import Watchers

#: Maximum bytes of a run's parameter: the server terminates a run whose command has more than 2 MB.
LARGEST = 1_800_000

#: Maximum number of nodes whose lease ended and was not replaced yet: more than a cluster has.
REMEMBERED_LAPSES = 1_000


@dataclass(slots=True)
class CarriedRuns:
    """The runs that follow each reassignment, the responses to runs, and the commands that the server has not
    acknowledged yet; `lapsed`: by node the incarnation whose lease has reported its end, and that has no other yet.
    """

    watchers: Watchers = field(default_factory=Watchers)
    responses: Responses = field(default_factory=Responses)
    outbox: Outbox = field(default_factory=Outbox)
    lapsed: dict[int, str] = field(default_factory=dict)

    def carry(self) -> dict[str, Any]:
        """Return the next run's parameter beside what `Controller.carry` packs; its four parts are bounded."""
        lapsed = list(self.lapsed.items())[-REMEMBERED_LAPSES:]
        held = {"watched": self.watchers.rows(), "answered": self.responses.rows(), "outbound": self.outbox.rows()}
        return {
            **({"runs": pack(held)} if any(held.values()) else {}),
            **({"lapsed": [list(each) for each in lapsed]} if lapsed else {}),
        }

    def within(self, controller: Controller, more: Mapping[str, Any], limit: int = LARGEST) -> dict[str, Any]:
        """Return the whole parameter of the next run, with `more`: at most `limit` bytes of JSON.

        If it were larger, remembered responses are dropped: first those to nodes, then those to runs. A node that sends
        a batch again then learns that it was applied, but not its results; a run's repeated request is applied again.
        """
        for forget in (controller.forget_results, self._forget_responses):
            if len(json.dumps(found := {**controller.carry(), **self.carry(), **more})) <= limit:
                return found
            forget()
        return {**controller.carry(), **self.carry(), **more}

    def _forget_responses(self) -> None:
        self.responses = Responses()

    @staticmethod
    def start(carried: Any) -> CarriedRuns:
        """Return the state that an earlier run carried over."""
        if not isinstance(carried, Mapping):
            return CarriedRuns()
        held = unpack(carried["runs"]) if carried.get("runs") else {}
        return CarriedRuns(
            Watchers.of(held.get("watched", ())),
            Responses.of(held.get("answered", ())),
            Outbox.of(held.get("outbound", ())),
            {int(node): str(incarnation) for node, incarnation in carried.get("lapsed", ())},
        )
