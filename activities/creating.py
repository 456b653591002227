"""The activity `create_move`: checks, then the generation in the metadata, then `.move` and marker on the disk.

What is small is copied at once, if a mover is free: a step of its own would cost a run many times what the copy costs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from activities import rows
from activities.errors import Classified, classify
from storage_node.errors import (
    ErrorCode,
    LogDirectoryOffline,
    ReplicaBusy,
    RequestRefused,
    RequestTimedOut,
    StorageError,
)
from storage_node.move.status import MoveState, MoveStatus
from storage_node.ports import ChangeResult, Controller, ReplicaDirectory
from storage_node.types import TopicPartition
from workflows import errors as types
from workflows.model.calls import CAUGHT_UP, CREATED, DROPPED, IN_PLACE, MoveCall, MoveRow, ReplicaMove

if TYPE_CHECKING:
    from storage_node.node import Node

PATIENCE = 10.0  # seconds for the controller to raise the generations of a lane
AT_ONCE = 8  # replicas of one lane that are made at the same time
SMALL_COPY = 1 << 20  # bytes of a replica that is copied at once: one chunk
SMALL_COPIES = 0.05  # seconds in which it is, and
SMALL_COPY_EACH = 0.005  # so many more for each replica of a lane; what takes longer has the step `copy`

log = logging.getLogger(__name__)

Blocking = Callable[..., Awaitable[Any]]

#: What the controller refuses a generation for. Anything else may be mended by trying again.
REFUSED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: types.UNKNOWN_REPLICA,
    ErrorCode.UNKNOWN_TOPIC_ID: types.UNKNOWN_REPLICA,
    ErrorCode.REPLICA_NOT_AVAILABLE: types.UNKNOWN_REPLICA,
    ErrorCode.INVALID_REQUEST: types.SUPERSEDED,
}


class MoveCreator:
    """Makes the `.move`s of one call; what is there already is taken as made."""

    def __init__(
        self, node: Node, controller: Controller, blocking: Blocking, bases: dict[rows.MoveKey, MoveRow]
    ) -> None:
        self._node, self._controller, self._blocking, self._bases = node, controller, blocking, bases

    async def create(self, call: MoveCall) -> list[MoveRow]:
        """One row per replica, in order; raises what a retry may mend, after everything else was done."""
        done: dict[TopicPartition, MoveRow] = {}
        to_raise: list[ReplicaMove] = []
        problem: Exception | None = None
        looked = await self._all(lambda move: self._known_or_made(call, move), call.replicas)
        for move, row in looked:
            if isinstance(row, Exception):
                problem = self._note(done, move, row) or problem
            elif row is not None:
                done[rows.partition_of(move)] = row
            else:
                to_raise.append(move)
        raised = dict(zip(map(rows.partition_of, to_raise), await self._raise(to_raise), strict=True))

        def make(move: ReplicaMove) -> MoveRow | None:
            result = raised[rows.partition_of(move)]
            if result.error:
                return rows.failed(move, _refused(result))
            return self._make(call, move, result.value)

        for move, row in await self._all(make, to_raise):
            if isinstance(row, Exception):
                problem = self._note(done, move, row) or problem
            elif row is not None:
                done[rows.partition_of(move)] = row
        if problem is not None:
            raise problem
        done |= await self._blocking(self._copy_small, call, done)
        return [done[rows.partition_of(move)] for move in call.replicas]

    async def _all(
        self, step: Callable[[ReplicaMove], MoveRow | None], moves: Sequence[ReplicaMove]
    ) -> list[tuple[ReplicaMove, MoveRow | Exception | None]]:
        """Do one step for every replica, a few at once: their flushes share what a disk does for one."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(move: ReplicaMove) -> MoveRow | Exception | None:
            async with gate:
                try:
                    row: MoveRow | None = await self._blocking(step, move)
                except Exception as error:
                    return error
                return row

        return list(zip(moves, await asyncio.gather(*map(one, moves)), strict=True))

    def _known_or_made(self, call: MoveCall, move: ReplicaMove) -> MoveRow | None:
        """The row of a replica whose `.move` is there or can be made now; None for one that needs its generation."""
        row = self._known(call, move)
        return self._make(call, move, move.generation) if row is None and move.generation else row

    @staticmethod
    def _note(done: dict[TopicPartition, MoveRow], move: ReplicaMove, error: Exception) -> Exception | None:
        """Make a final error the replica's row; answer the error when a retry may mend it."""
        found = classify(error)
        if found.retryable:
            return error
        done[rows.partition_of(move)] = rows.failed(move, found)
        return None

    def _known(self, call: MoveCall, move: ReplicaMove) -> MoveRow | None:
        """The row of a replica for which nothing is to be made; None for one that is to be made.

        Raises what speaks against the move before the metadata hears of it.
        """
        tp = rows.partition_of(move)
        reason = self._node.replicas.offline.get(tp)
        if reason is not None:
            raise LogDirectoryOffline(move.directory, f"moving {tp}, which is offline ({reason}),")
        target = self._node.dirs.by_path(move.directory)
        target.check_online()
        status = self._node.engine.status(tp)
        if status is not None and not ended(status):
            if move.claim or status.owner == call.workflow_id:
                return self._make(call, move, move.generation)
            raise ReplicaBusy(
                f"{tp} is being moved to {status.directory} by {status.owner or 'a request'}; cancel that first",
                status.owner,
            )
        if move.claim and status is not None and status.state is MoveState.CANCELLED and status.claim == move.claim:
            # A request on the node was faster than the run: nothing of it is left, and nothing is begun again.
            return rows.from_status(move, status, DROPPED)
        partition = self._node.replicas.served.get(tp)
        if partition is not None and partition.directory is target:
            return self._make(call, move, move.generation)
        return None

    def _make(self, call: MoveCall, move: ReplicaMove, generation: int) -> MoveRow:
        before = self._node.engine.status(rows.partition_of(move))
        status = self._node.engine.create(
            rows.partition_of(move),
            move.directory,
            claim=move.claim,
            generation=generation,
            owner=call.workflow_id,
            run_id=call.run_id,
            throttle=call.throttle,
        )
        outcome = IN_PLACE if status.state is MoveState.IN_PLACE else CREATED
        replaced = None
        if before is not None and not ended(before) and before.directory != status.directory:
            replaced = rows.from_status(move, before, CREATED)
        return rows.created(move, status, outcome, replaced)

    def _copy_small(self, call: MoveCall, made: Mapping[TopicPartition, MoveRow]) -> dict[TopicPartition, MoveRow]:
        """Copy what is small; the rows of the replicas that have caught up."""
        engine = self._node.engine
        small = {tp: row for tp, row in made.items() if row.outcome == CREATED and row.bytes_total <= SMALL_COPY}
        until = time.monotonic() + SMALL_COPIES + SMALL_COPY_EACH * len(small)
        done: dict[TopicPartition, MoveRow] = {}
        try:
            for tp, row in small.items():
                engine.start_copy(tp, row.claim, call.throttle)
            for tp, row in small.items():
                status = engine.wait(tp, row.claim, max(0.0, until - time.monotonic()))
                if status.state is MoveState.CAUGHT_UP:
                    move = rows.made(row)
                    self._bases.setdefault(rows.key_of(move), row)
                    done[tp] = rows.from_status(move, status, CAUGHT_UP, row)
        except (RequestRefused, StorageError) as error:
            log.info("what is small is not copied at once: %s", error)  # the step `copy` finds out what becomes of it
        return done

    async def _raise(self, moves: Sequence[ReplicaMove]) -> list[ChangeResult]:
        """Have the metadata hold the generations that the moves will give; raises RequestTimedOut.

        Of a replica that is not here nothing is raised: one that comes later would pass for a stale copy, and where it
        is would never be recorded.
        """
        tps = [rows.partition_of(move) for move in moves]
        served = self._node.replicas.served
        found = {tp: partition for tp in tps if (partition := served.get(tp)) is not None}
        held = [ReplicaDirectory(tp, one.topic_id, one.directory.id, one.generation) for tp, one in found.items()]
        raised = await self._controller.raise_generations(held, timeout=PATIENCE) if held else []
        results = dict(zip(found, raised, strict=True))
        none = int(ErrorCode.REPLICA_NOT_AVAILABLE)
        return [results.get(tp) or ChangeResult(none, f"this node has no replica of {tp}") for tp in tps]


def ended(status: MoveStatus) -> bool:
    """Whether nothing of a move is on disk any more that a run could go on with."""
    return status.state in (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)


def _refused(result: ChangeResult) -> Classified:
    kind = REFUSED.get(ErrorCode(result.error)) if result.error in set(ErrorCode) else None
    if kind is None:
        raise RequestTimedOut(result.message or "the controller gave no generation")
    return Classified(kind, False, result.message)
