"""The activity `create_move`: checks, then the generation in the metadata, then `.move` and marker on the disk.

Small replicas are copied at once, if a mover is free: a step of its own would cost many times what the copy costs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from activities.errors import Classified, classify
from activities.moves import rows
from storage_node.errors import LogDirectoryOffline, ReplicaBusy, RequestRefused, RequestTimedOut, StorageError
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome
from storage_node.move.admission import GenerationRejected, Wanted, admit
from storage_node.move.registry import Room
from storage_node.ports import ChangeResult, Controller
from workflows.model.calls import MoveCall, MoveRow, ReplicaMove

if TYPE_CHECKING:
    from storage_node.node import Node

PATIENCE = 10.0  # seconds for the controller to raise the generations of a lane
AT_ONCE = 8  # `.move`s of one lane that are created at the same time
SMALL_COPY = 1 << 20  # bytes of a replica that is copied at once: one chunk
SMALL_COPIES = 0.05  # seconds for these copies, and
SMALL_COPY_EACH = 0.005  # so many more for each replica of a lane; slower ones are left to the step `copy`

log = logging.getLogger(__name__)

Blocking = Callable[..., Awaitable[Any]]

#: The final errors with which the controller rejects a generation. A retry may mend all others.
FINAL_REJECTIONS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorType.UNKNOWN_REPLICA,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorType.UNKNOWN_REPLICA,
    ErrorCode.REPLICA_NOT_AVAILABLE: ErrorType.UNKNOWN_REPLICA,
    ErrorCode.INVALID_REQUEST: ErrorType.SUPERSEDED,
}


class MoveCreator:
    """Creates the `.move`s of a call; existing ones are kept."""

    def __init__(
        self, node: Node, controller: Controller, blocking: Blocking, bases: dict[rows.MoveKey, MoveRow]
    ) -> None:
        self._node, self._controller, self._blocking, self._bases = node, controller, blocking, bases

    async def create(self, call: MoveCall) -> list[MoveRow]:
        """Return one row per replica, in order; raises an error that a retry may mend, after all other replicas."""
        done: dict[TopicPartition, MoveRow] = {}
        wanted: list[_Wanted] = []
        problem: Exception | None = None
        for move, row in await self._all(lambda move: self._known_or_created(call, move), call.replicas):
            if isinstance(row, Exception):
                problem = self._note(done, move, row) or problem
            elif row is not None:
                done[rows.partition_of(move)] = row
            elif (partition := self._node.replicas.served.get(rows.partition_of(move))) is not None:
                wanted.append(_Wanted(partition, move))
            else:
                # With a raised generation, a replica that arrives later would count as a stale copy, and its directory
                # would never be recorded.
                message = f"this node has no replica of {rows.partition_of(move)}"
                done[rows.partition_of(move)] = rows.failed(move, Classified(ErrorType.UNKNOWN_REPLICA, False, message))
        door = _Door(self._controller, partial(self._create, call), self._blocking)
        for each, created in zip(wanted, await admit(door, wanted), strict=True):
            if isinstance(created, Exception):
                problem = self._note(done, each.move, created) or problem
            else:
                done[each.partition.tp] = created
        if problem is not None:
            raise problem
        done |= await self._blocking(self._copy_small, call, done)
        return [done[rows.partition_of(move)] for move in call.replicas]

    async def _all(
        self, step: Callable[[ReplicaMove], MoveRow | None], moves: Sequence[ReplicaMove]
    ) -> list[tuple[ReplicaMove, MoveRow | Exception | None]]:
        """Run a step for every replica, a few at once, so that they share the disk's flushes."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(move: ReplicaMove) -> MoveRow | Exception | None:
            async with gate:
                try:
                    row: MoveRow | None = await self._blocking(step, move)
                except Exception as error:
                    return error
                return row

        return list(zip(moves, await asyncio.gather(*map(one, moves)), strict=True))

    def _known_or_created(self, call: MoveCall, move: ReplicaMove) -> MoveRow | None:
        """Return the row of a replica whose `.move` exists or can be created now; None if it needs its generation."""
        row = self._known(call, move)
        return self._create(call, move, move.generation) if row is None and move.generation else row

    @staticmethod
    def _note(done: dict[TopicPartition, MoveRow], move: ReplicaMove, error: Exception) -> Exception | None:
        """Keep a final error as the replica's row; return the error if a retry may mend it."""
        if isinstance(error, GenerationRejected):
            if (kind := FINAL_REJECTIONS.get(error.code)) is not None:
                done[rows.partition_of(move)] = rows.failed(move, Classified(kind, False, error.message))
                return None
            error = RequestTimedOut(error.message or "the controller recorded no generation")
        found = classify(error)
        if found.retryable:
            return error
        done[rows.partition_of(move)] = rows.failed(move, found)
        return None

    def _known(self, call: MoveCall, move: ReplicaMove) -> MoveRow | None:
        """Return the row of a replica that needs no new `.move`, else None.

        Raises an error if the move is invalid, before the metadata is changed.
        """
        tp = rows.partition_of(move)
        reason = self._node.replicas.offline.get(tp)
        if reason is not None:
            raise LogDirectoryOffline(move.directory, f"moving {tp}, which is offline ({reason}),")
        target = self._node.dirs.by_path(move.directory)
        target.check_online()
        status = self._node.engine.status(tp)
        if status is not None and not status.state.ended:
            if move.claim or status.owner == call.workflow_id:
                return self._create(call, move, move.generation)
            raise ReplicaBusy(
                f"{tp} is being moved to {status.directory} by {status.owner or 'a request'}; cancel that first",
                status.owner,
            )
        if move.claim and status is not None and status.state is MoveState.CANCELLED and status.claim == move.claim:
            # A request on the node cancelled the move before the run: it must not begin again.
            return rows.from_status(move, status, Outcome.CANCELLED)
        partition = self._node.replicas.served.get(tp)
        if partition is not None and partition.directory is target:
            return self._create(call, move, move.generation)
        return None

    def _create(self, call: MoveCall, move: ReplicaMove, generation: int) -> MoveRow:
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
        outcome = Outcome.IN_PLACE if status.state is MoveState.IN_PLACE else Outcome.CREATED
        replaced = None
        if before is not None and not before.state.ended and before.directory != status.directory:
            replaced = rows.from_status(move, before, Outcome.CREATED)
        return rows.created(move, status, outcome, replaced)

    def _copy_small(self, call: MoveCall, created: Mapping[TopicPartition, MoveRow]) -> dict[TopicPartition, MoveRow]:
        """Copy small replicas; return the rows of those that have caught up."""
        engine = self._node.engine
        small = {
            tp: row for tp, row in created.items() if row.outcome == Outcome.CREATED and row.bytes_total <= SMALL_COPY
        }
        until = time.monotonic() + SMALL_COPIES + SMALL_COPY_EACH * len(small)
        done: dict[TopicPartition, MoveRow] = {}
        try:
            for tp, row in small.items():
                engine.start_copy(tp, row.claim, call.throttle)
            for tp, row in small.items():
                status = engine.wait(tp, row.claim, max(0.0, until - time.monotonic()))
                if status.state is MoveState.CAUGHT_UP:
                    move = rows.made(row)
                    rows.keep_base(self._bases, move, row)
                    done[tp] = rows.from_status(move, status, Outcome.CAUGHT_UP, row)
        except (RequestRefused, StorageError) as error:
            # The step `copy` handles the error.
            log.info("small replicas are not copied by create_move, but by the step copy: %s", error)
        return done


@dataclass(frozen=True, slots=True)
class _Wanted(Wanted):
    """A replica of the call that has no `.move` yet."""

    move: ReplicaMove


class _Door:
    """The activity's door to the admission of moves: each `.move` on the activities' threads, a few at once."""

    def __init__(
        self, controller: Controller, create: Callable[[ReplicaMove, int], MoveRow], blocking: Blocking
    ) -> None:
        self._controller, self._create, self._blocking = controller, create, blocking
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def raise_generations(self, rows: Sequence[ReplicaDirectory]) -> Sequence[ChangeResult]:
        """See `Door`; raises RequestTimedOut."""
        return await self._controller.raise_generations(rows, timeout=PATIENCE)

    async def replace(self, wanted: _Wanted) -> Room | None:
        """Return None: a move of another run is not ended, and the engine replaces one of this run."""
        return None

    async def create(self, wanted: _Wanted, generation: int, room: Room | None) -> MoveRow:
        """See `Door`."""
        async with self._gate:
            row: MoveRow = await self._blocking(self._create, wanted.move, generation)
        return row
