"""The threads that copy, and what becomes of a move when one of them fails."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from storage_node.errors import LogDirectoryOffline, NotEnoughSpace, RequestRefused, StaleClaim, StorageError
from storage_node.move.copier import Copier, CorruptSource, Halted
from storage_node.move.creation import no_room
from storage_node.move.future import open_copy
from storage_node.move.lookup import Lookup
from storage_node.move.moving import Move, Shared
from storage_node.move.pace import Paces
from storage_node.move.registry import Registry
from storage_node.move.scheduler import MoveScheduler
from storage_node.move.status import MoveState
from storage_node.move.throttle import RateLimiter

_log = logging.getLogger(__name__)

LOG_DIR_OFFLINE = "LogDirOffline"
TARGET_FULL = "TargetFull"
CORRUPT_SOURCE = "CorruptSource"
STALE_CLAIM = "StaleClaim"
MOVES_STOPPED = "MovesStopped"
NODE_FAILURE = "NodeFailure"

STOPPED_BY_OPERATOR = "stopped by the operator"  # why copiers leave when all moves of the node are stopped


class Movers:
    """As many copying threads as there are slots, started when the first move is queued."""

    def __init__(
        self,
        node: Lookup,
        registry: Registry,
        limiter: RateLimiter,
        slots: int,
        discard_copy: Callable[[Move], None],
    ) -> None:
        self._node = node
        self._registry = registry
        self._discard_copy = discard_copy
        self._scheduler = MoveScheduler(slots)
        self._shared = Shared(limiter, self._scheduler, Paces())
        self.flushes = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="move-flush")
        self._reads = ThreadPoolExecutor(max_workers=2 * slots, thread_name_prefix="move-read")
        self._copier = Copier(limiter, self.flushes, registry.check, self._reads, self._shared.paces)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def queue(self, move: Move) -> None:
        """Let a move be copied when a mover is free; nothing is done for one that is queued or copied already."""
        with move.changed:
            if move.state.under_way and move.attempt:
                return
            move.stop = ""
            move.shared = self._shared
            move.attempt += 1
            move.become(MoveState.QUEUED)
        self._scheduler.add(move.lane)
        with self._starting:
            while len(self._threads) < self._scheduler.slots:
                thread = threading.Thread(target=self._run, name=f"mover-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def halt(self, move: Move, reason: str, timeout: float) -> bool:
        """Take a move out of queue and copier; False if the copier does not leave in time."""
        self._scheduler.remove(move.lane)
        left = move.halt(reason, timeout)
        if move.state in (MoveState.QUEUED, MoveState.COPYING, MoveState.THROTTLED):
            self._stopped(move, reason)
        return left

    def close(self) -> None:
        """End the threads; every move must have been halted before."""
        self._scheduler.close()
        for thread in self._threads:
            thread.join()
        self.flushes.shutdown()
        self._reads.shutdown()

    def _run(self) -> None:
        while (lane := self._scheduler.take()) is not None:
            try:
                move = self._registry.get(lane.tp)
                if move is not None and move.state is MoveState.QUEUED and move.enter():
                    try:
                        self._copy(move)
                    finally:
                        move.leave()
                    self.clean_up(move)
            except Exception:
                _log.exception("the mover of %s failed", lane.tp)
            finally:
                self._scheduler.done(lane)

    def _copy(self, move: Move) -> None:
        move.become(MoveState.COPYING)
        try:
            self._open(move)
            self._copier.run(move)
        except Halted as halted:
            self._stopped(move, str(halted))
        except Exception as error:
            self.failed(move, error)
        else:
            move.become(MoveState.CAUGHT_UP)
            # One that failed in this very moment was noted in the move before, and overwritten just now.
            for directory in (move.source, move.target):
                if not directory.online:
                    self.failed(move, LogDirectoryOffline(directory.name, f"moving {move.tp}"))

    def _open(self, move: Move) -> None:
        if move.recovered:
            return
        future = move.future
        if future is None:
            future = open_copy(move.path, move.partition.log, move.target.name)
            self._copier.check(move)  # checking a large copy takes its time
            move.future = future
            with move.partition.lock:
                move.partition.future = future
        move.bytes_resumed = future.size
        move.recovered = True

    def _stopped(self, move: Move, reason: str) -> None:
        error = MOVES_STOPPED if reason == STOPPED_BY_OPERATOR else ""
        move.become(MoveState.STOPPED, error, reason)

    def failed(self, move: Move, error: BaseException) -> None:
        """Note why a move ended, and take a bad directory offline."""
        kind, message = describe(error)
        if isinstance(error, StorageError) and not no_room(error):
            self._node.fail(error)
        for directory in (move.source, move.target):
            if not directory.online:
                kind, message = (
                    LOG_DIR_OFFLINE,
                    f"{move.tp} cannot be moved: {directory.name} is offline ({directory.failure})",
                )
        if not move.target.online:
            # The replica lives on without its copy (KIP-113); the folder is left for the next start to judge.
            # Without the partition's lock, which another thread may hold that waits for this directory to be offline.
            move.partition.future = None
        move.become(MoveState.FAILED, kind, message)

    def clean_up(self, move: Move) -> None:
        """Take away a copy that is of no more use: the target is full, or the source cannot be copied.

        Not from inside a copier: who holds the guard may be waiting for it to leave.
        """
        if move.error not in (TARGET_FULL, CORRUPT_SOURCE):
            return
        with contextlib.suppress(StorageError), move.guard:
            # Cancelled or taken up again meanwhile, it is somebody else's.
            if self._registry.get(move.tp) is move and move.state is MoveState.FAILED:
                self._discard_copy(move)
                self._registry.finish(move)


def describe(error: BaseException) -> tuple[str, str]:
    """The stable type of an error and its one sentence."""
    if isinstance(error, NotEnoughSpace) or (isinstance(error, StorageError) and no_room(error)):
        return TARGET_FULL, str(error)
    if isinstance(error, StorageError):
        return LOG_DIR_OFFLINE, str(error)
    if isinstance(error, CorruptSource):
        return CORRUPT_SOURCE, str(error)
    if isinstance(error, StaleClaim):
        return STALE_CLAIM, str(error)
    return NODE_FAILURE, f"{type(error).__name__}: {error}"


def explain(error: BaseException) -> BaseException:
    """What a caller is told: refusals and storage errors as they are, a full disk as NotEnoughSpace."""
    if isinstance(error, StorageError) and no_room(error):
        return NotEnoughSpace(str(error))
    if isinstance(error, CorruptSource | Halted):
        return RequestRefused(str(error))
    return error
