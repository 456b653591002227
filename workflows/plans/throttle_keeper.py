"""ThrottleKeeper: the one run of a cluster that sets the throttles of plans, and gives back what stood there before."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, options, updates
from workflows.model import names
from workflows.model.plans.running import calls, lane_request, reading
from workflows.model.plans.running.calls import ReadThrottlesCall, WriteThrottlesCall
from workflows.model.plans.running.keeper_results import (
    Holding,
    KeeperResult,
    ThrottleKeeperProgress,
    ThrottlesApplied,
    ThrottlesForgotten,
)
from workflows.model.plans.running.throttling import (
    Change,
    Current,
    Leases,
    a_node,
    holding_of,
    packed,
    progress_of,
    unpacked,
)
from workflows.plans.steps import run_step


@workflow.defn(name=names.THROTTLE_KEEPER)
class ThrottleKeeper:
    """read_throttles -> write_throttles, whenever something is held or released, and every half minute meanwhile;
    sooner while a broker does not yet show the values from before.

    It counts holders, sets again what another tool removes, leaves alone what another tool has set to another value,
    releases the throttles of runs that have ended, and ends when nothing is held and all is restored. A broker that
    does not respond gets its values, or the earlier ones, once it does. A cancel of the run restores everything first.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._leases = Leases()
        self._cluster = names.cluster_of_plans(workflow.info().task_queue)
        self._asked, self._applied = 0, 0
        """Holds and releases so far, and those that the cluster had at the last read."""
        self._failed: dict[str, str] = {}
        self._rejected: list[str] = []
        """Those of the failed ones that the cluster rejects."""
        try:
            row = handlers.only(given, optional=True)
            if row is not None and fields.an_object(row, "$", ("leases",)):
                self._leases = unpacked(row["leases"], "$.leases")
        except BadField as problem:
            self._problem = problem

    @workflow.run
    async def run(self, *given: Any) -> KeeperResult:
        """Return when nothing is held any more."""
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        # The first hold may come in the same task.
        await workflow.wait_condition(lambda: True)
        confirm = options.KEEPER_CONFIRM
        while True:
            if cancellation.requested():
                for holder in list(self._leases.holdings):
                    self._leases.release(holder)
            asked = self._asked
            await self._compare()
            self._applied = asked
            if self._leases.idle and self._asked == asked and workflow.all_handlers_finished():
                break
            if self._asked == asked:
                restoring = self._leases.restoring
                await self._wait(asked, confirm if restoring else options.KEEPER_READ_AGAIN)
                confirm = min(2 * confirm, options.KEEPER_READ_AGAIN) if restoring else options.KEEPER_CONFIRM
            if self._may_continue(asked):
                workflow.continue_as_new({"leases": packed(self._leases)})
        return KeeperResult()

    def _may_continue(self, asked: int) -> bool:
        """Return whether the history is long, and nothing is under way that the next run would not know."""
        info = workflow.info()
        long = info.get_current_history_length() > options.PLAN_EVENTS or info.is_continue_as_new_suggested()
        return long and self._asked == asked and workflow.all_handlers_finished() and not cancellation.requested()

    async def _wait(self, asked: int, pause: timedelta) -> None:
        try:
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: self._asked != asked or (cancellation.requested() and bool(self._leases.holdings)),
                    timeout=pause,
                )
            )
        except TimeoutError:
            return

    async def _compare(self) -> None:
        """Compare with the cluster, and write what differs; what fails is tried again at the next read.

        The keeper never ends because of a failure: no run would know the values from before.
        """
        try:
            await self._look()
        except ActivityError as failure:
            cause = failure.cause
            self._failed = {
                "cluster": fields.shown(cause.message if isinstance(cause, ApplicationError) else str(cause))
            }
        except BadField as problem:
            self._failed = {"cluster": f"a worker's result cannot be read: {problem}; do all run the same version?"}

    async def _look(self) -> None:
        call = ReadThrottlesCall(self._cluster, self._leases.nodes, self._leases.topics, sorted(self._leases.holdings))
        found = reading.throttles(await run_step(self._cluster, calls.READ_THROTTLES, call))
        for holder in found.closed:
            # Not one that has come meanwhile: the server may not have shown its run yet.
            if holder in call.holders:
                self._leases.release(holder)
        current = Current(found.rates, found.lists, tuple(found.silent))
        changes = self._leases.changes(current, set(call.nodes), set(call.topics))
        self._failed = {f"broker {node}": "it does not respond" for node in current.silent}
        self._rejected = []
        if not changes:
            return
        rows = [_row(each) for each in changes]
        written = reading.written(
            await run_step(self._cluster, calls.WRITE_THROTTLES, WriteThrottlesCall(self._cluster, rows))
        )
        # Only what was to be written.
        self._leases.written((change for change in changes if _row(change) in written.written), written.gone)
        self._failed |= written.failed
        self._rejected = written.rejected

    @workflow.update(description="Hold throttles for a run: {holder, rates, entries}")
    async def hold(self, *given: Any) -> ThrottlesApplied:
        """Respond once they are set, with the brokers and topics that could not be written yet."""
        holder, holding = _held_of(given)
        self._leases.hold(holder, holding)
        self._asked += 1
        mine = self._asked
        await workflow.wait_condition(lambda: self._applied >= mine)
        rejected = {name: self._failed[name] for name in self._rejected if name in self._failed}
        return ThrottlesApplied(sorted(self._failed), rejected)

    @hold.validator
    def _may_hold(self, *given: Any) -> None:
        updates.checked(lambda: _held_of(given))
        if cancellation.requested():
            raise updates.rejection("The keeper of throttles is ending; try again.")

    @workflow.update(description="Release the throttles of a run: {holder}")
    async def release(self, *given: Any) -> ThrottlesApplied:
        """Respond once the values from before are there again, where their brokers respond."""
        holder, _ = _held_of(given)
        self._leases.release(holder)
        self._asked += 1
        mine = self._asked
        await workflow.wait_condition(lambda: self._applied >= mine)
        return ThrottlesApplied(sorted(self._failed))

    @release.validator
    def _may_release(self, *given: Any) -> None:
        updates.checked(lambda: _held_of(given))

    @workflow.update(description="Give up what is to be restored on a broker that does not come back: {broker}")
    def forget(self, *given: Any) -> ThrottlesForgotten:
        """Return the values from before that are no longer restored, by config."""
        found = self._leases.forget(_broker_of(given))
        self._asked += 1
        return ThrottlesForgotten(found)

    @forget.validator
    def _may_forget(self, *given: Any) -> None:
        node = updates.checked(lambda: _broker_of(given))
        holders = self._leases.holders_of(node)
        if holders:
            raise updates.rejection(f"{holders[0]} holds throttles on broker {node}; they end with it.")
        if node not in self._leases.nodes:
            raise updates.rejection(f"Nothing is to be restored on broker {node}.")

    @workflow.query(description="Holders, the values before, and what could not be written yet")
    def progress(self) -> ThrottleKeeperProgress:
        """Return the leases."""
        return progress_of(self._leases, workflow.info().workflow_id, self._failed)


def _row(change: Change) -> list[Any]:
    return [change.kind, change.name, change.key, change.operation, change.value]


def _broker_of(given: Any) -> str:
    row: Mapping[str, Any] = fields.an_object(handlers.only(given), "$", ("broker",))
    return a_node(fields.need(row, "broker", "$"), "$.broker")


def _held_of(given: Any) -> tuple[str, Holding]:
    row: Mapping[str, Any] = fields.an_object(handlers.only(given), "$", ("cluster", "holder", "rates", "entries"))
    holder = lane_request.workflow_id(fields.need(row, "holder", "$"), "$.holder")
    return holder, holding_of({"rates": row.get("rates", {}), "entries": row.get("entries", {})})
