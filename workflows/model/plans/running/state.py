"""The state of a plan that its run carries over to the run that continues it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.adaptive import Decision, decision_of
from workflows.model.plans.running import orders, reading
from workflows.model.plans.running.alerting import Advance, Alarms
from workflows.model.plans.running.calls import CheckResult, PlanMoveRow
from workflows.model.plans.running.keeper_results import Holding
from workflows.model.plans.running.rechecking import Rechecks
from workflows.model.plans.running.run import MOST_FAILURES, PauseMode, PlanRun
from workflows.model.plans.running.throttling import holding_of


@dataclass
class PlanState:
    """The state of a plan between two of its steps; `started` is in epoch seconds.

    `check` is None until the plan has been compared with the cluster; `held` are the rates that the keeper of throttles
    holds for the plan.
    """

    started: float
    run: PlanRun = field(default_factory=PlanRun)
    check: CheckResult | None = None
    approvals: list[str] = field(default_factory=list)
    paused: PauseMode | None = None
    rolling_back: bool = False
    held: Holding = field(default_factory=Holding)
    alarms: Alarms = field(default_factory=Alarms)
    advance: Advance = field(default_factory=Advance)
    shares: bool = False
    """The keeper of slots holds some for the plan."""
    adaptive: Decision = field(default_factory=Decision)
    """The last decision about throttles that follow the cluster's health."""
    rechecks: Rechecks = field(default_factory=Rechecks)
    moving: float = 0.0
    """Seconds for which the runs before this one were moving."""

    @property
    def outcomes(self) -> dict[str, int]:
        """Return the moves by outcome, with those that the check of a roll-back has found to stay as they are."""
        found = dict(self.run.outcomes)
        for outcome, count in (self.check.outcomes if self.check is not None else {}).items():
            found[outcome] = found.get(outcome, 0) + count
        return found

    @property
    def failures(self) -> list[PlanMoveRow]:
        """Return the moves that missed their targets, with those of the check."""
        stay = self.check.failures if self.check is not None else []
        return [*stay, *self.run.failures][-MOST_FAILURES:]

    @property
    def comparable(self) -> bool:
        """Return whether the plan can be compared with the cluster at its end: a roll-back may have nothing left."""
        check = self.check
        return check is None or not check.outcomes or bool(check.lanes or check.in_place)

    def carried(self) -> dict[str, Any]:
        """Return the state as JSON values, which `of` reads."""
        return {
            "started": self.started,
            "approvals": self.approvals,
            "paused": self.paused,
            "rolling_back": self.rolling_back,
            "check": None if self.check is None else asdict(self.check),
            "run": self.run.carried(),
            "held": {node: dict(rates) for node, rates in self.held.rates.items()},
            "alarms": self.alarms.as_json(),
            "shares": self.shares,
            "adaptive": self.adaptive.as_json(),
            "rechecks": self.rechecks.as_json(),
            "advance": [*self.advance.mark, self.advance.since],
            "moving": self.moving,
        }

    @staticmethod
    def of(row: Mapping[str, Any], started: float, path: str = "$.carried") -> PlanState:
        """Read `carried`; `started` is that of a run which carries none. Raises BadField."""
        state = PlanState(
            fields.a_measure(row.get("started", started), f"{path}.started"),
            approvals=[
                orders.person({"by": each}) for each in fields.a_list(row.get("approvals", []), f"{path}.approvals")
            ],
            paused=orders.mode({"mode": row["paused"]}) if row.get("paused") else None,
            adaptive=decision_of(row.get("adaptive", {}), f"{path}.adaptive"),
            shares=fields.a_flag(row.get("shares", False), f"{path}.shares"),
            rolling_back=fields.a_flag(row.get("rolling_back", False), f"{path}.rolling_back"),
            moving=fields.a_measure(row.get("moving", 0.0), f"{path}.moving"),
        )
        if row.get("alarms") is not None:
            state.alarms = Alarms.of(row["alarms"], f"{path}.alarms")
        if row.get("rechecks") is not None:
            state.rechecks = Rechecks.of(row["rechecks"], f"{path}.rechecks")
        if row.get("advance") is not None:
            state.advance = Advance.of(row["advance"], f"{path}.advance")
        if row.get("check") is not None:
            state.check = reading.check(row["check"], f"{path}.check")
            state.run = PlanRun.of(fields.need(row, "run", path), f"{path}.run")
            state.held = holding_of({"rates": row.get("held", {})}, f"{path}.held")
            if len(state.run.states) != state.check.lanes:
                raise BadField(
                    f"{path}.run", f"has {len(state.run.states)} lanes, but the plan has {state.check.lanes}"
                )
        return state
