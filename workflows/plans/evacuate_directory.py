"""EvacuateDirectory: empties a log directory of a broker, and certifies that its disk can be pulled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, TimeoutError
from temporalio.workflow import ParentClosePolicy

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, options
from workflows.model import names
from workflows.model.phases import Phases
from workflows.model.plans.running import calls, reading
from workflows.model.plans.running.calls import DirectoryCall, DrainResult, VerifyResult
from workflows.model.plans.running.evacuation import EvacuationRequest, parse
from workflows.model.plans.running.plan_results import (
    EvacuationPhase,
    EvacuationProgress,
    EvacuationResult,
    PlanOutcome,
)
from workflows.plans import searching
from workflows.plans.steps import readable
from workflows.step_specs import start

T = TypeVar("T")


@workflow.defn(name=names.EVACUATE_DIRECTORY)
class EvacuateDirectory:
    """read_cordon, set_cordon -> plan_drain and a ReassignmentPlan, until nothing is left -> verify_drained.

    While it runs no new replica lands in the directory where the broker can cordon it (KIP-1066); elsewhere the next
    round finds what landed there. The cordon from before is there again at the end, however the run ends.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._request = EvacuationRequest(-1, "")
        self._cluster = names.cluster_of_plans(workflow.info().task_queue)
        self._phases = Phases()
        self._rounds = self._moved = self._copied = 0
        self._cordoned = self._searchable = False
        self._plan = ""
        self._left: list[str] = []
        try:
            self._request = parse(handlers.only(given))
        except BadField as problem:
            self._problem = problem

    @workflow.run
    async def run(self, *given: Any) -> EvacuationResult:
        """Return the certificate.

        Fails with PlanRefused and the reasons if its replicas have no other place, and with the last problems if the
        directory is still not empty after several rounds. An invalid parameter fails with InvalidPlan.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        await self._drain()  # Refused at once, before anything is changed.
        before = await self._cordon_before()
        try:
            if before is not None:
                await self._cordon(before)
            certificate = await self._until_empty()
        except (Exception, asyncio.CancelledError):
            # Not `finally`: a run that a worker evicts must not await anything.
            await self._release(before)
            raise
        await self._release(before)
        searching.end(self._searchable, PlanOutcome.DONE)
        request = self._request
        return EvacuationResult(
            request.broker,
            request.directory,
            True,
            self._rounds,
            self._moved,
            self._copied,
            self._cordoned,
            certificate,
            self._phases.spans(),
        )

    async def _release(self, before: bool | None) -> None:
        """Remove the cordon, unless it was there before."""
        if before is False:
            self._enter(EvacuationPhase.RELEASING)
            await cancellation.shielded(self._step(calls.SET_CORDON, reading.cordon, cordoned=False))
        self._phases.enter(None, workflow.time())

    def _enter(self, phase: EvacuationPhase) -> None:
        if self._phases.current != phase:
            searching.enter(self._searchable, phase)
        self._phases.enter(phase, workflow.time())
        copied = f"{self._moved} replicas moved, {self._copied} bytes copied"
        workflow.set_current_details(f"{phase} {self._request.directory}: round {self._rounds}, {copied}")

    async def _cordon_before(self) -> bool | None:
        """Return whether the directory is cordoned already, None if the broker cannot cordon it."""
        self._enter(EvacuationPhase.CORDONING)
        found = await self._step(calls.READ_CORDON, reading.cordon)
        if not found.supported:
            workflow.logger.info("Broker %d cannot cordon its directories: %s", self._request.broker, found.message)
            return None
        return found.cordoned

    async def _cordon(self, before: bool) -> None:
        """Cordon the directory. A cancel waits for the response: the cordon could be set after it was removed, else."""
        if not before:
            await cancellation.shielded(self._step(calls.SET_CORDON, reading.cordon))
        self._cordoned = True
        if cancellation.requested():
            raise CancelledError("The evacuation was cancelled.")

    async def _until_empty(self) -> VerifyResult:
        """Plan and move until the directory is empty; return the certificate. Raises PlanRefused."""
        while True:
            drain = await self._drain()
            if not drain.plan:
                self._enter(EvacuationPhase.VERIFYING)
                certificate = await self._step(calls.VERIFY_DRAINED, reading.verified)
                if certificate.ok:
                    return certificate
                self._left = certificate.differences
            else:
                await self._move(drain)
            if self._rounds >= options.EVACUATION_ROUNDS:
                raise ApplicationError(
                    f"log directory {self._request.directory} of broker {self._request.broker} is still not empty "
                    f"after {self._rounds} rounds: {'; '.join(self._left[:5])}",
                    type=ErrorType.DIRECTORY_NOT_REACHED,
                    non_retryable=True,
                )
            if self._left:
                self._rounds += not drain.plan
                await workflow.sleep(options.EVACUATION_PAUSE)

    async def _drain(self) -> DrainResult:
        """Plan the next round. Raises PlanRefused with the reasons."""
        self._enter(EvacuationPhase.PLANNING)
        drain = await self._step(calls.PLAN_DRAIN, reading.drain)
        if drain.searchable and not self._searchable:
            self._searchable = True
            searching.describe(True, EvacuationPhase.PLANNING, self._cluster, (), [self._request.broker])
        if drain.reasons:
            raise ApplicationError(
                "; ".join(drain.reasons), *drain.reasons, type=ErrorType.PLAN_REFUSED, non_retryable=True
            )
        return drain

    async def _move(self, drain: DrainResult) -> None:
        """Run the plan of one round."""
        self._enter(EvacuationPhase.MOVING)
        self._rounds += 1
        self._plan = f"{workflow.info().workflow_id}/plan-{self._rounds}"
        parameter = {
            "version": 1,
            "text": drain.packed,
            "plan": drain.plan,
            "options": json.loads(json.dumps(self._request.options.as_json())),
        }
        try:
            result = await workflow.execute_child_workflow(
                names.REASSIGNMENT_PLAN,
                parameter,
                id=self._plan,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"round {self._rounds}: {drain.partitions} partitions",
            )
        except ChildWorkflowError as failure:
            if isinstance(failure.cause, CancelledError) and cancellation.requested():
                raise failure.cause from failure
            self._left = [fields.shown(f"round {self._rounds}: {failure.cause}")]
            return
        ended = readable(names.REASSIGNMENT_PLAN, reading.round_ended, result)
        self._moved += ended.moved
        self._copied += ended.bytes_copied
        self._left = [f"{row.key}: {row.reason}" for row in ended.failures]

    async def _step(self, activity: str, read: Callable[[Any], T], *, cordoned: bool = True) -> T:
        call = DirectoryCall(self._cluster, self._request.broker, self._request.directory, cordoned)
        try:
            result = await start(activity, call, cluster=self._cluster, summary=self._request.directory)
        except ActivityError as failure:
            cause = failure.cause
            if isinstance(cause, TimeoutError) and cancellation.requested():
                raise CancelledError("The evacuation was cancelled.") from failure  # Its worker is dead.
            raise cause if isinstance(cause, ApplicationError | CancelledError) else failure from failure
        return readable(activity, read, result)

    @workflow.query(description="Phase, rounds, the plan of the last round, and what is left")
    def progress(self) -> EvacuationProgress:
        """Return how far the run is."""
        return EvacuationProgress(
            workflow.info().workflow_id,
            self._request.broker,
            self._request.directory,
            self._phases.current,
            cancellation.requested(),
            self._cordoned,
            self._rounds,
            self._plan,
            self._moved,
            self._copied,
            self._left,
            self._phases.spans(),
        )
