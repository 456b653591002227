"""PlanLane: requests up to some fifty moves of a plan from the cluster, and follows them to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.workflow import ActivityHandle

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, options
from workflows.model import names
from workflows.model.phases import Phases
from workflows.model.plans.running import calls, reading
from workflows.model.plans.running.calls import HoldCall, MovesCall, PlanMoveRow
from workflows.model.plans.running.following import MoveOutcome, MoveState
from workflows.model.plans.running.lane_request import LaneRequest, parse
from workflows.model.plans.running.plan_results import LanePhase, LaneProgress, LaneResult, PlanOutcome
from workflows.model.plans.running.throttling import entries_of
from workflows.plans import searching
from workflows.plans.steps import readable
from workflows.step_specs import start

#: Of so many moves one may be left when the plan may begin the next lane. A lane of fewer moves ends first.
FINISHING_AT = 5

#: The phases whose step ends with the signal `stop`.
INTERRUPTED = (LanePhase.REQUESTING, LanePhase.FOLLOWING, LanePhase.STALLED)


@workflow.defn(name=names.PLAN_LANE)
class PlanLane:
    """request_moves -> follow_moves, again while moves are open -> a signal with the rows to the plan.

    The signal `stop`, and a cancel of the run, cancel the moves that are under way; those that are done stay.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._request = LaneRequest("", "", 0, ())
        try:
            self._request = parse(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._rows = {spec.move().key: PlanMoveRow(spec.move().key) for spec in self._request.moves}
        self._requested = 0.0
        self._stopped = False
        self._throttled = self._request.throttled
        self._listing: asyncio.Task[list[str]] | None = None
        """Lists the replicas of a lane that began without a throttle."""
        self._finishing = False
        """The plan may begin the next lane on the disks of this one."""
        self._told: dict[str, str] = {}
        """The reasons of stalled moves that the plan knows."""
        self._step: ActivityHandle[Any] | None = None
        self._phases = Phases()

    @workflow.run
    async def run(self, *given: Any) -> LaneResult:
        """Return a row per move.

        A cancelled run ends as cancelled, after the plan has got the rows. An invalid parameter fails with InvalidPlan.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        self._requested = workflow.time()
        self._describe()
        if self._throttled and not self._stopping:
            await cancellation.shielded(self._throttle())
        if not self._stopping and self._open():
            self._enter(LanePhase.REQUESTING)
            await self._do(calls.REQUEST_MOVES)
            await cancellation.shielded(self._tell_finishing())
        while self._open() and not self._stopping:
            self._enter(LanePhase.STALLED if self._stalled() else LanePhase.FOLLOWING)
            await self._do(calls.FOLLOW_MOVES)
            await cancellation.shielded(self._tell_stalled())
            await cancellation.shielded(self._tell_finishing())
        await cancellation.shielded(self._cancel())
        if self._listing is not None:
            await cancellation.shielded(self._listing)
        if self._throttled:
            await cancellation.shielded(self._list(calls.RELEASE_THROTTLES))
        self._phases.enter(None, workflow.time())
        self._detail()
        searching.end(self._request.searchable, self._outcome())
        await cancellation.shielded(self._report())
        await cancellation.handlers_finished()
        if cancellation.requested():
            raise CancelledError("The lane was cancelled.")
        return LaneResult(list(self._rows.values()), self._phases.spans())

    def _enter(self, phase: LanePhase) -> None:
        if self._phases.current != phase and phase != LanePhase.REQUESTING:  # `_describe` has sent that one.
            searching.enter(self._request.searchable, phase)
        self._phases.enter(phase, workflow.time())
        self._detail()

    def _detail(self) -> None:
        """Write for Temporal's UI how far the lane is."""
        ended = len(self._rows) - len(self._open())
        why = next((f"; {row.key}: {row.reason}" for row in self._stalled()), "")
        workflow.set_current_details(f"{self._phases.current}: {ended} of {len(self._rows)} moves ended{why}")

    def _describe(self) -> None:
        request = self._request
        moves = [spec.move() for spec in request.moves]
        nodes = [disk.node for move in moves for disk in sorted(move.reads) + sorted(move.writes)]
        topics = sorted(move.partition.topic for move in moves)
        searching.describe(request.searchable, LanePhase.REQUESTING, request.cluster, topics, nodes)

    def _outcome(self) -> PlanOutcome:
        missed = [row for row in self._rows.values() if not row.reached]
        cancelled = all(row.outcome == MoveOutcome.CANCELLED for row in missed)
        return PlanOutcome.DONE if not missed else PlanOutcome.CANCELLED if cancelled else PlanOutcome.FAILED

    @property
    def _stopping(self) -> bool:
        return self._stopped or cancellation.requested()

    def _open(self) -> list[str]:
        return [key for key, row in self._rows.items() if not row.outcome]

    def _stalled(self) -> list[PlanMoveRow]:
        return [row for row in self._rows.values() if row.stalled and not row.outcome]

    async def _tell_stalled(self) -> None:
        """Send the plan the rows of the moves that do not advance, if others do not than before."""
        now = self._stalled()
        reasons = {row.key: row.stalled for row in now}
        if reasons == self._told or not self._open():
            return
        self._told = reasons
        await self._send("lane_stalled", now)

    async def _tell_finishing(self) -> None:
        """Let the plan begin the next lane once few moves are left, none of which is stalled."""
        if 0 < len(self._open()) <= self._finishes_at and not self._stopping:
            self._finishing = True
            await self._send("lane_finishing", ())

    @property
    def _finishes_at(self) -> int:
        """Return with how many open moves the next lane may begin; 0 once it may, and while moves are stalled."""
        return 0 if self._finishing or self._stalled() else len(self._rows) // FINISHING_AT

    async def _cancel(self) -> None:
        """Cancel the open moves; ever more rarely while a broker does not let go of one: it may be down for a week."""
        pause = options.LANE_CANCEL_AGAIN
        while self._open():
            self._enter(LanePhase.CANCELLING)
            await self._do(calls.CANCEL_MOVES)
            if self._open():
                await workflow.sleep(pause, summary="until the cancel is repeated")
                pause = min(2 * pause, options.PLAN_CANCEL_AGAIN_MAX)

    async def _do(self, activity: str) -> None:
        """Run one step for the open moves; what it cannot mend ends them."""
        keys = self._open()
        by_key = {spec.move().key: spec for spec in self._request.moves}
        found = [self._rows[key] for key in keys]
        call = MovesCall(
            self._request.cluster,
            workflow.info().workflow_id,
            [by_key[key].row() for key in keys],
            self._requested,
            [row.row() for row in found if row.stalled or row.repeats or row.state == MoveState.AWAITING_BROKER],
            self._finishes_at,
        )
        self._step = start(activity, call, cluster=self._request.cluster, summary=_summary(keys))
        try:
            result = await self._step
            self._apply(reading.moved(result, keys))
        except asyncio.CancelledError:
            if not cancellation.requested():
                raise
        except ActivityError as failure:
            # A step that was cancelled ends as failed where its worker is dead, or its last attempt failed: what may be
            # under way is cancelled then, and that step says what became of it.
            cause = failure.cause
            if not isinstance(cause, CancelledError) and (not self._stopping or activity == calls.CANCEL_MOVES):
                why = cause.message if isinstance(cause, ApplicationError) else str(cause)
                self._fail(f"{activity}: {why}")
        except BadField as problem:
            self._fail(f"the result of {activity} cannot be read: {problem}; do all workers run the same version?")
        finally:
            self._step = None

    def _apply(self, rows: Sequence[PlanMoveRow]) -> None:
        for row in rows:
            self._rows[row.key] = row

    def _fail(self, why: str) -> None:
        for key in self._open():
            self._rows[key] = PlanMoveRow(key, str(MoveOutcome.FAILED), reason=fields.shown(why))

    async def _throttle(self) -> None:
        """List the replicas as throttled; the moves fail if the cluster rejects that, and nothing is requested."""
        rejected = await self._list(calls.HOLD_THROTTLES)
        if rejected:
            self._fail(rejected[0])

    async def _list(self, activity: str) -> list[str]:
        """Have the cluster's keeper list the replicas as throttled, or take them off the list again; return why the
        cluster rejects it.
        """
        held = entries_of(spec.move() for spec in self._request.moves)
        if not held.entries:
            return []
        entries = {topic: {key: list(each) for key, each in lists.items()} for topic, lists in held.entries.items()}
        call = HoldCall(self._request.cluster, workflow.info().workflow_id, {}, entries)
        result = await start(activity, call, cluster=self._request.cluster)
        return readable(activity, reading.held, result).why_not("topic", entries)

    async def _report(self) -> None:
        """Send the rows to the plan's open run; a plan that has ended needs them no longer."""
        await self._send("lane_ended", self._rows.values())

    async def _send(self, signal: str, rows: Iterable[PlanMoveRow]) -> None:
        plan = workflow.get_external_workflow_handle(self._request.plan)
        try:
            await plan.signal(signal, {"number": self._request.number, "rows": [row.row() for row in rows]})
        except ApplicationError as error:
            workflow.logger.info("The plan %s takes no signal any more: %s", self._request.plan, error)

    @workflow.query(description="Phase, and a row per move")
    def progress(self) -> LaneProgress:
        """Return how far the run is."""
        return LaneProgress(
            workflow.info().workflow_id,
            self._request.plan,
            self._request.number,
            self._phases.current,
            self._stopping,
            list(self._rows.values()),
            self._phases.spans(),
        )

    @handlers.signal(lambda value: value, description="List the moved replicas as throttled from now on")
    def throttle(self, _: Any) -> None:
        """Let the plan's throttle hold for the moves that are under way: it had none when the lane began."""
        if self._throttled or self._stopping or self._phases.current not in ("", *INTERRUPTED):
            return
        self._throttled = True
        if self._phases.current:  # Before its first phase the run itself begins with that.
            self._listing = asyncio.create_task(self._list(calls.HOLD_THROTTLES))

    @handlers.signal(lambda value: value, description="Cancel the moves that are under way")
    def stop(self, _: Any) -> None:
        """End the lane: its open moves are cancelled."""
        self._stopped = True
        if self._step is not None and self._phases.current in INTERRUPTED:
            self._step.cancel()


def _summary(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{keys[0]}{more}" if keys else ""
