"""The activities of a storage node, each a thin shell over the node and its move engine.

Each reads the disk first and does the next missing step, so that it may be retried at any time. An error that is final
for one replica of a lane becomes a row with the outcome `failed`; one that a retry may mend is raised. Blocking calls
run on a pool of threads, never on the loop that sends the heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio import activity

from activities.errors import classify, expected, given_up, raise_application_error
from activities.moves import rows
from activities.moves.awaiting_moves import AwaitMoves
from activities.moves.copying import LaneCopy
from activities.moves.creating import MoveCreator
from activities.moves.reassigning import ReassignActivities
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, MovesStopped, RequestRefused, RequestTimedOut, StorageError
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import Outcome
from storage_node.ports import Controller
from storage_node.publisher.metadata_publisher import DIRECTORIES_PATIENCE
from workflows.model import calls
from workflows.model.calls import MoveCall, MoveResult, MoveRow, ReplicaMove

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

THREADS = 16  # for blocking calls of all activities of a node
AT_ONCE = 8  # replicas of one lane in a step at the same time
LEASE_BEAT = 0.5  # seconds between two heartbeats of a lease
HUNG_LOOK, HUNG_LOOKS = 0.5, 6  # seconds between two checks of a failed disk's work, checks until it is abandoned
DELETE_LOOK = 1.0  # seconds between two checks of a `.delete` that is not due yet


T = TypeVar("T")
Step = Callable[[ReplicaMove], Coroutine[Any, Any, MoveRow]]


class NodeActivities:
    """The activities of one running node; each push calls `pushed`, with whether the controller requests a
    registration.
    """

    def __init__(
        self,
        node: Node,
        controller: Controller,
        pushed: Callable[[bool], None] = lambda register: None,
    ) -> None:
        self._node = node
        self._pushed = pushed
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="activity")
        # A pool of its own, so that a disk that hangs in the steps of moves does not delay the metadata.
        self._images = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._bases: dict[rows.MoveKey, MoveRow] = {}
        self._creator = MoveCreator(node, controller, self.blocking, self._bases)
        self._attached: dict[TopicPartition, int] = {}
        self._reassigning = ReassignActivities(node, self.blocking)
        self._awaiting = AwaitMoves(node)

    @property
    def short(self) -> list[Callable[..., Any]]:
        """Return the activities of the node's own queue."""
        return [
            self.create_move,
            self.swap,
            self.cancel_move,
            self.delete_replica,
            self.apply_image,
            self.hold_lease,
            *self._reassigning.short,
        ]

    @property
    def moves(self) -> list[Callable[..., Any]]:
        """Return the activities of the queue of moves."""
        return [self.copy, self._awaiting.await_moves, *self._reassigning.long]

    def attached(self, tp: TopicPartition) -> bool:
        """Return whether an activity is working on this replica now."""
        return self._attached.get(tp, 0) > 0

    async def blocking(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run a blocking call on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **named))

    async def _unless_hung(self, directories: Sequence[LogDirectory], work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work in these directories, without waiting for a failed disk for ever.

        Raises LogDirectoryOffline if one of them is offline and the work has not ended some seconds later; a thread
        that hangs in its disk is abandoned.
        """
        task = asyncio.ensure_future(work)
        patience = HUNG_LOOKS
        try:
            while not (await asyncio.wait([task], timeout=HUNG_LOOK))[0]:
                for directory in directories:
                    if not directory.online and (patience := patience - 1) <= 0:
                        directory.check_online()
            return task.result()
        finally:
            task.cancel()

    def _directories(self, moves: Sequence[ReplicaMove]) -> Iterator[LogDirectory]:
        """Yield the replicas' current and target directories."""
        wanted = {move.directory for move in moves}
        for directory in self._node.dirs.directories:
            here = (self._node.replicas.served.get(rows.partition_of(move)) for move in moves)
            if directory.name in wanted or any(found is not None and found.directory is directory for found in here):
                yield directory

    def close(self) -> None:
        """Accept no more work; threads that hang in a disk are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._images.shutdown(wait=False, cancel_futures=True)

    # Moves

    @activity.defn(name=calls.CREATE_MOVE)
    async def create_move(self, call: MoveCall) -> MoveResult:
        """Claim the replicas and create `.move` and marker unless they exist; copy small replicas as well."""
        with self._at_work(call):
            # Replicas in directories that are offline already are rejected one by one, without touching the disk.
            online = [directory for directory in self._directories(call.replicas) if directory.online]
            try:
                return MoveResult(rows=await self._unless_hung(online, self._creator.create(call)))
            except LogDirectoryOffline as error:
                # Other directories are not affected: the next attempt fails only this one's replicas.
                raise expected(f"a move cannot be created yet: {error}", ErrorType.NODE_FAILURE) from error
            except Exception as error:
                raise_application_error(error, "a move cannot be created yet")

    @activity.defn(name=calls.COPY)
    async def copy(self, call: MoveCall) -> MoveResult:
        """Copy until all replicas have caught up or ended; resumes from the valid bytes on disk."""
        with self._at_work(call):
            try:
                return await LaneCopy(call, self._node.engine, self.blocking, self._bases).run()
            except Exception as error:
                raise_application_error(error, "a copy is interrupted")

    @activity.defn(name=calls.SWAP)
    async def swap(self, call: MoveCall) -> MoveResult:
        """Replace the sources by their copies; a copy that fell behind is a row `behind`."""
        engine = self._node.engine
        facts = rows.read_rows(call.facts)

        async def swap(move: ReplicaMove) -> MoveRow:
            tp = rows.partition_of(move)
            known = facts.get(tp) or rows.blank(move)
            try:
                outcome = await self.blocking(engine.swap, tp, move.claim, move.generation)
            except MovesStopped as stopped:
                found = classify(stopped)
                return replace(known, outcome=Outcome.BEHIND, error=found.type, message=found.message)
            except RequestRefused:
                status = await self.blocking(engine.status, tp)
                if (ended := rows.already_ended(move, status, self._bases.get(rows.key_of(move)))) is not None:
                    return ended
                if status is not None and status.claim == move.claim and status.state.open:
                    return replace(known, outcome=Outcome.BEHIND)
                raise
            except StorageError as error:
                # Not retried: the source has a higher generation now, and the obstacle on disk remains.
                return rows.failed(move, classify(error), known)
            if outcome.outcome is not Outcome.SWAPPED:
                return replace(
                    known, outcome=Outcome.BEHIND, error="", message="", seconds_locked=outcome.seconds_locked
                )
            return replace(
                known,
                outcome=Outcome.SWAPPED,
                error="",
                message="",
                generation=outcome.generation or known.generation,
                seconds_locked=max(known.seconds_locked, outcome.seconds_locked),
                delete_after=outcome.delete_after,
            )

        result = await self._each(call, swap)
        for row in result.rows:
            if row.outcome == Outcome.SWAPPED:
                self._forget(TopicPartition(row.topic, row.partition))
        return result

    @activity.defn(name=calls.CANCEL_MOVE)
    async def cancel_move(self, call: MoveCall) -> MoveResult:
        """Remove the copies; the sources continue to serve. A replica that was swapped before is a row `swapped`."""
        engine = self._node.engine
        facts = rows.read_rows(call.facts)

        async def cancel(move: ReplicaMove) -> MoveRow:
            tp = rows.partition_of(move)
            known = facts.get(tp) or rows.blank(move)
            reason = call.reason or "the run was cancelled"
            status = await self.blocking(engine.cancel, tp, move.claim or None, reason, call.run_id)
            if self._is_in_place(tp, move):
                due = await self.blocking(engine.delete_now_if_due, tp, move.generation)
                return replace(known, outcome=Outcome.SWAPPED, delete_after=due)
            if status is not None and status.claim == move.claim:
                known = rows.from_status(move, status, Outcome.CANCELLED, self._bases.get(rows.key_of(move)))
            return replace(known, outcome=Outcome.CANCELLED, error="", message=call.reason)

        result = await self._each(call, cancel)
        for move in call.replicas:
            self._forget(rows.partition_of(move))
        return result

    @activity.defn(name=calls.DELETE_REPLICA)
    async def delete_replica(self, call: MoveCall) -> MoveResult:
        """Wait until the node has removed the sources' `.delete`; returns at once if there are none."""
        engine = self._node.engine
        facts = rows.read_rows(call.facts)
        left = list(call.replicas)
        with self._at_work(call):
            while True:
                waits: list[tuple[ReplicaMove, float]] = []
                for move in left:
                    tp = rows.partition_of(move)
                    try:
                        seconds = await self.blocking(engine.delete_now_if_due, tp, move.generation)
                    except Exception as error:
                        raise_application_error(error, f"{tp}: its `.delete` is not removed yet")
                    if seconds > 0:
                        waits.append((move, seconds))
                activity.heartbeat(len(waits))
                if not waits:
                    break
                left = [move for move, _ in waits]
                self._leave_on_shutdown()
                await asyncio.sleep(min(DELETE_LOOK, min(seconds for _, seconds in waits)))
        done = [facts.get(rows.partition_of(move)) or rows.blank(move) for move in call.replicas]
        return MoveResult(rows=[replace(row, outcome=Outcome.DELETED, error="", message="") for row in done])

    def _is_in_place(self, tp: TopicPartition, move: ReplicaMove) -> bool:
        partition = self._node.replicas.served.get(tp)
        return partition is not None and partition.directory.name == move.directory

    # Metadata

    @activity.defn(name=calls.APPLY_IMAGE)
    async def apply_image(self, call: calls.ImageCall) -> calls.ImageResult:
        """Apply the controller's images; return the pair that the node has applied."""
        try:
            loop = asyncio.get_running_loop()
            generation, version = await loop.run_in_executor(
                self._images, self._node.apply_images, call.images, DIRECTORIES_PATIENCE
            )
            if call.digest:
                look = self._node.metadata_check.look
                await loop.run_in_executor(self._images, look, call.generation, call.version, call.digest)
        except Exception as error:
            raise_application_error(error, "the cluster image cannot be applied")
        self._pushed(call.register)
        return calls.ImageResult(generation, version, self._node.incarnation)

    @activity.defn(name=calls.HOLD_LEASE)
    async def hold_lease(self, call: calls.LeaseCall) -> None:
        """Heartbeat until cancelled; raises WrongIncarnation if the lease is for another incarnation of the node."""
        mine = self._node.incarnation
        if call.incarnation != mine:
            message = f"node {call.node} was restarted: its incarnation is {mine} now, not {call.incarnation}"
            raise expected(message, ErrorType.WRONG_INCARNATION, retryable=False)
        try:
            while True:
                activity.heartbeat(mine)
                self._leave_on_shutdown()
                await asyncio.sleep(LEASE_BEAT)
        except asyncio.CancelledError:
            if (error := given_up()) is not None:
                # The lease was lost, as after a Temporal outage. The controller may have fenced the node meanwhile, and
                # would not tell a node that sends no requests, so the node registers again.
                self._pushed(True)
                raise error from None
            raise

    async def _each(self, call: MoveCall, step: Step) -> MoveResult:
        """Run one step for every replica of the lane, a few at once; raises only errors that a retry may mend."""
        gate = asyncio.Semaphore(AT_ONCE)
        facts = rows.read_rows(call.facts)

        async def one(move: ReplicaMove) -> MoveRow:
            async with gate:
                try:
                    return await self._unless_hung(list(self._directories([move])), step(move))
                except Exception as error:
                    if isinstance(error, RequestTimedOut):
                        error = TimeoutError(error.message)  # The disk did not respond in time, not the controller.
                    found = classify(error)
                    if found.retryable:
                        raise_application_error(error, str(rows.partition_of(move)))
                    return rows.failed(move, found, facts.get(rows.partition_of(move)))

        with self._at_work(call):
            done = await asyncio.gather(*(one(move) for move in call.replicas), return_exceptions=True)
        # All steps have ended before an error is raised, so that none continues behind a failed attempt.
        for found in done:
            if isinstance(found, BaseException):
                raise found
        return MoveResult(rows=[row for row in done if isinstance(row, MoveRow)])

    @contextmanager
    def _at_work(self, call: MoveCall) -> Iterator[None]:
        partitions = [rows.partition_of(move) for move in call.replicas]
        for tp in partitions:
            self._attached[tp] = self._attached.get(tp, 0) + 1
        try:
            yield
        finally:
            for tp in partitions:
                self._attached[tp] -= 1
                if not self._attached[tp]:
                    del self._attached[tp]

    def _forget(self, tp: TopicPartition) -> None:
        for key in [key for key in self._bases if key[0] == tp]:
            del self._bases[key]

    def _leave_on_shutdown(self) -> None:
        if activity.is_worker_shutdown():
            raise expected("the node stops", ErrorType.NODE_RESTARTED)
