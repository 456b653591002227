"""The activities of a storage node, each a thin shell over the node and its move engine.

Every one looks at the disk first and does the next missing step, so that it may be tried again at any time. What
cannot be mended for one replica of a lane is a row with the outcome `failed`; what a retry may mend is raised.
Blocking calls run on a pool of threads, never on the loop that keeps the heartbeats.
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

from activities import rows
from activities.awaiting_moves import AwaitMoves
from activities.copying import LaneCopy
from activities.creating import MoveCreator
from activities.errors import classify, disowned, expected, raise_application_error
from activities.reassigning import ReassignActivities
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, MovesStopped, RequestRefused, RequestTimedOut, StorageError
from storage_node.images import DIRECTORIES_PATIENCE
from storage_node.ports import Controller
from storage_node.types import TopicPartition
from workflows import errors as types
from workflows.model import calls
from workflows.model.calls import MoveCall, MoveResult, MoveRow, ReplicaMove

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

THREADS = 16  # for blocking calls of all activities of a node
AT_ONCE = 8  # replicas of one lane in a step at the same time
LEASE_BEAT = 0.5  # seconds between two heartbeats of a lease
HUNG_LOOK, HUNG_LOOKS = 0.5, 6  # seconds between two looks at a failed disk's work, looks until it is left behind
DELETE_LOOK = 1.0  # seconds between two looks at a `.delete` that is not due yet

#: A swap that was told to leave ends in one of these; copying decides what comes next.
LEFT_SWAP = ("stopped", "queued", "copying", "throttled", "caught_up")

T = TypeVar("T")
Step = Callable[[ReplicaMove], Coroutine[Any, Any, MoveRow]]


class NodeActivities:
    """Bound to one running node; `pushed` is told of every push, and whether the controller wants a registration."""

    def __init__(
        self,
        node: Node,
        controller: Controller,
        pushed: Callable[[bool], None] = lambda register: None,
    ) -> None:
        self._node = node
        self._pushed = pushed
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="activity")
        # Apart, so that a disk that hangs in the steps of moves does not hold up the metadata.
        self._images = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._bases: dict[rows.MoveKey, MoveRow] = {}
        self._creator = MoveCreator(node, controller, self.blocking, self._bases)
        self._attached: dict[TopicPartition, int] = {}
        self._reassigning = ReassignActivities(node, self.blocking)
        self._awaiting = AwaitMoves(node)

    @property
    def short(self) -> list[Callable[..., Any]]:
        """What the node's own queue serves."""
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
        """What the queue of copies serves."""
        return [self.copy, self._awaiting.await_moves, *self._reassigning.long]

    def attached(self, tp: TopicPartition) -> bool:
        """Whether an activity of a run is at work on this replica right now."""
        return self._attached.get(tp, 0) > 0

    async def blocking(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run a blocking call on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **named))

    async def _unless_hung(self, directories: Sequence[LogDirectory], work: Coroutine[Any, Any, T]) -> T:
        """The result of work in these directories, of which no part is waited for that a failed disk keeps for ever.

        Raises LogDirectoryOffline for one that is offline, when the work has not come to its end by itself some seconds
        later; whatever thread is in that disk is left behind.
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
        """Where the replicas are and where they are to be."""
        wanted = {move.directory for move in moves}
        for directory in self._node.dirs.directories:
            here = (self._node.replicas.served.get(rows.partition_of(move)) for move in moves)
            if directory.name in wanted or any(found is not None and found.directory is directory for found in here):
                yield directory

    def close(self) -> None:
        """Take no more work; what hangs in a disk is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._images.shutdown(wait=False, cancel_futures=True)

    # Moves

    @activity.defn(name=calls.CREATE_MOVE)
    async def create_move(self, call: MoveCall) -> MoveResult:
        """Claim the replicas and make `.move` and marker, unless they are there already; small ones are copied, too."""
        with self._at_work(call):
            # What is offline already is refused replica by replica, and touched by none.
            online = [directory for directory in self._directories(call.replicas) if directory.online]
            try:
                return MoveResult(rows=await self._unless_hung(online, self._creator.create(call)))
            except LogDirectoryOffline as error:
                # Those of other directories are not affected: the next attempt fails those of this one alone.
                raise expected(f"a move cannot be created yet: {error}", types.NODE_FAILURE) from error
            except Exception as error:
                raise_application_error(error, "a move cannot be created yet")

    @activity.defn(name=calls.COPY)
    async def copy(self, call: MoveCall) -> MoveResult:
        """Copy until all replicas have caught up or ended; resumes from what is valid on disk."""
        with self._at_work(call):
            try:
                return await LaneCopy(call, self._node.engine, self.blocking, self._bases).run()
            except Exception as error:
                raise_application_error(error, "a copy is interrupted")

    @activity.defn(name=calls.SWAP)
    async def swap(self, call: MoveCall) -> MoveResult:
        """Put the copies in the places of their sources; one that fell behind is a row `behind`."""
        engine = self._node.engine
        facts = rows.read_rows(call.facts)

        async def swap(move: ReplicaMove) -> MoveRow:
            tp = rows.partition_of(move)
            known = facts.get(tp) or rows.blank(move)
            try:
                outcome = await self.blocking(engine.swap, tp, move.claim, move.generation)
            except MovesStopped as stopped:
                found = classify(stopped)
                return replace(known, outcome=calls.BEHIND, error=found.type, message=found.message)
            except RequestRefused:
                status = await self.blocking(engine.status, tp)
                if (ended := rows.already_ended(move, status, self._bases.get(rows.key_of(move)))) is not None:
                    return ended
                if status is not None and status.claim == move.claim and status.state in LEFT_SWAP:
                    return replace(known, outcome=calls.BEHIND)
                raise
            except StorageError as error:
                # Not tried again: the source has taken a higher generation, and what stands in the way stays there.
                return rows.failed(move, classify(error), known)
            if outcome.outcome != "swapped":
                return replace(known, outcome=calls.BEHIND, error="", message="", seconds_locked=outcome.seconds_locked)
            return replace(
                known,
                outcome=calls.SWAPPED,
                error="",
                message="",
                generation=outcome.generation or known.generation,
                seconds_locked=max(known.seconds_locked, outcome.seconds_locked),
                delete_after=outcome.delete_after,
            )

        result = await self._each(call, swap)
        for row in result.rows:
            if row.outcome == calls.SWAPPED:
                self._forget(TopicPartition(row.topic, row.partition))
        return result

    @activity.defn(name=calls.CANCEL_MOVE)
    async def cancel_move(self, call: MoveCall) -> MoveResult:
        """Remove the copies; the sources serve on. A replica that was swapped before is a row `swapped`."""
        engine = self._node.engine
        facts = rows.read_rows(call.facts)

        async def cancel(move: ReplicaMove) -> MoveRow:
            tp = rows.partition_of(move)
            known = facts.get(tp) or rows.blank(move)
            reason = call.reason or "the run was cancelled"
            status = await self.blocking(engine.cancel, tp, move.claim or None, reason, call.run_id)
            if self._is_in_place(tp, move):
                due = await self.blocking(engine.delete_now_if_due, tp, move.generation)
                return replace(known, outcome=calls.SWAPPED, delete_after=due)
            if status is not None and status.claim == move.claim:
                known = rows.from_status(move, status, calls.DROPPED, self._bases.get(rows.key_of(move)))
            return replace(known, outcome=calls.DROPPED, error="", message=call.reason)

        result = await self._each(call, cancel)
        for move in call.replicas:
            self._forget(rows.partition_of(move))
        return result

    @activity.defn(name=calls.DELETE_REPLICA)
    async def delete_replica(self, call: MoveCall) -> MoveResult:
        """Wait until the node itself has removed the sources' `.delete`; of nothing it is done at once."""
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
                        raise_application_error(error, f"{tp}: its `.delete` is still there")
                    if seconds > 0:
                        waits.append((move, seconds))
                activity.heartbeat(len(waits))
                if not waits:
                    break
                left = [move for move, _ in waits]
                self._leave_on_shutdown()
                await asyncio.sleep(min(DELETE_LOOK, min(seconds for _, seconds in waits)))
        done = [facts.get(rows.partition_of(move)) or rows.blank(move) for move in call.replicas]
        return MoveResult(rows=[replace(row, outcome=calls.DELETED, error="", message="") for row in done])

    def _is_in_place(self, tp: TopicPartition, move: ReplicaMove) -> bool:
        partition = self._node.replicas.served.get(tp)
        return partition is not None and partition.directory.name == move.directory

    # Metadata

    @activity.defn(name=calls.APPLY_IMAGE)
    async def apply_image(self, call: calls.ImageCall) -> calls.ImageResult:
        """Take over the controller's images; the answer says what the node knows after it."""
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
        """Heartbeat until cancelled; raises WrongIncarnation when another start of the node is meant."""
        mine = self._node.incarnation
        if call.incarnation != mine:
            message = f"node {call.node} was started again: it is {mine} now, not {call.incarnation}"
            raise expected(message, types.WRONG_INCARNATION, retryable=False)
        try:
            while True:
                activity.heartbeat(mine)
                self._leave_on_shutdown()
                await asyncio.sleep(LEASE_BEAT)
        except asyncio.CancelledError:
            if (error := disowned()) is not None:
                # The lease was lost, as after a standstill: whoever was fenced meanwhile has to register again, and
                # nobody else would tell a node that has nothing to ask.
                self._pushed(True)
                raise error from None
            raise

    # How

    async def _each(self, call: MoveCall, step: Step) -> MoveResult:
        """Do one step for every replica of the lane, a few at once; raises only what a retry may mend."""
        gate = asyncio.Semaphore(AT_ONCE)
        facts = rows.read_rows(call.facts)

        async def one(move: ReplicaMove) -> MoveRow:
            async with gate:
                try:
                    return await self._unless_hung(list(self._directories([move])), step(move))
                except Exception as error:
                    if isinstance(error, RequestTimedOut):
                        error = TimeoutError(error.message)  # the disk's time, not the controller's
                    found = classify(error)
                    if found.retryable:
                        raise_application_error(error, str(rows.partition_of(move)))
                    return rows.failed(move, found, facts.get(rows.partition_of(move)))

        with self._at_work(call):
            done = await asyncio.gather(*(one(move) for move in call.replicas), return_exceptions=True)
        # All have come to their end before anything is raised: nothing goes on behind an attempt that has failed.
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
            raise expected("the node stops", types.NODE_RESTARTED)
