"""ThrottleLease: holds throttles of nodes while replicas move between their directories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError
from temporalio.workflow import ActivityHandle

from storage_node.model.fields import BadField
from workflows import cancellation, errors, handlers, updates
from workflows.controller_client import ControllerClient
from workflows.model import calls, messages, names
from workflows.model.calls import AwaitMovesCall
from workflows.model.move.throttle_request import ThrottleRequest, parse, read_replicas
from workflows.model.phases import Phases
from workflows.model.run_progress import ThrottleLeaseProgress
from workflows.model.run_results import ThrottleHeld, ThrottleLeaseResult
from workflows.step_specs import start

ASKING = "asking"  # the controller sets the throttles
HOLDING = "holding"  # the moves are requested
WATCHING = "watching"  # the moves are under way
RELEASING = "releasing"  # the controller restores the values before


@workflow.defn(name=names.THROTTLE_LEASE)
class ThrottleLease:
    """Request throttles from the controller, and their release on each node once the node's moves have ended.

    The command that requests the moves starts the run first, waits for `held`, and sends the accepted moves with the
    signal `requested`. If the command exits before that, the run watches all replicas of its parameter after a while. A
    cancel ends the lease at once.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._request = ThrottleRequest({}, {}, 0.0)
        try:
            self._request = parse(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._controller = ControllerClient()
        self._held = self._released = False
        self._left_out: list[int] = []
        self._moving: dict[int, list[calls.Replica]] | None = None
        self._waiting: dict[int, ActivityHandle[Any]] = {}
        self._phases = Phases()

    @workflow.run
    async def run(self, *given: Any) -> ThrottleLeaseResult:
        """Hold the throttles until the moves have ended.

        Fails with InvalidPlan and the path of a bad field; a cancelled run ends as cancelled.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        if not cancellation.requested():
            self._phases.enter(ASKING, workflow.time())
            response = await cancellation.shielded(self._controller.request(hold=self._request.throttles))
            self._left_out = list(response.get("left_out", ()))
            self._held = True
            self._phases.enter(HOLDING, workflow.time())
            await self._until_requested()
            self._phases.enter(WATCHING, workflow.time())
            await self._watch()
            self._phases.enter(RELEASING, workflow.time())
            await cancellation.shielded(self._controller.request(release={}))
        self._released = True
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        if cancellation.requested():
            raise CancelledError("The lease was cancelled.")
        return ThrottleLeaseResult(self._phases.spans(), self._left_out)

    async def _until_requested(self) -> None:
        try:
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: self._moving is not None or cancellation.requested(),
                    timeout=timedelta(seconds=self._request.patience),
                )
            )
        except TimeoutError:
            workflow.logger.info("The command has not reported which moves were accepted: the run watches all of them")

    async def _watch(self) -> None:
        """Wait for the moves of each node; release a node's throttle once its moves have ended."""
        moving = self._moving if self._moving is not None else self._request.replicas
        self._waiting = {node: self._start(node, replicas) for node, replicas in sorted(moving.items()) if replicas}
        idle = [node for node in self._request.nodes if node not in self._waiting]
        while self._waiting and not cancellation.requested():
            if idle:
                await cancellation.shielded(self._controller.request(release={"nodes": idle}))
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: cancellation.requested() or any(handle.done() for handle in self._waiting.values())
                )
            )
            idle = [node for node, handle in self._waiting.items() if handle.done()]
            for node in idle:
                await self._ended(node, self._waiting.pop(node))
        for handle in self._waiting.values():
            handle.cancel()

    @staticmethod
    async def _ended(node: int, handle: ActivityHandle[Any]) -> None:
        try:
            await handle
        except ActivityError as failure:
            workflow.logger.warning(
                "Node %d did not report whether its moves have ended, its throttle is released: %s", node, failure.cause
            )

    @staticmethod
    def _start(node: int, replicas: Sequence[calls.Replica]) -> ActivityHandle[Any]:
        """Start the activity, which waits however long the node is unavailable: a restarted node resumes its copies."""
        call = AwaitMovesCall(node, [list(each) for each in replicas])
        return start(calls.AWAIT_MOVES, call, node=node, summary=f"{len(replicas)} replicas")

    # --- what the command, operators and the controller send meanwhile

    @workflow.query(description="Phase, throttles, and the nodes whose moves are under way")
    def progress(self) -> ThrottleLeaseProgress:
        """Return how far the run is."""
        return ThrottleLeaseProgress(
            workflow_id=workflow.info().workflow_id,
            cancelling=cancellation.requested(),
            phase=self._phases.current,
            throttles={} if self._released else self._request.throttles,
            waiting_for="the controller" if self._controller.unavailable else "",
            nodes=sorted(self._waiting),
            phases=self._phases.spans(),
        )

    @handlers.update(description="Wait until the controller has set the throttles")
    async def held(self, *given: Any) -> ThrottleHeld:
        """Respond once they are in the metadata, or the lease has ended, with the nodes that were `left_out`."""
        await workflow.wait_condition(lambda: self._held or self._released or self._problem is not None)
        return ThrottleHeld(self._held and not self._released, self._left_out)

    @held.validator
    def _may_be_held(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))

    @handlers.signal(read_replicas, description="Which moves were accepted: {replicas: [[node, topic, partition]]}")
    def requested(self, moving: dict[int, list[calls.Replica]]) -> None:
        """Hold the lease until these moves have ended."""
        self._moving = moving

    @handlers.signal(messages.answered, description="The controller responds to a request of the run")
    def answered(self, response: dict[str, Any]) -> None:
        """Accept a response, see `ControllerClient.accept`."""
        self._controller.accept(response)
