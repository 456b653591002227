"""When a plan's run alerts, by its state. No webhook is waited for: each alert is a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from temporalio import workflow

from storage_node.model import fields
from workflows import options
from workflows.model import names
from workflows.model.plans.running.alerting import AlertEvent, AlertRequest
from workflows.model.plans.running.calls import VerifyResult
from workflows.model.plans.running.state import PlanState
from workflows.plans import plan_alert


class Alerts:
    """The alerts of one plan; `webhook` is its option, "" for none, `summary` one line about the plan."""

    def __init__(self, cluster: str, state: PlanState) -> None:
        self._cluster, self._state = cluster, state

    async def send(self, webhook: str, summary: str, holds: Mapping[AlertEvent, str]) -> None:
        """Send an alert for each event whose condition begins to hold, with its reason."""
        if not webhook:
            return
        plan, now = workflow.info().workflow_id, workflow.time()
        for event in AlertEvent:
            occurrence = self._state.alarms.due(event, event in holds, now)
            if occurrence:
                name = names.plan_alert_id(plan, event, self._state.started, occurrence)
                why = fields.shown(holds[event])
                await plan_alert.send(
                    AlertRequest(self._cluster, webhook, plan, event, name, why, fields.shown(summary), now)
                )

    async def meanwhile(self, webhook: str, summary: str, reasons: Sequence[str], warning: str) -> None:
        """Alert a plan that may move and does not advance, or that will miss its deadline."""
        run = self._state.run
        idle = self._state.advance.note(run.copied + run.copied_now, sum(run.outcomes.values()), workflow.time())
        holds = {AlertEvent.AT_RISK: warning} if warning else {}
        stalled = [f"{row.key}: {row.reason}" for row in run.stalled_rows[:3]]
        if stalled:
            holds[AlertEvent.STALLED] = "; ".join(stalled)
        elif idle >= options.PLAN_STALLED_AFTER.total_seconds():
            why = f"; {'; '.join(reasons)}" if reasons else ""
            holds[AlertEvent.STALLED] = f"no byte was copied and no move ended for {idle / 60:.0f} min{why}"
        await self.send(webhook, summary, holds)

    async def end(self, webhook: str, summary: str, failed: bool, verified: VerifyResult | None) -> None:
        """Alert how a plan ended that no operator has cancelled."""
        if not failed:
            await self.send(webhook, summary, {AlertEvent.DONE: ""})
            return
        missed = [f"{row.key} {row.outcome}: {row.reason}" for row in self._state.run.failures[:3]]
        differs = [] if verified is None else verified.differences[:3]
        await self.send(webhook, summary, {AlertEvent.FAILED: "; ".join([*missed, *differs])})
