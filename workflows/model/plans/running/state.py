"""The state of a plan that its run carries over to the run that continues it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.phases import Phases
from workflows.model.plans.adaptive import Decision, decision_of
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running import orders, reading
from workflows.model.plans.running.alerting import Advance, Alarms
from workflows.model.plans.running.calls import CheckResult, PlanMoveRow, VerifyResult
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.running.keeper_results import Holding
from workflows.model.plans.running.plan_results import OpenLane, OptionsRow, PlanOutcome, PlanProgress, PlanResult
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

    def summary(self, reasons: Sequence[str]) -> str:
        """Return how far the plan is in one line, with the first reason why no further lane begins."""
        if self.check is None:
            return "not compared with the cluster yet"
        done = sum(count for outcome, count in self.run.outcomes.items() if outcome == MoveOutcome.MOVED)
        total = self.run.bytes_total(self.check.bytes_total)
        share = 100 * (self.run.copied + self.run.copied_now) // max(1, total)
        waits = f"; {reasons[0]}" if reasons else ""
        return f"{done} of {self.check.moves} moves, {share}% of {total} bytes{waits}"

    def progress(
        self,
        workflow_id: str,
        phases: Phases,
        cancelling: bool,
        read_at: float,
        reasons: list[str],
        warning: str,
        options: PlanOptions,
    ) -> PlanProgress:
        """Return the response to the query `progress`; `read_at` is when the cluster was read last."""
        check = self.check
        return PlanProgress(
            workflow_id,
            phases.current,
            self.paused is not None,
            cancelling,
            self.rolling_back,
            self.started,
            check.moves if check else 0,
            check.lanes if check else 0,
            check.in_place if check else 0,
            self.run.left,
            [OpenLane(number, keys) for number, keys in sorted(self.run.open_lanes.items())],
            self.outcomes,
            self.run.bytes_total(check.bytes_total) if check else 0,
            self.run.copied + self.run.copied_now,
            read_at,
            reasons,
            self.adaptive if options.adaptive else None,
            self.rechecks.reasons,
            warning,
            self.run.stalled_rows,
            self.failures,
            self.run.skipped,
            OptionsRow.of(options),
            self.approvals,
            check.shown if check else None,
            phases.spans(),
        )

    def result(self, outcome: PlanOutcome, verified: VerifyResult | None, phases: Phases, plan: str) -> PlanResult:
        """Return the result of a run that has compared its plan, by the sha256 `plan`, with the cluster."""
        assert self.check is not None
        return PlanResult(
            outcome,
            self.check.moves,
            self.check.in_place,
            self.outcomes,
            self.run.copied,
            self.failures,
            self.run.skipped,
            verified,
            self.check.rollback_ref,
            phases.spans(),
            plan,
        )

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
