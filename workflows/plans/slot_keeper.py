"""SlotKeeper: the one run of a cluster that decides which plan begins its lanes next."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, options, updates
from workflows.model import names
from workflows.model.plans.running import orders, slots
from workflows.model.plans.running.keeper_results import KeeperResult, SlotGrant, SlotKeeperProgress, SlotsReleased
from workflows.model.plans.running.slots import Shares


@workflow.defn(name=names.SLOT_KEEPER)
class SlotKeeper:
    """Grants lanes to plans by the update `share`; ends once no plan uses or awaits a slot.

    It signals `slots_freed` to the plan that is to have a slot, and keeps no timer: a plan that waits repeats
    its request in any case, and finds the plans that ended without a release.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._shares = Shares()
        self._began = False
        """A plan has requested slots: the first update may come in the task in which the run starts, or after it."""
        try:
            row = handlers.only(given, optional=True)
            if row:
                self._shares = slots.unpacked(row["shares"] if isinstance(row, dict) and "shares" in row else row, "$")
                self._began = True
        except BadField as problem:
            self._problem = problem

    @workflow.run
    async def run(self, *given: Any) -> KeeperResult:
        """Return when no plan is left."""
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        while True:
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: (
                        cancellation.requested()
                        or self._long()
                        or bool(self._shares.woken)
                        or (self._began and not self._shares.plans)
                    )
                )
            )
            await self._wake()
            await cancellation.handlers_finished()
            if cancellation.requested() or not self._shares.plans:
                return KeeperResult()
            if self._long():
                workflow.continue_as_new({"shares": slots.packed(self._shares)})

    async def _wake(self) -> None:
        """Have plans repeat their requests, for which a slot has become free; one that has ended waits no longer."""
        while self._shares.woken and not cancellation.requested():
            holder = next(iter(self._shares.woken))
            del self._shares.woken[holder]
            plan = workflow.get_external_workflow_handle(holder)
            try:
                await cancellation.shielded(plan.signal("slots_freed", {}))
            except ApplicationError:
                self._shares.waits_no_longer(holder)

    def _long(self) -> bool:
        info = workflow.info()
        return info.get_current_history_length() > options.PLAN_EVENTS or info.is_continue_as_new_suggested()

    @workflow.update(description="Grant lanes of a plan: {holder, priority, running, wanted, limits, more, ended}")
    async def share(self, *given: Any) -> SlotGrant:
        """Respond at once with the lanes that may begin; the plan waits for the others, and repeats its request."""
        self._began = True
        return self._shares.share(slots.request_of(handlers.only(given)), workflow.time())

    @share.validator
    def _may_share(self, *given: Any) -> None:
        updates.checked(lambda: slots.request_of(handlers.only(given)))

    @workflow.update(description="Release all slots of a plan: {holder}")
    async def release(self, *given: Any) -> SlotsReleased:
        """Respond at once; a plan that holds nothing has nothing to release."""
        self._began = True
        holder = orders.holder(handlers.only(given))
        self._shares.release(holder, workflow.time())
        return SlotsReleased(holder)

    @release.validator
    def _may_release(self, *given: Any) -> None:
        updates.checked(lambda: orders.holder(handlers.only(given)))

    @workflow.query(description="What each plan uses and waits for")
    def progress(self) -> SlotKeeperProgress:
        """Return the shares of all plans."""
        return slots.progress_of(self._shares, workflow.info().workflow_id)
