"""Starts the runs of accepted moves, and requests the state of the runs that own orphaned `.move`s.

Both are retried in the background until Temporal accepts them: the `.move` is on disk, and the client has its response.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.moves.lanes import Lane, lanes
from activities.temporal.describing import RunDescription, describe_run
from activities.temporal.supervision import until_done
from storage_node.model.ids import TopicPartition
from storage_node.ports import PlannedMove
from workflows.model import names

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 8  # starts sent to the server at the same time
FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0
REMEMBERED = 20_000  # replicas whose run was started here
TOKEN = "start"  # memo field: distinguishes a repeated start from an old run of the same id


class Fate(Enum):
    """What to do with a `.move`, by the state of its run."""

    LEAVE = "leave"  # the run is open: it continues the move itself
    CANCEL = "cancel"  # the run was cancelled or terminated: finish the cancel
    ADOPT = "adopt"  # the run is unknown, failed or ended without the move: a new run continues it (KIP-113, rule 1)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as the server describes it; a run and its continuations and resets share `first`.

    `ended` is how it ended, None while it is open or paused.
    """

    run_id: str
    first: str
    ended: WorkflowExecutionStatus | None


def decide(owner_run: RunFacts | None, newest: RunFacts | None) -> Fate:
    """Return what to do with a `.move`, given the run that created it and the newest run of the same workflow id.

    Any client may reuse an id, so that the newest run counts only if it continues the run that created the `.move`.
    """
    if owner_run is None:
        return Fate.ADOPT
    if newest is not None and newest.first == owner_run.first:
        owner_run = newest
    match owner_run.ended:
        case None | WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return Fate.LEAVE
        case WorkflowExecutionStatus.CANCELED | WorkflowExecutionStatus.TERMINATED:
            return Fate.CANCEL
    return Fate.ADOPT


@dataclass(frozen=True, slots=True)
class Orphan:
    """A `.move` without a running activity, with the last run that worked on it ("" for none) and its throttle."""

    move: PlannedMove
    owner: str = ""
    run_id: str = ""
    throttle: int | None = None


