"""ThrottleLease: throttles of nodes apply while replicas move between their directories, and end with these moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from workflows import cancellation, errors, handlers, options, orders
from workflows.asking import Asking
from workflows.model import calls, messages, names
from workflows.model.calls import AwaitMovesCall
from workflows.model.fields import BadField
from workflows.model.phases import Phases
from workflows.model.throttle_request import ThrottleRequest, parse, read_replicas

ASKING = "asking"  # the controller sets the throttles
HOLDING = "holding"  # the moves are requested
WATCHING = "watching"  # the moves are under way
RELEASING = "releasing"  # the controller restores the values before


@workflow.defn(name=names.THROTTLE_LEASE)
class ThrottleLease:
    """Have the controller set throttles; once the moves of each node have ended, have it restore the values before.

    The command that requests the moves starts the run first, waits for `held`, and sends the accepted moves with the
    signal `requested`. If the command dies before that, the run watches all replicas of its parameter after a while. A
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
        self._asking = Asking()
        self._held = self._released = False
        self._left_out: list[int] = []
        self._moving: dict[int, list[calls.Replica]] | None = None
        self._waiting: dict[int, ActivityHandle[Any]] = {}
        self._phases = Phases()

    @workflow.run
    async def run(self, *given: Any) -> dict[str, Any]:
        """Return the run's phases, and the nodes that were `left_out`.

        Fails with InvalidPlan and the path of a bad field; a cancel ends it cancelled.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        if not cancellation.asked():
            self._phases.enter(ASKING, workflow.time())
            answer = await cancellation.patiently(self._asking.ask(hold=self._request.throttles))
            self._left_out = list(answer.get("left_out", ()))
            self._held = True
            self._phases.enter(HOLDING, workflow.time())
            await self._until_requested()
            self._phases.enter(WATCHING, workflow.time())
            await self._watch()
            self._phases.enter(RELEASING, workflow.time())
            await cancellation.patiently(self._asking.ask(release={}))
        self._released = True
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        if cancellation.asked():
            raise CancelledError("The lease was cancelled.")
        return {"phases": self._phases.rows(), **self._without()}

    def _without(self) -> dict[str, Any]:
        """The nodes on which nothing is held, since they are not registered; nothing where there are none."""
        return {"left_out": self._left_out} if self._left_out else {}

    async def _until_requested(self) -> None:
        try:
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: self._moving is not None or cancellation.asked(),
                    timeout=timedelta(seconds=self._request.patience),
                )
            )
        except TimeoutError:
            workflow.logger.info("The command has not reported which moves were accepted: the run watches all of them")

    async def _watch(self) -> None:
        """Wait for the moves of each node; the throttle of a node whose moves have ended is released at once."""
        moving = self._moving if self._moving is not None else self._request.replicas
        self._waiting = {node: self._start(node, replicas) for node, replicas in sorted(moving.items()) if replicas}
        idle = [node for node in self._request.nodes if node not in self._waiting]
        while self._waiting and not cancellation.asked():
            if idle:
                await cancellation.patiently(self._asking.ask(release={"nodes": idle}))
            await cancellation.uncancelled(
                workflow.wait_condition(
                    lambda: cancellation.asked() or any(handle.done() for handle in self._waiting.values())
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
            workflow.logger.warning("Node %d does not report whether its moves have ended: %s", node, failure.cause)

    @staticmethod
    def _start(node: int, replicas: Sequence[calls.Replica]) -> ActivityHandle[Any]:
        """Start the activity, which waits however long the node is unavailable: its copies go on with its start."""
        info = workflow.info()
        return workflow.start_activity(
            calls.AWAIT_MOVES,
            AwaitMovesCall(node, [list(each) for each in replicas]),
            task_queue=names.moves_queue(info.task_queue, node),
            start_to_close_timeout=options.FOLLOW_TIMEOUT,
            heartbeat_timeout=options.FOLLOW_HEARTBEAT_TIMEOUT,
            retry_policy=options.MOVE_RETRY,
            cancellation_type=ActivityCancellationType.TRY_CANCEL,
            summary=f"{len(replicas)} replicas",
        )

    # --- what the command, operators and the controller send meanwhile

    @workflow.query(description="Phase, throttles, and the nodes whose moves are under way")
    def progress(self) -> dict[str, Any]:
        """How far the run is."""
        return {
            "workflow_id": workflow.info().workflow_id,
            "cancelling": cancellation.asked(),
            "phase": self._phases.current,
            "throttles": {} if self._released else self._request.throttles,
            "waiting_for": "the controller" if self._asking.away else "",
            "nodes": sorted(self._waiting),
            "phases": self._phases.rows(),
        }

    @handlers.update(description="Wait until the controller has set the throttles")
    async def held(self, *given: Any) -> dict[str, Any]:
        """Returns once they are in the metadata, with the nodes that were `left_out`; also when the lease has ended."""
        await workflow.wait_condition(lambda: self._held or self._released or self._problem is not None)
        return {"held": self._held and not self._released, **self._without()}

    @held.validator
    def _may_be_held(self, *given: Any) -> None:
        orders.checked(lambda: handlers.nothing(given))

    @handlers.signal(read_replicas, description="Which moves were accepted: {replicas: [[node, topic, partition]]}")
    def requested(self, moving: dict[int, list[calls.Replica]]) -> None:
        """Hold the lease until these moves have ended."""
        self._moving = moving

    @handlers.signal(messages.answered, description="The controller responds to a request of the run")
    def answered(self, answer: dict[str, Any]) -> None:
        """See `Asking`."""
        self._asking.take(answer)
