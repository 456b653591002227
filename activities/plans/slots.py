"""The slots that a cluster's plans share: requests them from the cluster's keeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from workflows.model import names
from workflows.model.plans.running import slots
from workflows.model.plans.running.keeper_results import SlotGrant, SlotKeeperProgress, SlotsReleased
from workflows.model.plans.running.slots import SlotRequest
from workflows.model.versioned import Versioned

Response = TypeVar("Response", bound=Versioned)

KEEPER_PATIENCE = timedelta(seconds=30)


class SlotSteps:
    """Requests to the keepers of slots. `closed` returns those of some workflow ids that have no open run."""

    def __init__(self, client: Client, closed: Callable[[list[str]], Awaitable[list[str]]]) -> None:
        self._client, self._closed = client, closed

    async def share(self, cluster: str, request: SlotRequest) -> SlotGrant:
        """Return what the keeper grants; plans that ended without releasing their slots lose them, once no run of a
        lane of theirs is open. Raises RPCError.
        """
        grant = await self._ask(cluster, "share", request.as_json(), SlotGrant)
        ended = await self._ended(cluster, grant.others) if grant.others else []
        if ended:
            again = replace(request, ended=tuple(ended))
            grant = await self._ask(cluster, "share", again.as_json(), SlotGrant)
        return grant

    async def _ended(self, cluster: str, holders: Sequence[str]) -> list[str]:
        closed = await self._closed(list(holders))
        copying = await self.copying(cluster, closed) if closed else set()
        return [holder for holder in closed if holder not in copying]

    async def copying(self, cluster: str, ended: Sequence[str]) -> set[str]:
        """Return those of some plans without an open run that have open lanes: lanes outlive a plan that was
        terminated, and copy on. Raises RPCError.
        """
        keeper = self._client.get_workflow_handle(names.slot_keeper_id(cluster))
        query = keeper.query("progress", result_type=SlotKeeperProgress, rpc_timeout=KEEPER_PATIENCE)
        try:
            held = slots.held_in(await query)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return set()  # No plan has ever shared slots.
            raise
        lanes = {names.plan_lane_id(holder, number): holder for holder in ended for number in held.get(holder, ())}
        still = set(lanes) - set(await self._closed(list(lanes)) if lanes else ())
        return {lanes[each] for each in still}

    async def release(self, cluster: str, holder: str) -> None:
        """Release all slots of a plan. Raises RPCError."""
        await self._ask(cluster, "release", {"holder": holder}, SlotsReleased)

    async def _ask(self, cluster: str, update: str, argument: dict[str, Any], kind: type[Response]) -> Response:
        begin: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            names.SLOT_KEEPER,
            id=names.slot_keeper_id(cluster),
            task_queue=names.plans_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"the slots of {cluster}'s plans",
        )
        found: Response = await self._client.execute_update_with_start_workflow(
            update, argument, start_workflow_operation=begin, result_type=kind, rpc_timeout=KEEPER_PATIENCE
        )
        return found
