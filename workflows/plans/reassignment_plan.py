"""ReassignmentPlan: carries out the JSON of kafka-reassign-partitions on a Kafka cluster (KIP-113, KIP-455).

It talks to the cluster through activities that use the admin API alone; the cluster's own state says how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, options, updates
from workflows.model import names
from workflows.model.phases import ENDED, Phases
from workflows.model.plans.adaptive import decision_of
from workflows.model.plans.options import Approval, PlanOptions
from workflows.model.plans.options import read as read_options
from workflows.model.plans.recheck import Change
from workflows.model.plans.running import calls, lane_request, orders, packing, plan_results, reading
from workflows.model.plans.running.alerting import AlertEvent
from workflows.model.plans.running.calls import (
    CheckCall,
    ChooseCall,
    ChooseResult,
    HoldCall,
    PlanMoveRow,
    ReleaseSlotsCall,
    VerifyCall,
    VerifyResult,
)
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.running.keeper_results import Holding
from workflows.model.plans.running.plan_results import OptionsRow, PlanOutcome, PlanProgress, PlanResult
from workflows.model.plans.running.request import PlanRequest, continued, parse
from workflows.model.plans.running.run import MOST_SKIPPED, PauseMode, PlanPhase
from workflows.model.plans.running.state import PlanState
from workflows.model.plans.running.throttling import rates_of
from workflows.model.run_results import Paused
from workflows.plans import searching
from workflows.plans.alerting import Alerts
from workflows.plans.lane_runs import LaneRuns
from workflows.plans.steps import readable, run_with_texts
from workflows.updates import rejection


@workflow.defn(name=names.REASSIGNMENT_PLAN)
class ReassignmentPlan:
    """check_plan -> (approval) -> choose_lanes and a PlanLane for each, until none is left -> verify_plan.

    A plan may be paused, resumed, cancelled (with or without going back), slowed and approved by updates, at any time
    and from any client. Its open lanes run on when it continues as new: they report to its workflow id.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._request = PlanRequest()
        self._options = PlanOptions()
        self._cluster = names.cluster_of_plans(workflow.info().task_queue)
        self._state = PlanState(workflow.info().start_time.timestamp())
        self._phases = Phases()
        self._cancelled = self._roll_back = False
        self._reasons: list[str] = []
        self._warning = ""
        self._looked = 0.0
        self._changed = False
        """Something happened that may let another lane begin."""
        try:
            self._request = parse(handlers.only(given), workflow.info().start_time.timestamp())
            self._options = self._request.options
            if self._request.carried is not None:
                self._state = PlanState.of(self._request.carried, self._state.started)
            lane_request.workflow_id(workflow.info().workflow_id, "the workflow id", names.LONGEST_CLUSTER)
        except BadField as problem:
            self._problem = problem
        self._run = self._state.run
        self._alerts = Alerts(self._cluster, self._state)
        self._lanes = LaneRuns(self._cluster, self._run, self._note_change, self._wait_for)

    def _note_change(self) -> None:
        self._changed = True

    def _wait_for(self, reason: str) -> None:
        self._reasons = [reason]

    @workflow.run
    async def run(self, *given: Any) -> PlanResult:
        """Return the plan's result.

        An invalid parameter fails with InvalidPlan, a plan that the cluster cannot carry out with PlanRefused and all
        problems; both have changed nothing. A run whose cancel was requested ends as cancelled.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        try:
            if self._state.check is None:
                await self._prepare()
            if not self._stopping:
                await self._approved()
            await self._move()
            await self._release()
            verifies = self._options.verify and self._state.comparable and not self._stopping
            verified = await self._verify() if verifies else None
        except ApplicationError as failure:
            await self._alert(AlertEvent.FAILED, failure.message)
            raise
        self._enter(None)
        if not self._stopping:
            failed = self._result(verified).outcome == PlanOutcome.FAILED
            await self._alerts.end(self._options.alerts, self._summary(), failed, verified)
        await cancellation.handlers_finished()
        check = self._state.check
        if self._roll_back and not self._state.rolling_back and check is not None and check.rollback_ref:
            self._go_back()
        if cancellation.requested():
            raise CancelledError("The plan was cancelled.")
        result = self._result(verified)
        searching.end(self._searchable, result.outcome)
        workflow.set_current_details(f"{result.outcome.replace('_', ' ')}: {self._summary()}")
        return result

    @property
    def _stopping(self) -> bool:
        return self._cancelled or cancellation.requested()

    def _enter(self, phase: PlanPhase | None) -> None:
        if phase is not None and self._phases.current != phase:
            searching.enter(self._searchable, phase)
            workflow.set_current_details(f"{phase.replace('_', ' ')}: {self._summary()}")
        self._phases.enter(phase, workflow.time())

    @property
    def _searchable(self) -> bool:
        return self._state.check is not None and self._state.check.searchable

    def _summary(self) -> str:
        """Return one line for Temporal's UI."""
        return self._state.summary(self._reasons)

    async def _alert(self, event: AlertEvent, why: str) -> None:
        await self._alerts.send(self._options.alerts, self._summary(), {event: why})

    # --- before the first move

    async def _prepare(self) -> None:
        """Store the plan's text, and compare it with the cluster. Raises PlanRefused with all problems."""
        self._enter(PlanPhase.CHECKING)
        request, chosen = self._request, self._options.as_json()
        skipped = self._run.skipped
        call = CheckCall(self._cluster, request.plan, chosen, request.cluster_id, skipped, request.undoes)
        result = await self._step(calls.CHECK_PLAN, call)
        check = readable(calls.CHECK_PLAN, reading.check, result)
        self._request = self._request.narrowed(check)
        self._state.check = check = replace(check, plan_packed="")
        if check.problem_count:
            more = f" (and {check.problem_count - 1} more)" if check.problem_count > 1 else ""
            raise ApplicationError(
                f"{check.problems[0]}{more}", *check.problems, type=ErrorType.PLAN_REFUSED, non_retryable=True
            )
        self._run.planned(check.lanes)
        self._state.rechecks.at = workflow.time()
        searching.describe(check.searchable, self._phases.current, self._cluster, check.topics, check.brokers)
        if self._options.deadline:
            searching.deadline(check.searchable, self._options.deadline)

    async def _approved(self) -> None:
        """Wait until as many persons as the plan demands have approved it; a plan that waits has no events."""
        needed = _PERSONS[self._options.approval]
        if len(self._state.approvals) < needed and not self._state.rolling_back:
            self._enter(PlanPhase.AWAITING_APPROVAL)
            await cancellation.uncancelled(
                workflow.wait_condition(lambda: self._stopping or len(self._state.approvals) >= needed)
            )

    # --- moving

    async def _move(self) -> None:
        """Begin lanes as slots and space allow, until all have ended or the plan is cancelled."""
        patience = options.PLAN_READ_AGAIN
        while self._run.open_lanes or (self._run.left and not self._stopping):
            self._changed = False
            if self._stopping:
                self._enter(PlanPhase.CANCELLING)
                await self._lanes.stop()
                await self._until(lambda: not self._run.open_lanes, patience)
                # A broker may be down for a week: the history has to last as long.
                patience = min(2 * patience, options.PLAN_CANCEL_AGAIN_MAX)
                continue
            if self._state.paused is not None:
                await self._rest()
                continue
            if self._state.rechecks.waiting:
                await self._await_approval()
                continue
            if self._phases.current != PlanPhase.OUTSIDE_WINDOW:
                self._enter(PlanPhase.ROLLING_BACK if self._state.rolling_back else PlanPhase.MOVING)
            chosen = await self._choose()
            await self._note_changes(chosen)
            if self._state.rechecks.waiting:
                continue
            if self._stopping or self._state.paused is not None:
                self._continue_if_long()
                continue
            if chosen.opens_in is not None:
                self._state.advance.rest()
                self._enter(PlanPhase.OUTSIDE_WINDOW)
                await self._throttle(None if not self._run.open_lanes else chosen)
            else:
                self._enter(PlanPhase.ROLLING_BACK if self._state.rolling_back else PlanPhase.MOVING)
                if await self._throttle(chosen):
                    await self._lanes.begin(
                        chosen.lanes, throttled=self._options.throttled_between_brokers, searchable=self._searchable
                    )
            workflow.set_current_details(f"{self._phases.current}: {self._summary()}")
            await self._alerts.meanwhile(self._options.alerts, self._summary(), self._reasons, self._warning)
            self._continue_if_long()
            if self._run.open_lanes or self._run.left:
                await self._until(lambda: self._changed, self._pause_until_next(chosen))

    def _pause_until_next(self, chosen: ChooseResult) -> timedelta:
        """Return when to choose again if nothing happens: a plan without open lanes waits for its window alone."""
        waits = [each for each in (chosen.opens_in, chosen.changes_in) if each is not None]
        if self._run.open_lanes or chosen.opens_in is None:
            waits.append(options.PLAN_READ_AGAIN.total_seconds())
        return timedelta(seconds=min(waits))

    async def _rest(self) -> None:
        """Begin nothing until the plan is resumed; the throttles are released once no lane is open."""
        self._enter(PlanPhase.PAUSED)
        self._state.advance.rest()
        if not self._run.open_lanes:
            await self._release()
        elif self._state.paused == PauseMode.CANCEL and self._run.stopped != sorted(self._run.open_lanes):
            self._run.stop_for_pause()
            await self._lanes.stop()
        await self._look_on(lambda: self._state.paused is None)

    async def _look_on(self, over: Callable[[], bool]) -> None:
        """Wait while the plan begins nothing. Open lanes keep their throttles as these should be, and lanes that have
        ended leave their slots; without open lanes there are no events.
        """
        if not self._run.open_lanes:
            await self._until(over)
            return
        chosen = await self._choose(begins=False)
        await self._throttle(chosen if self._run.open_lanes else None)
        self._continue_if_long()
        await self._until(lambda: over() or self._changed, self._pause_until_next(chosen))

    async def _release(self) -> None:
        """Release the throttles, and the slots that other plans may use."""
        await self._throttle(None)
        if self._state.shares:
            await self._step(calls.RELEASE_SLOTS, ReleaseSlotsCall(self._cluster, workflow.info().workflow_id))
            self._state.shares = False

    async def _throttle(self, chosen: ChooseResult | None) -> bool:
        """Have the cluster's keeper hold the rates that apply now, or (None) release them; return False if the cluster
        rejects them, so that nothing may begin.
        """
        assert self._state.check is not None
        wanted = Holding()
        if chosen is not None:
            # Before the rates: they slow down no replica that is not listed.
            await self._lanes.list_throttled()
            wanted = rates_of(self._state.check.brokers, chosen.between_brokers, chosen.between_directories)
        if wanted == self._state.held:
            return True
        activity = calls.HOLD_THROTTLES if wanted.rates else calls.RELEASE_THROTTLES
        rates = {node: dict(row) for node, row in wanted.rates.items()}
        result = await self._step(activity, HoldCall(self._cluster, workflow.info().workflow_id, rates))
        rejected = readable(activity, reading.held, result).why_not("broker", rates)
        self._reasons = [*self._reasons, *rejected]
        if not rejected:
            self._state.held = wanted
        return not rejected

    async def _until(self, condition: Callable[[], bool], patience: timedelta | None = None) -> None:
        """Wait for a condition, a cancel, or (with `patience`) for so long."""
        try:
            await cancellation.uncancelled(
                workflow.wait_condition(lambda: condition() or self._interrupted(), timeout=patience)
            )
        except TimeoutError:
            return

    def _interrupted(self) -> bool:
        return self._stopping and self._phases.current != PlanPhase.CANCELLING

    async def _choose(self, *, begins: bool = True) -> ChooseResult:
        """Return what begins now, and under which conditions: a worker knows the time zones, the run does not."""
        assert self._state.check is not None
        call = ChooseCall(
            self._cluster,
            workflow.info().workflow_id,
            self._state.check.lanes_ref,
            self._options.as_json(),
            packing.pack_states(self._run.states),
            sorted(self._run.open_lanes),
            sorted(self._run.finishing),
            self._run.skipped,
            ChooseCall.most if begins else 0,
            rate=round(self._run.rate(self._moving())),
            shares=self._state.shares,
            adaptive=self._state.adaptive.as_json(),
            recheck=self._state.rechecks.request(
                workflow.time(), options.PLAN_RECHECK.total_seconds(), waits=self._waits_on_drift
            )
            if begins
            else None,
        )
        result = readable(calls.CHOOSE_LANES, reading.choice, await self._step(calls.CHOOSE_LANES, call))
        self._run.looked(result.copied, result.total)
        self._looked, self._reasons, self._warning = workflow.time(), result.reasons, result.warning
        self._state.shares = self._state.shares or result.shares
        if result.adaptive is not None:
            self._state.adaptive = decision_of(result.adaptive, "$.adaptive")
        for number in result.closed:
            # An operator has terminated its run, which did not report: it begins again, and adopts its moves.
            if number in self._run.open_lanes:
                self._run.back_to_pending(number)
        # A lane that is not pending, or that the plan does not have, is no choice of this plan's.
        return replace(result, lanes=[lane for lane in result.lanes if self._run.pending(lane.number)])

    async def _note_changes(self, chosen: ChooseResult) -> None:
        """Note how the cluster has changed since the check; a large change has to be approved by persons."""
        if chosen.change is None:
            return
        found = Change.of(chosen.change, "$.change")
        if self._state.rechecks.found(found, chosen.large_changes, workflow.time(), waits=self._waits_on_drift):
            self._state.approvals = []
            await self._alert(AlertEvent.APPROVAL, "; ".join(chosen.large_changes))

    @property
    def _waits_on_drift(self) -> bool:
        return self._options.waits_on_drift and not self._state.rolling_back

    async def _await_approval(self) -> None:
        """Begin nothing until the plan is approved as the cluster is now; lanes under way finish."""
        self._enter(PlanPhase.AWAITING_APPROVAL)
        self._state.advance.rest()
        if not self._run.open_lanes:
            await self._release()
        await self._look_on(lambda: not self._state.rechecks.waiting or self._state.paused is not None)

    def _moving(self) -> float:
        """Return the seconds for which the plan was moving, in this run and in those that it continues."""
        moving = (PlanPhase.MOVING, PlanPhase.ROLLING_BACK)
        spans = [(begin, end) for phase, begin, end in self._phases.spans() if phase in moving]
        return self._state.moving + sum((end or workflow.time()) - begin for begin, end in spans)

    def _continue_if_long(self) -> None:
        """Continue as new with the state, before the history grows long; open lanes report to the new run."""
        info = workflow.info()
        if info.get_current_history_length() < options.PLAN_EVENTS and not info.is_continue_as_new_suggested():
            return
        # What lanes and operators have sent by now is in the state.
        if not workflow.all_handlers_finished() or self._stopping:
            return
        state = replace(self._state, moving=self._moving())
        workflow.continue_as_new(continued(self._request, self._options, state.carried()))

    def _go_back(self) -> None:
        """Continue as new with the plan that goes back, after a cancel."""
        assert self._state.check is not None
        request = self._request.back(self._state.check)
        carried = {
            "started": self._state.started,
            "approvals": self._state.approvals,
            "rolling_back": True,
            "alarms": self._state.alarms.as_json(),
        }
        workflow.continue_as_new(continued(request, replace(self._options, window=""), carried))

    async def _verify(self) -> VerifyResult:
        self._enter(PlanPhase.VERIFYING)
        assert self._state.check is not None
        holder, brokers = workflow.info().workflow_id, self._state.check.brokers
        throttled = self._options.throttled
        call = VerifyCall(self._cluster, self._request.plan, self._run.skipped, holder, brokers, throttled)
        result = await self._step(calls.VERIFY_PLAN, call)
        return readable(calls.VERIFY_PLAN, reading.verified, result)

    async def _step(self, activity: str, call: Any) -> Any:
        return await run_with_texts(self._cluster, activity, call, self._texts)

    def _texts(self) -> list[str]:
        lanes = self._state.check.lanes_packed if self._state.check is not None else ""
        return [self._request.packed, self._request.undoes_packed, lanes]

    def _result(self, verified: VerifyResult | None) -> PlanResult:
        return self._state.result(self._outcome(verified), verified, self._phases, self._request.plan)

    def _outcome(self, verified: VerifyResult | None) -> PlanOutcome:
        if self._cancelled:
            return PlanOutcome.CANCELLED
        if any(outcome in self._state.outcomes for outcome in _MISSED) or (verified is not None and not verified.ok):
            return PlanOutcome.FAILED
        return PlanOutcome.ROLLED_BACK if self._state.rolling_back else PlanOutcome.DONE

    # --- what lanes and operators send meanwhile

    @handlers.signal(orders.lane_rows, description="A lane has ended: {number, rows}")
    def lane_ended(self, value: tuple[int, list[PlanMoveRow]]) -> None:
        """Note a lane's rows; moves that a pause cancelled begin again when the plan resumes."""
        if self._stopping:
            self._run.stopped = []
        self._run.ended(*value)
        self._changed = True

    @handlers.signal(orders.lane_rows, description="Moves of a lane do not advance: {number, rows}; no rows: all do")
    def lane_stalled(self, value: tuple[int, list[PlanMoveRow]]) -> None:
        """Note which moves of a lane do not advance, and why."""
        self._run.stalls(*value)
        self._changed = True

    @handlers.signal(orders.lane_rows, description="A lane has few moves left: the next may begin: {number, rows: []}")
    def lane_finishing(self, value: tuple[int, list[PlanMoveRow]]) -> None:
        """Let the next lane begin on the disks of this one."""
        self._run.finishes(value[0])
        self._changed = True

    @handlers.signal(lambda value: value, description="A slot that the plan waits for may be free")
    def slots_freed(self, _: Any) -> None:
        """Choose again."""
        self._changed = True

    @workflow.query(description="Phase, moves by outcome, bytes, open lanes, and why nothing more begins")
    def progress(self) -> PlanProgress:
        """Return how far the plan is."""
        it, info = self._state, workflow.info()
        return it.progress(
            info.workflow_id, self._phases, self._stopping, self._looked, self._reasons, self._warning, self._options
        )

    @workflow.update(description="Begin no further moves: {mode: finish or cancel}, what becomes of those under way")
    async def pause(self, *given: Any) -> plan_results.PlanPaused:
        """Respond at once; a paused plan without open lanes has no events."""
        self._state.paused = mode = orders.mode(_optional(given))
        self._changed = True
        return plan_results.PlanPaused(True, mode)

    @pause.validator
    def _may_pause(self, *given: Any) -> None:
        updates.checked(lambda: orders.mode(_optional(given)))
        self._needs_open()
        if self._state.paused is not None:
            raise rejection("The plan is paused already; resume it first.", ErrorType.NOTHING_TO_CHANGE)

    @workflow.update(description="Resume a paused plan")
    async def resume(self, *given: Any) -> Paused:
        """Begin the next lanes at once."""
        self._state.paused = None
        self._changed = True
        return Paused(False)

    @resume.validator
    def _may_resume(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        if self._state.paused is None:
            raise rejection("The plan is not paused.", ErrorType.NOTHING_TO_CHANGE)

    @workflow.update(description="Cancel the plan: {rollback: true} takes what is done back as well")
    async def cancel(self, *given: Any) -> plan_results.PlanCancelling:
        """Respond at once; the moves under way are cancelled next."""
        self._roll_back = orders.rollback(_optional(given))
        self._cancelled = self._changed = True
        return plan_results.PlanCancelling(True, self._roll_back)

    @cancel.validator
    def _may_cancel(self, *given: Any) -> None:
        updates.checked(lambda: orders.rollback(_optional(given)))
        self._needs_open()

    @workflow.update(description="Approve the plan as it was checked: {by: a name}")
    async def approve(self, *given: Any) -> plan_results.PlanApproved:
        """Count an approval; the same person counts once, and the submitter of a plan of two persons not at all."""
        by = orders.person(handlers.only(given))
        if by not in self._state.approvals:
            self._state.approvals.append(by)
        if self._state.rechecks.waiting and len(self._state.approvals) >= max(1, _PERSONS[self._options.approval]):
            self._state.rechecks.accept()
            self._state.alarms.over(AlertEvent.APPROVAL)
            self._changed = True
        return plan_results.PlanApproved(self._state.approvals)

    @approve.validator
    def _may_approve(self, *given: Any) -> None:
        by = updates.checked(lambda: orders.person(handlers.only(given)))
        self._needs_open()
        if self._state.check is None:
            raise rejection("The plan has not been compared with the cluster yet.")
        if self._options.approval == Approval.NONE and not self._state.rechecks.waiting:
            raise rejection("The plan needs no approval.")
        if self._options.approval == Approval.TWO_PERSONS and by == self._request.submitted_by:
            raise rejection(f"{by} submitted the plan: two other persons have to approve it.")

    @workflow.update(description="Change options of the plan: slots, throttles, window, deadline, health_gate")
    async def set_options(self, *given: Any) -> plan_results.PlanOptionsSet:
        """Apply the options to what begins from now on."""
        return self._apply(self._changed_options(given))

    def _apply(self, chosen: PlanOptions) -> plan_results.PlanOptionsSet:
        before, self._options = self._options, chosen
        if chosen.deadline != before.deadline:
            searching.deadline(self._searchable, chosen.deadline)
        if chosen.throttled_between_brokers and not before.throttled_between_brokers:
            self._run.list_open()
        self._changed = True
        return plan_results.PlanOptionsSet(OptionsRow.of(chosen))

    @set_options.validator
    def _may_set_options(self, *given: Any) -> None:
        self._needs_open()
        updates.checked(lambda: self._changed_options(given))

    def _changed_options(self, given: Any) -> PlanOptions:
        return self._with(fields.an_object(handlers.only(given), "$", orders.CHANGEABLE))

    def _with(self, changes: Mapping[str, Any]) -> PlanOptions:
        return read_options(self._options.as_json() | dict(changes), "$")

    @workflow.update(
        description="Limit each broker from now on: {rate}, or {between_brokers, between_directories}: a size such as "
        "20MB, or null"
    )
    async def set_throttle(self, *given: Any) -> plan_results.PlanOptionsSet:
        """Set the throttles next, also for the moves that are under way."""
        return self._apply(self._throttled(given))

    @set_throttle.validator
    def _may_set_throttle(self, *given: Any) -> None:
        self._needs_open()
        updates.checked(lambda: self._throttled(given))

    def _throttled(self, given: Any) -> PlanOptions:
        return self._with(orders.by_hand(orders.throttle(handlers.only(given)), self._options))

    @workflow.update(description="Change how many lanes begin from now on: {per_disk, per_broker, cluster}, or null")
    async def set_slots(self, *given: Any) -> plan_results.PlanOptionsSet:
        """Apply the slots to the lanes that begin from now on; those under way continue."""
        return self._apply(self._slotted(given))

    @set_slots.validator
    def _may_set_slots(self, *given: Any) -> None:
        self._needs_open()
        updates.checked(lambda: self._slotted(given))

    def _slotted(self, given: Any) -> PlanOptions:
        return self._with(orders.slots(handlers.only(given)))

    @workflow.update(description="Leave moves out: {moves: [keys]}, as orders-0 or orders-0@1")
    async def skip(self, *given: Any) -> plan_results.PlanSkipped:
        """Skip moves that have not begun; a lane under way keeps its moves."""
        self._run.skipped = sorted({*self._run.skipped, *orders.keys(handlers.only(given))})
        self._changed = True
        return plan_results.PlanSkipped(self._run.skipped)

    @skip.validator
    def _may_skip(self, *given: Any) -> None:
        keys = updates.checked(lambda: orders.keys(handlers.only(given)))
        self._needs_open()
        if len({*self._run.skipped, *keys}) > MOST_SKIPPED:
            raise rejection(f"At most {MOST_SKIPPED} moves can be skipped; cancel the plan and submit a smaller one.")

    @workflow.update(description="Try the moves that failed once more")
    async def retry(self, *given: Any) -> plan_results.PlanRetried:
        """Make their lanes pending again."""
        lanes = self._run.retry()
        self._changed = True
        return plan_results.PlanRetried(lanes)

    @retry.validator
    def _may_retry(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        self._needs_open()
        if not self._run.failed:
            raise rejection("No move of the plan has failed.")

    def _needs_open(self) -> None:
        ending = self._phases.current in (PlanPhase.VERIFYING, ENDED)
        if self._problem is not None or self._stopping or ending:
            raise rejection("The plan is ending.", ErrorType.TOO_LATE)


_PERSONS = {Approval.NONE: 0, Approval.REQUIRED: 1, Approval.TWO_PERSONS: 2}
"""How many have to approve a plan."""
_MISSED = (MoveOutcome.FAILED, MoveOutcome.SUPERSEDED, MoveOutcome.CANCELLED)


def _optional(given: Any) -> Any:
    value = handlers.only(given, optional=True)
    return {} if value is None else value
