"""Starting the runs of accepted moves, and asking what became of the run that owned a `.move` found on disk.

Both go on in the background until Temporal takes them: the `.move` is on disk already, the answer to the client was
given.
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

from activities.describing import RunDescription, describe_run
from activities.lanes import Lane, lanes
from activities.supervision import until_done
from storage_node.ports import PlannedMove
from storage_node.types import TopicPartition
from workflows.model import names

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 8  # starts sent to the server at the same time
FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0
REMEMBERED = 20_000  # replicas whose run was started here
TOKEN = "start"  # memo field: tells a repeated start from an old run of the same id


class Fate(Enum):
    """What is to be done with a `.move`, by what became of its run."""

    LEAVE = "leave"  # the run goes on: it will come back to it
    CANCEL = "cancel"  # cancelled or terminated: finish the cancel
    ADOPT = "adopt"  # unknown, failed or ended without it: a new run carries on (KIP-113, rule 1)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as the server describes it; `first` is shared by a run and what it was reset or continued to.

    `ended` is how it ended, None while it is open: also when it is paused.
    """

    run_id: str
    first: str
    ended: WorkflowExecutionStatus | None


def decide(owner_run: RunFacts | None, newest: RunFacts | None) -> Fate:
    """What becomes of a `.move`, given the run that made it and the newest run of the same workflow id.

    Ids may be used again by anyone, so that the newest run counts only if it is a continuation of the one that made
    the `.move`.
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
    """A `.move` that no run is at work on, with the run that came to it last ("" where none did) and its throttle."""

    move: PlannedMove
    owner: str = ""
    run_id: str = ""
    throttle: int | None = None


class MoveStarter:
    """Lives on the client's event loop; `cancel` and `next_claim` are the engine's, made awaitable: the claim after
    one, 0 when the move of that one is not under way any more.
    """

    def __init__(
        self,
        cluster: str,
        node: int,
        client: Callable[[], Awaitable[Client]],
        cancel: Callable[[TopicPartition, int, str], Awaitable[object]],
        next_claim: Callable[[TopicPartition, int], Awaitable[int]],
    ) -> None:
        self._cluster, self._node = cluster, node
        self._client, self._cancel, self._next_claim = client, cancel, next_claim
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy: set[TopicPartition] = set()
        self._started: dict[TopicPartition, tuple[int, str]] = {}

    def has(self, tp: TopicPartition) -> bool:
        """Whether the replica's run is about to be started or asked for."""
        return tp in self._busy

    def start(self, moves: Sequence[PlannedMove], throttle: int | None) -> None:
        """Start one run per lane, in the background."""
        for lane in lanes(moves):
            self._spawn({move.partition for move in lane.moves}, self._start(lane, throttle))

    def adopt(self, orphans: Sequence[Orphan]) -> None:
        """Ask what became of each owner, and carry on as the answer says, in the background.

        An owner is asked for once, and what goes on does so in lanes: a node that was killed with hundreds of accepted
        moves would otherwise load the server with a run for each. A lane waits for its own disks alone. A `.move`
        without an owner may have a run that was started for it here and has not come to it yet.
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
        """Give up what was not started; the next start of the node finds it on disk."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, partitions: set[TopicPartition], work: Coroutine[Any, Any, None]) -> None:
        self._busy |= partitions

        def finished(done: asyncio.Task[None]) -> None:
            self._busy.difference_update(partitions)
            if not done.cancelled() and done.exception() is not None:
                log.error("a move could not be handed to Temporal", exc_info=done.exception())

        self._keep(work).add_done_callback(finished)

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do it in the background, until `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self, lane: Lane, throttle: int | None) -> None:
        token = uuid.uuid4().hex

        async def attempt() -> None:
            async with self._gate:
                await self._start_once(await self._client(), lane, throttle, token)

        await until_done(f"{lane.summary()} was not started", attempt, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
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
            # Ours, if an answer got lost; or a closed run of an earlier life of this cluster that used the same id.
            found = await describe_run(client, workflow_id)
            if found is not None and (found.ended is None or await _token(client, found) == token):
                return
            try:
                await start(WorkflowIDReusePolicy.ALLOW_DUPLICATE)
            except WorkflowAlreadyStartedError:
                return

    async def _adopt(
        self, owner: str, asked: Awaitable[Fate], moves: Sequence[PlannedMove], throttle: int | None
    ) -> None:
        fate = await asked
        names = _names(moves)
        if fate is Fate.CANCEL:
            log.info("the run %s that moved %s was cancelled or terminated: what it copied is removed", owner, names)
            reason = f"the run {owner} was cancelled or terminated"
            await _each(self._cancel(move.partition, move.claim, reason) for move in moves)
        elif fate is Fate.ADOPT:
            claims = await _each(self._next_claim(move.partition, move.claim) for move in moves)
            claimed = [replace(move, claim=claim) for move, claim in zip(moves, claims, strict=True) if claim]
            if claimed:
                log.info(
                    "%s: `.move` without a run (%s): a new run carries on", _names(claimed), owner or "never started"
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
    """Do all of it, whichever fails; None in the place of what did."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            log.error("a move could not be handed to Temporal", exc_info=result)
    return [None if isinstance(result, BaseException) else result for result in results]


def _names(moves: Sequence[PlannedMove]) -> str:
    more = f" and {len(moves) - 1} more" if len(moves) > 1 else ""
    return f"{moves[0].partition}{more}"


async def _token(client: Client, found: RunDescription) -> object:
    """The memo field `TOKEN` of a run, "" where it has none."""
    fields = found.raw.workflow_execution_info.memo.fields
    if TOKEN not in fields:
        return ""
    return (await client.data_converter.decode([fields[TOKEN]]))[0]


async def _describe(client: Client, workflow_id: str, run_id: str) -> RunFacts | None:
    """A run as the server knows it, None when it does not; raises RPCError when the server cannot be asked."""
    try:
        found = await describe_run(client, workflow_id, run_id)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return None
        raise
    return None if found is None else RunFacts(found.run_id, found.first, found.ended)
