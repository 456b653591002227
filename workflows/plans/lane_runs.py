"""The runs of a plan's lanes: its children, which outlive a plan that continues as new."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from storage_node.model import fields
from workflows import cancellation
from workflows.model import names
from workflows.model.plans.running.calls import LaneSpec, MoveSpec
from workflows.model.plans.running.lane_request import LaneRequest
from workflows.model.plans.running.run import PlanRun


class LaneRuns:
    """Starts lanes, notes in the plan's state those that end without their rows, and has them stop.

    `changed` is called when something happened that may let another lane begin, `waits` with the reason why a lane
    could not begin.
    """

    def __init__(self, cluster: str, run: PlanRun, changed: Callable[[], None], waits: Callable[[str], None]) -> None:
        self._cluster, self._run, self._changed, self._waits = cluster, run, changed, waits

    async def begin(self, lanes: Sequence[LaneSpec], *, throttled: bool, searchable: bool) -> None:
        """Start lanes at the same time: a child's start is a round trip to the server, and a plan has thousands.

        All starts end even if the plan is cancelled meanwhile: it has to stop what has begun.
        """
        await cancellation.shielded(self._all(lanes, throttled, searchable))

    async def _all(self, lanes: Sequence[LaneSpec], throttled: bool, searchable: bool) -> None:
        await asyncio.gather(*(self._begin(lane, throttled, searchable) for lane in lanes))

    async def _begin(self, lane: LaneSpec, throttled: bool, searchable: bool) -> None:
        specs = {spec.move().key: spec for spec in (MoveSpec(**row) for row in lane.moves)}
        keys = self._run.due(lane.number, specs)
        self._run.begun(lane.number, keys)
        if not keys:
            self._run.ended(lane.number, ())
            self._changed()
            return
        plan = workflow.info().workflow_id
        moves = tuple(specs[key] for key in keys)
        request = LaneRequest(self._cluster, plan, lane.number, moves, throttled, searchable)
        try:
            handle = await workflow.start_child_workflow(
                names.PLAN_LANE,
                request.as_json(),
                id=names.plan_lane_id(plan, lane.number),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"lane {lane.number}: {len(keys)} moves, first {keys[0]}",
            )
        except WorkflowAlreadyStartedError:
            # The lane of an earlier run of the same name, which was terminated: its moves end first.
            self._run.back_to_pending(lane.number)
            self._waits(f"lane {lane.number} of an earlier run of this plan is open still; it ends first")
            return
        asyncio.create_task(self._watch(lane.number, handle))  # noqa: RUF006 - It ends with its handle.

    async def _watch(self, number: int, handle: Any) -> None:
        """Note a lane whose run ends without its rows: it was terminated."""
        try:
            await handle
        except asyncio.CancelledError:
            raise
        except ChildWorkflowError as failure:
            if number in self._run.open_lanes:
                self._run.lost(number, fields.shown(f"the run of lane {number} ended: {failure.cause}"))
                self._changed()

    async def stop(self) -> None:
        """Have the open lanes cancel their moves."""
        for number in list(self._run.open_lanes):
            lane = workflow.get_external_workflow_handle(names.plan_lane_id(workflow.info().workflow_id, number))
            try:
                await cancellation.shielded(lane.signal("stop", {}))
            except ApplicationError:
                self._run.back_to_pending(number)

    async def list_throttled(self) -> None:
        """Have the lanes that began before the plan had a throttle list their replicas as throttled."""
        while self._run.unlisted:
            number = self._run.unlisted.pop(0)
            lane = workflow.get_external_workflow_handle(names.plan_lane_id(workflow.info().workflow_id, number))
            # One that has ended needs no throttle, and is noticed as such elsewhere.
            with contextlib.suppress(ApplicationError):
                await cancellation.shielded(lane.signal("throttle", {}))
