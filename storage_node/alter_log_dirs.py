"""KIP-113's requests on this node: AlterReplicaLogDirs and DescribeLogDirs, without the wire.

An accepted move is on disk (`.move` and marker) and known to the controller before it is answered; the run is started
after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from storage_node.admin import DEFAULT_TIMEOUT
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import movable
from storage_node.errors import (
    ErrorCode,
    LogDirectoryOffline,
    LogDirNotFound,
    MovesStopped,
    RequestRefused,
    RequestTimedOut,
    StorageError,
)
from storage_node.move.registry import Room
from storage_node.move.status import MoveState, MoveStatus
from storage_node.partition import Partition
from storage_node.ports import ChangeResult, PlannedMove, ReplicaDirectory
from storage_node.printable import printable
from storage_node.topic_configs import cordoned
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: KIP-113's word for "leave it to the broker", which on the wire cancels a movement under way.
ANY = "any"
#: How long a directory may take to tell its free space before it is answered without.
USAGE_PATIENCE = 5.0
#: Between two looks at whether a directory that is waited for has failed, seconds.
LOOK = 0.2
#: How long work may still take when one of its directories is offline, seconds: long enough to find out by itself.
GIVEN_UP = 4.0
#: How long a request waits for a replica that is being made, and between two looks at it, seconds.
MAKING_PATIENCE = 5.0
MAKING_LOOK = 0.02
#: The lag of a copy whose replica is on a directory that is offline.
UNKNOWN_LAG = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica or its moving copy: size in bytes, lag in offsets."""

    tp: TopicPartition
    size: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class DirectoryInfo:
    """A log directory as DescribeLogDirs shows it; bytes are -1 where they are not known."""

    path: str
    error: ErrorCode
    replicas: tuple[ReplicaInfo, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    cordoned: bool = False


class LogDirRequests:
    """Runs on the listener's loop; what touches a disk runs in threads."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._changing = asyncio.Lock()
        self.waiting = 0
        """Replicas that requests wait for, since they are just being made."""

    async def alter(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Ask for directories; each partition has its own result, and one that fails changes nothing for the others."""
        codes: dict[TopicPartition, ErrorCode] = {}
        targets: dict[TopicPartition, LogDirectory | None] = {}
        wishes: list[tuple[TopicPartition, LogDirectory]] = []
        taken_back: list[TopicPartition] = []
        for tp, path in wanted.items():
            with self._told(tp, path, codes):
                target = targets[tp] = self._target(tp, path)
                if self._is_cancel(tp, target):
                    await self._cancel_other(tp, target)
                if target is not None and self._is_wish(tp):
                    wishes.append((tp, target))
                elif target is None and tp not in self._node.replicas.served:
                    taken_back.append(tp)
        if taken_back:
            await asyncio.to_thread(self._forget, taken_back)
        if wishes:
            # A replica that is made meanwhile, or was just made, is looked at again: it is moved then.
            late = await asyncio.to_thread(self._remember, wishes)
            codes |= dict.fromkeys(await self._unmade(late), ErrorCode.REQUEST_TIMED_OUT)
        moves: list[tuple[Partition, LogDirectory]] = []
        for tp in [tp for tp in wanted if tp not in codes]:
            with self._told(tp, wanted[tp], codes):
                move = self._to_move(tp, targets[tp])
                codes[tp] = ErrorCode.NONE
                if move is not None:
                    moves.append(move)
        overtaken = [tp for tp, _ in wishes if tp in self._node.replicas.served]
        if overtaken:
            await asyncio.to_thread(self._forget, overtaken)
        if moves:
            async with self._changing:
                codes |= await self._start(moves)
        return codes

    @staticmethod
    @contextmanager
    def _told(tp: TopicPartition, path: str, codes: dict[TopicPartition, ErrorCode]) -> Iterator[None]:
        """What goes wrong becomes the partition's code."""
        try:
            yield
        except (RequestRefused, StorageError) as error:
            codes[tp] = error.code
            log.info("move of %s to %s: %s", printable(tp), printable(path), printable(error))
        except Exception:
            codes[tp] = ErrorCode.UNKNOWN_SERVER_ERROR
            log.exception("move of %s to %s", printable(tp), printable(path))

    # The checks of AlterReplicaLogDirs, in Kafka's order

    def _target(self, tp: TopicPartition, path: str) -> LogDirectory | None:
        """The directory asked for, online; None for "any". A path must be the configured one to the letter."""
        movable(tp)
        if path == ANY:
            return None
        target = self._node.dirs.by_path(path)
        if path != target.name:
            raise LogDirNotFound(f"{path} is not how log.dirs names the log directory {target.name}")
        target.check_online()
        held = self._node.replicas.served.get(tp)
        if target.name in self._cordoned() and (held is None or held.directory is not target):
            raise RequestRefused(f"log directory {target.path} is cordoned", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        return target

    def _cordoned(self) -> frozenset[str]:
        return cordoned(self._node.broker_values(), [directory.name for directory in self._node.dirs.directories])

    def _moves_elsewhere(self, tp: TopicPartition, target: LogDirectory | None) -> bool:
        status = self._node.engine.status(tp)
        return status is not None and is_open(status) and (target is None or status.directory != target.name)

    def _is_cancel(self, tp: TopicPartition, target: LogDirectory | None) -> bool:
        """Whether the replica is to stay where it is, which asks nobody."""
        held = self._node.replicas.served.get(tp)
        return target is None or (held is not None and held.directory is target)

    async def _cancel_other(self, tp: TopicPartition, target: LogDirectory | None) -> None:
        """End a movement to elsewhere: another target, or the directory where the replica is, which means cancel."""
        status = self._node.engine.status(tp)
        if status is None or not self._moves_elsewhere(tp, target) or tp not in self._node.replicas.served:
            return
        touched = [self._node.dirs.by_path(path) for path in (status.directory, status.source)]
        pool = next((directory for directory in touched if directory.online), touched[0])
        reason = "another directory was asked for" if target is not None else "cancelled by request"
        await self._unless_hung(pool.background(self.cancel, tp, reason), touched)

    async def _unless_hung(self, job: Future[T], touched: Sequence[LogDirectory]) -> T:
        """What comes of work in a directory's pool; nobody waits for what a disk keeps that has been given up.

        Raises LogDirectoryOffline, or RequestTimedOut while all of them are online.
        """
        waiting, until = asyncio.wrap_future(job), time.monotonic() + DEFAULT_TIMEOUT
        while not waiting.done() and time.monotonic() < until:
            await asyncio.wait([waiting], timeout=LOOK)
            if not all(directory.online for directory in touched):
                until = min(until, time.monotonic() + GIVEN_UP)
        if waiting.done():
            return await waiting
        for directory in touched:
            directory.check_online()
        raise RequestTimedOut(f"log directory {touched[0].path} did not answer in time")

    def cancel(self, tp: TopicPartition, reason: str) -> MoveStatus | None:
        """Cancel a movement without asking anybody; None when there is none. Blocking."""
        return self._node.engine.cancel(tp, None, reason)

    def _is_wish(self, tp: TopicPartition) -> bool:
        return tp not in self._node.replicas.served and tp not in self._node.replicas.offline

    def _remember(self, wishes: Sequence[tuple[TopicPartition, LogDirectory]]) -> list[TopicPartition]:
        """Answers those that come too late."""
        try:
            return self._node.wishes.remember(wishes)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("wishes are not kept over a restart: %s", error)
            return []

    def _forget(self, tps: Sequence[TopicPartition]) -> None:
        try:
            self._node.wishes.forget(tps)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("wishes that were taken back may be there again after a restart: %s", error)

    async def _unmade(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Wait for replicas that are being made, not long: a disk may hang; answers those that are not there then."""
        self.waiting += len(tps)
        for _ in range(round(MAKING_PATIENCE / MAKING_LOOK)):
            if not any(map(self._is_wish, tps)):
                break
            await asyncio.sleep(MAKING_LOOK)
        self.waiting -= len(tps)
        return [tp for tp in tps if self._is_wish(tp)]

    def _to_move(self, tp: TopicPartition, target: LogDirectory | None) -> tuple[Partition, LogDirectory] | None:
        """What is to be moved, None when nothing is left to do; raises what the client is told."""
        node = self._node
        partition = node.replicas.served.get(tp)
        if partition is None:
            reason = node.replicas.offline.get(tp)
            if reason is not None:
                raise RequestRefused(f"{tp} is offline: {reason}", ErrorCode.KAFKA_STORAGE_ERROR)
            if node.metadata.image.partition(tp) is not None:
                raise RequestRefused(f"this node has no replica of {tp}", ErrorCode.REPLICA_NOT_AVAILABLE)
            raise RequestRefused(f"there is no partition {tp}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if target is None or partition.directory is target:
            return None
        status = node.engine.status(tp)
        if status is not None and is_open(status) and status.directory == target.name:
            # Asked for before. One that failed is tried again, by a new run.
            return (partition, target) if status.state is MoveState.FAILED else None
        return partition, target

    # Steps with an effect

    async def _start(self, moves: Sequence[tuple[Partition, LogDirectory]]) -> dict[TopicPartition, ErrorCode]:
        """Generations into the metadata, `.move` and marker onto the disk, then the runs; answers what failed."""
        raised = await self._raise([partition for partition, _ in moves])
        made = await asyncio.gather(
            *(self._try(partition, target, result) for (partition, target), result in zip(moves, raised, strict=True))
        )
        planned = [move for move in made if isinstance(move, PlannedMove)]
        if planned and self._node.controller is not None:
            self._node.controller.start_moves(planned, throttle=None)
        return {
            partition.tp: code for (partition, _), code in zip(moves, made, strict=True) if isinstance(code, ErrorCode)
        }

    async def _try(self, partition: Partition, target: LogDirectory, raised: ChangeResult) -> PlannedMove | ErrorCode:
        """Make one `.move`, in place of one to elsewhere; answers the move or why there is none."""
        tp = partition.tp
        room: Room | None = None
        try:
            if not raised.error:
                self._refuse_stopped()
                # Not before: without a response of the controller, or room in the new directory, the copy under way
                # goes on.
                if self._moves_elsewhere(tp, target):
                    room = await self._admit(tp, target)
                await self._cancel_other(tp, target)
                if partition.generation >= raised.value:
                    # What was under way has become the replica meanwhile, or was about to.
                    (raised,) = await self._raise([partition])
            if raised.error:
                log.info("move of %s to %s: %s", tp, target.path, raised.message)
                return ErrorCode(raised.error)
            return await self._create(partition, target, raised, room)
        except (RequestRefused, StorageError) as error:
            if isinstance(error, StorageError):
                await asyncio.to_thread(self._node.storage_failed, error)
            log.warning("move of %s to %s: %s", tp, target.path, error)
            # A replica whose disk has just failed is not unknown.
            return ErrorCode.KAFKA_STORAGE_ERROR if tp in self._node.replicas.offline else error.code
        except Exception:
            log.exception("move of %s to %s", tp, target.path)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        finally:
            # A `.move` that a disk makes later is taken away again, and needs none.
            if room is not None:
                room.release()

    async def _admit(self, tp: TopicPartition, target: LogDirectory) -> Room:
        """Reserve room for a copy in place of the one under way; what a disk reserves too late is released."""
        admitting = target.background(self._node.engine.admit, tp, target.name)
        try:
            return await self._unless_hung(admitting, (target,))
        except BaseException:
            admitting.add_done_callback(_release)
            raise

    def _refuse_stopped(self) -> None:
        if self._node.engine.moves_stopped:
            raise MovesStopped("moves of this node are stopped; `rehome node resume-moves` lets them go on")

    async def _raise(self, partitions: Sequence[Partition]) -> list[ChangeResult]:
        rows = [
            ReplicaDirectory(partition.tp, partition.topic_id, partition.directory.id, partition.generation)
            for partition in partitions
        ]
        try:
            controller = self._node.admin.controller()
            return await asyncio.wait_for(controller.raise_generations(rows, timeout=DEFAULT_TIMEOUT), DEFAULT_TIMEOUT)
        except (RequestTimedOut, TimeoutError):
            late = ChangeResult(
                ErrorCode.REQUEST_TIMED_OUT,
                "the controller did not answer in time; it may still do it: look before asking again",
            )
            return [late] * len(rows)
        except RequestRefused as error:
            return [ChangeResult(error.code, error.message)] * len(rows)

    async def _create(
        self, partition: Partition, target: LogDirectory, raised: ChangeResult, room: Room | None
    ) -> PlannedMove:
        """In the target's background: a disk that hangs holds up only its own moves; what it makes later is undone."""
        making = target.background(self._make, partition, target, raised, room)
        try:
            return await self._unless_hung(making, (target, partition.directory))
        except (LogDirectoryOffline, RequestTimedOut):
            if not making.done():
                making.add_done_callback(lambda _: self._take_back(partition.tp))
            raise

    def _take_back(self, tp: TopicPartition) -> None:
        """What was made after its request had been answered; a node that stops leaves it to the next start."""
        try:
            self.cancel(tp, "it was made too late for its request")
        except RequestRefused as error:
            log.info("%s: %s", tp, error)
        except StorageError as error:
            self._node.storage_failed(error)

    def _make(self, partition: Partition, target: LogDirectory, raised: ChangeResult, room: Room | None) -> PlannedMove:
        engine = self._node.engine
        known = engine.status(partition.tp)
        # What a run may still hold is taken from it first; where there is nothing, the claim comes with the copy.
        claim = engine.next_claim(partition.tp) if known is not None and is_open(known) else 0
        status = engine.create(
            partition.tp,
            target.name,
            claim=claim,
            generation=raised.value,
            owner="",
            run_id="",
            room=room,
        )
        return PlannedMove(
            partition.tp, status.source, target.name, status.claim, status.generation, partition.log.size
        )

    # DescribeLogDirs

    async def describe(self, asked: set[TopicPartition] | None) -> list[DirectoryInfo]:
        """All configured directories; `asked` chooses replicas (None: all), never directories."""
        # By a thread: with many partitions it takes its time.
        rows = await asyncio.to_thread(self._replicas, asked)
        shut = self._cordoned()
        found = await asyncio.gather(
            *(self._describe(directory, rows.get(directory.name, [])) for directory in self._node.dirs.directories)
        )
        return [replace(row, cordoned=row.path in shut) for row in found]

    def _replicas(self, asked: set[TopicPartition] | None) -> dict[str, list[ReplicaInfo]]:
        """By the name of the directory."""
        rows: dict[str, list[ReplicaInfo]] = {}
        copies = {status.tp: status for status in self._node.engine.statuses()}
        for tp, partition in sorted(self._node.replicas.served.items()):
            if asked is not None and tp not in asked:
                continue
            current = partition.log
            info = ReplicaInfo(tp, current.size, partition.offset_lag, False)
            rows.setdefault(partition.directory.name, []).append(info)
            copy = copies.pop(tp, None)
            if copy is not None:
                info = ReplicaInfo(tp, copy.bytes_copied, copy.lag, True)
                rows.setdefault(copy.directory, []).append(info)
        # What is left has lost its replica to a failed directory: the copy is there, how far behind nobody knows.
        for tp, copy in copies.items():
            if tp in self._node.replicas.offline and (asked is None or tp in asked):
                info = ReplicaInfo(tp, copy.bytes_copied, UNKNOWN_LAG, True)
                rows.setdefault(copy.directory, []).append(info)
        return rows

    async def _describe(self, directory: LogDirectory, replicas: list[ReplicaInfo]) -> DirectoryInfo:
        try:
            usage = await asyncio.wait_for(asyncio.wrap_future(directory.submit(directory.usage)), USAGE_PATIENCE)
        except StorageError:
            return DirectoryInfo(directory.name, ErrorCode.KAFKA_STORAGE_ERROR)
        except TimeoutError:
            return DirectoryInfo(directory.name, ErrorCode.NONE, tuple(replicas))
        return DirectoryInfo(directory.name, ErrorCode.NONE, tuple(replicas), usage.total, usage.usable)


def _release(admitted: Future[Room]) -> None:
    if not admitted.cancelled() and admitted.exception() is None:
        admitted.result().release()


def is_open(status: MoveStatus) -> bool:
    """Whether a `.move` of this movement may be on disk."""
    return status.state not in (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)
