"""Handle KIP-113's requests on this node: AlterReplicaLogDirs and DescribeLogDirs, without the wire.

An accepted move is on disk (`.move` and marker) and in the controller's metadata before the node responds; the run is
started after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from storage_node.admin import DEFAULT_TIMEOUT, Admin
from storage_node.config.changes import cordoned
from storage_node.config.values import BrokerValues
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.names import movable
from storage_node.errors import (
    MAY_COME,
    LogDirectoryOffline,
    LogDirNotFound,
    MovesStopped,
    RequestRefused,
    RequestTimedOut,
    StorageError,
)
from storage_node.metadata.cache import MetadataCache
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.moves import MoveState
from storage_node.move.admission import GenerationRejected, Wanted, admit
from storage_node.move.engine import MoveEngine
from storage_node.move.registry import Room
from storage_node.move.status import MoveStatus
from storage_node.partitions.registry import Replicas
from storage_node.ports import ChangeResult, Controller, PlannedMove
from storage_node.printable import printable
from storage_node.replicas.preferred_log_dirs import PreferredLogDirs

log = logging.getLogger(__name__)

#: KIP-113's value for "leave it to the broker", which on the wire cancels a move in progress.
ANY = "any"
#: How long a directory may take to report its free space before the response leaves without it.
USAGE_PATIENCE = 5.0
#: Between two checks of whether a directory that is waited for has failed, seconds.
LOOK = 0.2
#: How long work may still take when one of its directories is offline, seconds: long enough to detect that itself.
GIVEN_UP = 4.0
#: How long a request waits for a replica that is being created, and between two checks of it, seconds.
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


@dataclass(frozen=True, slots=True)
class _Move(Wanted):
    """A requested move, and its target directory."""

    directory: LogDirectory


class LogDirHost(Protocol):
    """The node, as the requests for log directories use it."""

    @property
    def controller(self) -> Controller | None: ...

    @property
    def admin(self) -> Admin: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def engine(self) -> MoveEngine: ...

    @property
    def preferred_log_dirs(self) -> PreferredLogDirs: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs: its own, those of all brokers and server.properties."""
        ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory offline that the error names, or the replica `tp` alone."""
        ...


class LogDirRequests:
    """The requests for log directories. Runs on the listener's loop; what touches a disk runs in threads."""

    def __init__(self, node: LogDirHost) -> None:
        self._node = node
        self._changing = asyncio.Lock()
        self.waiting = 0
        """Replicas that requests wait for, because they are being created."""

    async def alter(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Request directories; each partition has its own result, and one that fails changes nothing for the others."""
        codes: dict[TopicPartition, ErrorCode] = {}
        targets: dict[TopicPartition, LogDirectory | None] = {}
        preferences: list[tuple[TopicPartition, LogDirectory]] = []
        taken_back: list[TopicPartition] = []
        for tp, path in wanted.items():
            with self._record_error(tp, path, codes):
                target = targets[tp] = self._target(tp, path)
                if self._is_cancel(tp, target):
                    await self._cancel_other(tp, target)
                if target is not None and self._is_preference(tp):
                    preferences.append((tp, target))
                elif target is None and tp not in self._node.replicas.served:
                    taken_back.append(tp)
        if taken_back:
            await asyncio.to_thread(self._forget, taken_back)
        if preferences:
            # A replica that was created meanwhile is checked again: it is then moved.
            late = await asyncio.to_thread(self._remember, preferences)
            codes |= dict.fromkeys(await self._unmade(late), ErrorCode.REQUEST_TIMED_OUT)
        moves: list[_Move] = []
        for tp in [tp for tp in wanted if tp not in codes]:
            with self._record_error(tp, wanted[tp], codes):
                move = self._to_move(tp, targets[tp])
                codes[tp] = ErrorCode.NONE
                if move is not None:
                    moves.append(move)
        overtaken = [tp for tp, _ in preferences if tp in self._node.replicas.served]
        if overtaken:
            await asyncio.to_thread(self._forget, overtaken)
        if moves:
            async with self._changing:
                codes |= await self._start(moves)
        return codes

    @staticmethod
    @contextmanager
    def _record_error(tp: TopicPartition, path: str, codes: dict[TopicPartition, ErrorCode]) -> Iterator[None]:
        """Turn an error into the partition's code."""
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
        """Return the requested directory, online; None for "any". A path must be exactly the configured one."""
        movable(tp)
        if path == ANY:
            return None
        target = self._node.dirs.by_path(path)
        if path != target.name:
            raise LogDirNotFound(f"{path!r} is not how log.dirs names the log directory {target.name}")
        target.check_online()
        held = self._node.replicas.served.get(tp)
        if target.name in self._cordoned() and (held is None or held.directory is not target):
            raise RequestRefused(f"log directory {target.path} is cordoned", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        return target

    def _cordoned(self) -> frozenset[str]:
        return cordoned(self._node.broker_values(), [directory.name for directory in self._node.dirs.directories])

    def _moves_elsewhere(self, tp: TopicPartition, target: LogDirectory | None) -> bool:
        status = self._node.engine.status(tp)
        return status is not None and not status.state.ended and (target is None or status.directory != target.name)

    def _is_cancel(self, tp: TopicPartition, target: LogDirectory | None) -> bool:
        """Return whether the replica is to stay in its directory, which needs no request to the controller."""
        held = self._node.replicas.served.get(tp)
        return target is None or (held is not None and held.directory is target)

    async def _cancel_other(self, tp: TopicPartition, target: LogDirectory | None) -> None:
        """End a move to elsewhere: to another target, or, for the replica's own directory, as a cancel."""
        status = self._node.engine.status(tp)
        if status is None or not self._moves_elsewhere(tp, target) or tp not in self._node.replicas.served:
            return
        touched = [self._node.dirs.by_path(path) for path in (status.directory, status.source)]
        pool = next((directory for directory in touched if directory.online), touched[0])
        reason = "another directory was requested" if target is not None else "cancelled by request"
        await self._unless_hung(pool.background(self.cancel, tp, reason), touched)

    async def _unless_hung(self, job: Future[T], touched: Sequence[LogDirectory]) -> T:
        """Return the result of a job in a directory's pool, without waiting for a disk that was given up.

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
        raise RequestTimedOut(f"log directory {touched[0].path} did not respond in time")

    def cancel(self, tp: TopicPartition, reason: str) -> MoveStatus | None:
        """Cancel a move without a request to the controller; return None when there is none. Blocking."""
        return self._node.engine.cancel(tp, None, reason)

    def _is_preference(self, tp: TopicPartition) -> bool:
        return tp not in self._node.replicas.served and tp not in self._node.replicas.offline

    def _remember(self, preferences: Sequence[tuple[TopicPartition, LogDirectory]]) -> list[TopicPartition]:
        """Record preferences; return those that come too late."""
        try:
            return self._node.preferred_log_dirs.remember(preferences)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("preferred log directories will be lost by a restart: %s", error)
            return []

    def _forget(self, tps: Sequence[TopicPartition]) -> None:
        try:
            self._node.preferred_log_dirs.forget(tps)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("removed preferred log directories may be back after a restart: %s", error)

    async def _unmade(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Wait, not long, as a disk may hang, for replicas that are being created; return those that still are."""
        self.waiting += len(tps)
        for _ in range(round(MAKING_PATIENCE / MAKING_LOOK)):
            if not any(map(self._is_preference, tps)):
                break
            await asyncio.sleep(MAKING_LOOK)
        self.waiting -= len(tps)
        return [tp for tp in tps if self._is_preference(tp)]

    def _to_move(self, tp: TopicPartition, target: LogDirectory | None) -> _Move | None:
        """Return what to move, None when nothing is left to do; raises the error for the client."""
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
        if status is not None and not status.state.ended and status.directory == target.name:
            # Requested before. A new run retries one that failed.
            return _Move(partition, target) if status.state is MoveState.FAILED else None
        return _Move(partition, target)

    # Steps with an effect

    async def _start(self, moves: Sequence[_Move]) -> dict[TopicPartition, ErrorCode]:
        """Admit the moves, then start their runs; return the error codes of those that failed."""
        admitted = list(zip(moves, await admit(self, moves), strict=True))
        planned = [move for _, move in admitted if isinstance(move, PlannedMove)]
        if planned and self._node.controller is not None:
            self._node.controller.start_moves(planned, throttle=None)
        return {
            move.partition.tp: await self._code(move, error) for move, error in admitted if isinstance(error, Exception)
        }

    async def _code(self, move: _Move, error: Exception) -> ErrorCode:
        """Log why a move was not created; return the client's error code."""
        tp, path = move.partition.tp, move.directory.path
        if isinstance(error, GenerationRejected):
            log.info("move of %s to %s: %s", tp, path, error)
            return error.code
        if not isinstance(error, RequestRefused | StorageError):
            log.error("move of %s to %s", tp, path, exc_info=error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, StorageError):
            await asyncio.to_thread(self._node.storage_failed, error)
        log.warning("move of %s to %s: %s", tp, path, error)
        # A replica whose disk has just failed is not unknown.
        return ErrorCode.KAFKA_STORAGE_ERROR if tp in self._node.replicas.offline else error.code

    async def replace(self, wanted: _Move) -> Room | None:
        """See `Door`."""
        self._refuse_stopped()
        tp, target = wanted.partition.tp, wanted.directory
        room = await self._admit(tp, target) if self._moves_elsewhere(tp, target) else None
        try:
            await self._cancel_other(tp, target)
        except BaseException:
            if room is not None:
                room.release()
            raise
        return room

    async def _admit(self, tp: TopicPartition, target: LogDirectory) -> Room:
        """Reserve room for a copy in place of the one in progress; what a disk reserves too late is released."""
        admitting = target.background(self._node.engine.admit, tp, target.name)
        try:
            return await self._unless_hung(admitting, (target,))
        except BaseException:
            admitting.add_done_callback(_release)
            raise

    def _refuse_stopped(self) -> None:
        if self._node.engine.moves_stopped:
            raise MovesStopped("moves of this node are stopped; `rehome node resume-moves` resumes them")

    async def raise_generations(self, rows: Sequence[ReplicaDirectory]) -> Sequence[ChangeResult]:
        """See `Door`; without a response of the controller each result is REQUEST_TIMED_OUT."""
        try:
            controller = self._node.admin.controller()
            return await asyncio.wait_for(controller.raise_generations(rows, timeout=DEFAULT_TIMEOUT), DEFAULT_TIMEOUT)
        except (RequestTimedOut, TimeoutError):
            late = ChangeResult(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the controller did not respond in time; {MAY_COME}",
            )
            return [late] * len(rows)
        except RequestRefused as error:
            return [ChangeResult(error.code, error.message)] * len(rows)

    async def create(self, wanted: _Move, generation: int, room: Room | None) -> PlannedMove:
        """Create the `.move` in the target's background: a disk that hangs delays only its own moves, and a late one is
        undone.
        """
        partition, target = wanted.partition, wanted.directory
        making = target.background(self._make, wanted, generation, room)
        try:
            return await self._unless_hung(making, (target, partition.directory))
        except (LogDirectoryOffline, RequestTimedOut):
            if not making.done():
                making.add_done_callback(lambda _: self._take_back(partition.tp))
            raise

    def _take_back(self, tp: TopicPartition) -> None:
        """Discard what was created after its request's response; a node that stops leaves it to the next start."""
        try:
            self.cancel(tp, "it was created too late for its request")
        except RequestRefused as error:
            log.info("%s: %s", tp, error)
        except StorageError as error:
            self._node.storage_failed(error)

    def _make(self, wanted: _Move, generation: int, room: Room | None) -> PlannedMove:
        engine, tp = self._node.engine, wanted.partition.tp
        known = engine.status(tp)
        # A new claim is issued first if a run may still hold one; otherwise the claim comes with the copy.
        claim = engine.next_claim(tp) if known is not None and not known.state.ended else 0
        target = wanted.directory.name
        status = engine.create(tp, target, claim=claim, generation=generation, owner="", run_id="", room=room)
        return PlannedMove(tp, status.source, target, status.claim, status.generation, wanted.partition.log.size)

    # DescribeLogDirs

    async def describe(self, asked: set[TopicPartition] | None) -> list[DirectoryInfo]:
        """Return all configured directories; `asked` selects replicas (None: all), never directories."""
        # In a thread, because it takes long with many partitions.
        rows = await asyncio.to_thread(self._replicas, asked)
        shut = self._cordoned()
        found = await asyncio.gather(
            *(self._describe(directory, rows.get(directory.name, [])) for directory in self._node.dirs.directories)
        )
        return [replace(row, cordoned=row.path in shut) for row in found]

    def _replicas(self, asked: set[TopicPartition] | None) -> dict[str, list[ReplicaInfo]]:
        """Return the replicas by the name of their directory."""
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
        # The rest has lost its replica to a failed directory: the copy exists, and its lag is unknown.
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
