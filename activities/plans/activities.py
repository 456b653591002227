"""The activities of plans as Temporal knows them: names, parameters, and the stable types of their errors."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.errors import expected
from activities.kafka_admin.errors import AdminError, Answer
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans.alerts import AlertNotSent, AlertSteps, Webhook
from activities.plans.evacuating import EvacuationSteps
from activities.plans.lane_steps import LaneSteps
from activities.plans.plan_steps import PlanSteps
from activities.plans.slots import SlotSteps
from activities.plans.store import NotStored, PlanStore
from activities.plans.throttles import ThrottleSteps
from activities.temporal import describing
from activities.temporal.search_attributes import SearchAttributes
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from workflows.model.plans.problems import PlanProblems
from workflows.model.plans.running import alerting, calls
from workflows.model.plans.running.calls import (
    CheckCall,
    CheckResult,
    ChooseCall,
    ChooseResult,
    CordonResult,
    DirectoryCall,
    DrainResult,
    HoldCall,
    HoldResult,
    KeepCall,
    KeepResult,
    MovesCall,
    MovesResult,
    ReadThrottlesCall,
    ReadThrottlesResult,
    ReleaseSlotsCall,
    VerifyCall,
    VerifyResult,
    WriteThrottlesCall,
    WriteThrottlesResult,
)
from workflows.model.plans.under_way import LaneReport

T = TypeVar("T")

HEARTBEAT = 3.0  # seconds
#: Attempts after which a request that the cluster rejects is final, some minutes later: a controller that changes, or a
#: quota that is used up, mends itself until then; missing rights and invalid values do not.
REJECTED_ATTEMPTS = 15


class PlanActivities:
    """The activities of one worker for one cluster; `client` is the worker's, `webhooks` receive its alerts."""

    def __init__(
        self, pool: AdminPool, store: PlanStore, client: Client, webhooks: Mapping[str, Webhook] | None = None
    ) -> None:
        reader = ClusterReader(pool)

        async def closed(workflow_ids: list[str]) -> list[str]:
            return await describing.without_open_run(client, workflow_ids)

        self.search_attributes = SearchAttributes(client)
        searchable = self.search_attributes.usable
        self._evacuations = EvacuationSteps(pool, reader, store, searchable)
        self._alerts = AlertSteps(webhooks or {})
        self._slots = SlotSteps(client, closed)
        self._throttles = ThrottleSteps(pool, client, closed, self._slots.copying)
        self._plans = PlanSteps(
            reader, store, closed, searchable, self._alerts.names, self._slots.share, self._throttles.left
        )
        self._lanes = LaneSteps(pool, reader)

    @property
    def all(self) -> list[Callable[..., Any]]:
        """Return the activities for a worker."""
        return [
            self.keep_plan,
            self.check_plan,
            self.choose_lanes,
            self.verify_plan,
            self.request_moves,
            self.follow_moves,
            self.cancel_moves,
            self.read_cordon,
            self.set_cordon,
            self.plan_drain,
            self.verify_drained,
            self.hold_throttles,
            self.release_throttles,
            self.read_throttles,
            self.write_throttles,
            self.send_alert,
            self.release_slots,
        ]

    @activity.defn(name=calls.KEEP_PLAN)
    async def keep_plan(self, call: KeepCall) -> KeepResult:
        """Store a text of a plan that travels with its run."""
        return await _classified(self._plans.keep(call))

    @activity.defn(name=calls.CHECK_PLAN)
    async def check_plan(self, call: CheckCall) -> CheckResult:
        """Compare a plan with the cluster."""
        return await _classified(self._plans.check(call))

    @activity.defn(name=calls.CHOOSE_LANES)
    async def choose_lanes(self, call: ChooseCall) -> ChooseResult:
        """Choose the lanes that begin now."""
        return await _classified(self._plans.choose(call))

    @activity.defn(name=calls.VERIFY_PLAN)
    async def verify_plan(self, call: VerifyCall) -> VerifyResult:
        """Compare the cluster with the plan at its end."""
        return await _classified(self._plans.verify(call))

    @activity.defn(name=calls.REQUEST_MOVES)
    async def request_moves(self, call: MovesCall) -> MovesResult:
        """Request a lane's moves."""
        return await _classified(self._lanes.request(call, first=activity.info().attempt == 1))

    @activity.defn(name=calls.FOLLOW_MOVES)
    async def follow_moves(self, call: MovesCall) -> MovesResult:
        """Follow a lane's moves; its heartbeats have how far they are (`LaneReport`)."""
        seen: list[LaneReport] = []

        def note(report: LaneReport) -> None:
            seen[:] = [report]

        return await _classified(self._lanes.follow(call, note), lambda: [each.as_json() for each in seen])

    @activity.defn(name=calls.CANCEL_MOVES)
    async def cancel_moves(self, call: MovesCall) -> MovesResult:
        """Cancel a lane's moves."""
        return await _classified(self._lanes.cancel(call))

    @activity.defn(name=calls.READ_CORDON)
    async def read_cordon(self, call: DirectoryCall) -> CordonResult:
        """Read a directory's cordon."""
        return await _classified(self._evacuations.read_cordon(call))

    @activity.defn(name=calls.SET_CORDON)
    async def set_cordon(self, call: DirectoryCall) -> CordonResult:
        """Set or remove a directory's cordon."""
        return await _classified(self._evacuations.set_cordon(call))

    @activity.defn(name=calls.PLAN_DRAIN)
    async def plan_drain(self, call: DirectoryCall) -> DrainResult:
        """Plan the next round of a directory that is being emptied."""
        return await _classified(self._evacuations.plan(call))

    @activity.defn(name=calls.VERIFY_DRAINED)
    async def verify_drained(self, call: DirectoryCall) -> VerifyResult:
        """Certify that a directory is empty."""
        return await _classified(self._evacuations.verify(call))

    @activity.defn(name=calls.HOLD_THROTTLES)
    async def hold_throttles(self, call: HoldCall) -> HoldResult:
        """Have the keeper hold throttles for a run."""
        return await _classified(self._throttles.hold(call))

    @activity.defn(name=calls.RELEASE_THROTTLES)
    async def release_throttles(self, call: HoldCall) -> HoldResult:
        """Have the keeper release the throttles of a run."""
        return await _classified(self._throttles.release(call))

    @activity.defn(name=calls.READ_THROTTLES)
    async def read_throttles(self, call: ReadThrottlesCall) -> ReadThrottlesResult:
        """Read throttles for the keeper."""
        return await _classified(self._throttles.read(call))

    @activity.defn(name=calls.WRITE_THROTTLES)
    async def write_throttles(self, call: WriteThrottlesCall) -> WriteThrottlesResult:
        """Write throttles for the keeper."""
        return await _classified(self._throttles.write(call))

    @activity.defn(name=calls.RELEASE_SLOTS)
    async def release_slots(self, call: ReleaseSlotsCall) -> None:
        """Release the slots of a plan."""
        await _classified(self._slots.release(call.cluster, call.holder))

    @activity.defn(name=calls.SEND_ALERT)
    async def send_alert(self, alert: dict[str, Any]) -> None:
        """Send an alert to its webhook."""
        await _classified(self._alerts.send(alerting.parse(alert)))