class MoveStarter:
    """Starts and adopts moves on the client's event loop.

    `cancel` and `claim_orphan` are the engine's, made awaitable; the latter returns the next claim of a move with this
    one, 0 if that move has ended.
    """

    def __init__(
        self,
        cluster: str,
        node: int,
        client: Callable[[], Awaitable[Client]],
        cancel: Callable[[TopicPartition, int, str], Awaitable[object]],
        claim_orphan: Callable[[TopicPartition, int], Awaitable[int]],
    ) -> None:
        self._cluster, self._node = cluster, node
        self._client, self._cancel, self._claim_orphan = client, cancel, claim_orphan
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy: set[TopicPartition] = set()
        self._started: dict[TopicPartition, tuple[int, str]] = {}

    def has(self, tp: TopicPartition) -> bool:
        """Return whether a start of the replica's run, or a request for its state, is in progress."""
        return tp in self._busy

    def start(self, moves: Sequence[PlannedMove], throttle: int | None) -> None:
        """Start one run per lane, in the background."""
        for lane in lanes(moves):
            self._spawn({move.partition for move in lane.moves}, self._start(lane, throttle))

    def adopt(self, orphans: Sequence[Orphan]) -> None:
        """Request the state of each owner, and cancel or continue its moves accordingly, in the background.

        The state of an owner is requested once, and moves are continued in lanes: a node that was killed with hundreds
        of accepted moves would otherwise load the server with a run for each. A lane waits only for its own disks. A
        `.move` without an owner may have a run that was started here and has not claimed it yet.
        """
        together: dict[tuple[str, str, int | None], list[PlannedMove]] = {}
        for orphan in orphans:
            tp = orphan.move.partition
            if tp not in self._busy:
                claim, started = self._started.get(tp, (0, ""))
                owner = orphan.owner or (started if claim == orphan.move.claim else "")
                together.setdefault((owner, orphan.run_id, orphan.throttle), []).append(orphan.move)
        for (owner, run_id, throttle), moves in together.items():
            fate = self._keep(self._fate(owner, run_id))
            for lane in lanes(moves):
                self._spawn({move.partition for move in lane.moves}, self._adopt(owner, fate, lane.moves, throttle))

    async def close(self) -> None:
        """Cancel starts that were not accepted; the next start of the node finds the moves on disk."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, partitions: set[TopicPartition], work: Coroutine[Any, Any, None]) -> None:
        self._busy |= partitions

        def finished(done: asyncio.Task[None]) -> None:
            self._busy.difference_update(partitions)
            if not done.cancelled() and done.exception() is not None:
                log.error("the run of a move could not be started or adopted", exc_info=done.exception())

        self._keep(work).add_done_callback(finished)

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work in the background, until `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self, lane: Lane, throttle: int | None) -> None:
        token = uuid.uuid4().hex

        async def attempt() -> None:
            async with self._gate:
                await self._start_once(await self._client(), lane, throttle, token)

        what = f"the run of {lane.summary()} was not started"
        await until_done(what, attempt, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._remember(lane)

    def _remember(self, lane: Lane) -> None:
        workflow_id = lane.workflow_id(self._cluster, self._node)
        for move in lane.moves:
            self._started.pop(move.partition, None)
            self._started[move.partition] = (move.claim, workflow_id)
        while len(self._started) > REMEMBERED:
            del self._started[next(iter(self._started))]

    async def _start_once(self, client: Client, lane: Lane, throttle: int | None, token: str) -> None:
        workflow_id = lane.workflow_id(self._cluster, self._node)

        async def start(policy: WorkflowIDReusePolicy) -> None:
            await client.start_workflow(
                names.MOVE_REPLICA,
                lane.parameter(self._node, throttle),
                id=workflow_id,
                task_queue=names.cluster_queue(self._cluster),
                id_reuse_policy=policy,
                memo={TOKEN: token, "node": self._node},
                static_summary=lane.summary(),
            )

        try:
            await start(WorkflowIDReusePolicy.REJECT_DUPLICATE)
        except WorkflowAlreadyStartedError:
            # It is this start's, if the response was lost; or a closed run of an earlier cluster with the same ids.
            found = await describe_run(client, workflow_id)
            if found is not None and (found.ended is None or await _token(client, found) == token):
                return
            try:
                await start(WorkflowIDReusePolicy.ALLOW_DUPLICATE)
            except WorkflowAlreadyStartedError:
                return

    async def _adopt(
        self, owner: str, requested: Awaitable[Fate], moves: Sequence[PlannedMove], throttle: int | None
    ) -> None:
        fate = await requested
        names = _names(moves)
        if fate is Fate.CANCEL:
            log.info("the run %s that moved %s was cancelled or terminated: its copies are removed", owner, names)
            reason = f"the run {owner} was cancelled or terminated"
            await _each(self._cancel(move.partition, move.claim, reason) for move in moves)
        elif fate is Fate.ADOPT:
            claims = await _each(self._claim_orphan(move.partition, move.claim) for move in moves)
            claimed = [replace(move, claim=claim) for move, claim in zip(moves, claims, strict=True) if claim]
            if claimed:
                log.info(
                    "%s: the `.move` has no run (%s): a new run continues it", _names(claimed), owner or "never started"
                )
            await _each(self._start(lane, throttle) for lane in lanes(claimed))

    async def _fate(self, owner: str, run_id: str) -> Fate:
        if not owner:
            return Fate.ADOPT

        async def attempt() -> Fate:
            client = await self._client()
            newest = await _describe(client, owner, "")
            mine = newest
            if newest is not None and run_id and newest.run_id != run_id:
                mine = await _describe(client, owner, run_id)
            return decide(mine, newest)

        what = f"the state of {owner} is not known yet"
        return await until_done(what, attempt, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)


async def _each(work: Iterable[Awaitable[T]]) -> list[T | None]:
    """Await all of the work, and return its results; None for what failed."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            log.error("the run of a move could not be started or adopted", exc_info=result)
    return [None if isinstance(result, BaseException) else result for result in results]


def _names(moves: Sequence[PlannedMove]) -> str:
    more = f" and {len(moves) - 1} more" if len(moves) > 1 else ""
    return f"{moves[0].partition}{more}"


async def _token(client: Client, found: RunDescription) -> object:
    """Return the memo field `TOKEN` of a run, "" without one."""
    fields = found.raw.workflow_execution_info.memo.fields
    if TOKEN not in fields:
        return ""
    return (await client.data_converter.decode([fields[TOKEN]]))[0]


async def _describe(client: Client, workflow_id: str, run_id: str) -> RunFacts | None:
    """Return a run as the server describes it, None if it does not exist; raises RPCError if it is unavailable."""
    try:
        found = await describe_run(client, workflow_id, run_id)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return None
        raise
    return None if found is None else RunFacts(found.run_id, found.first, found.ended)