async def _classified(work: Awaitable[T], details: Callable[[], Sequence[Any]] = tuple) -> T:
    """Return what `work` returns; raise its error as an ApplicationError with a stable type.

    Heartbeats with `details` meanwhile: the attempt of a worker that died ends soon, and another worker takes over.
    """
    beating = asyncio.create_task(_beat(details))
    try:
        return await work
    except (NotStored, BadField, PlanProblems, AdminError, AlertNotSent, OSError) as error:
        found = application_error(error)
        if found.type == ErrorType.KAFKA_REJECTED and activity.info().attempt >= REJECTED_ATTEMPTS:
            found = expected(found.message, ErrorType.KAFKA_REJECTED, retryable=False)
        raise found from error
    finally:
        beating.cancel()


async def _beat(details: Callable[[], Sequence[Any]]) -> None:
    while True:
        activity.heartbeat(*details())
        await asyncio.sleep(HEARTBEAT)


@functools.singledispatch
def application_error(error: Exception) -> ApplicationError:
    """Return the error for an activity to raise."""
    return expected(str(error), ErrorType.NODE_FAILURE, benign=False)


@application_error.register
def _(error: NotStored) -> ApplicationError:
    return expected(str(error), ErrorType.PLAN_NOT_STORED, retryable=False)


@application_error.register(BadField)
@application_error.register(PlanProblems)
def _(error: Exception) -> ApplicationError:
    return expected(str(error), ErrorType.INVALID_PLAN, retryable=False)


@application_error.register
def _(error: AlertNotSent) -> ApplicationError:
    return expected(str(error), ErrorType.ALERT_NOT_SENT, retryable=error.retryable)


@application_error.register
def _(error: AdminError) -> ApplicationError:
    unknown = error.answer is Answer.RETRY
    return expected(str(error), ErrorType.KAFKA_UNAVAILABLE if unknown else ErrorType.KAFKA_REJECTED)
