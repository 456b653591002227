"""The threads that copy, and what becomes of a move when one of them fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from storage_node.directories.latch import Fault, fault_of, reason_of
from storage_node.errors import (
    ErrorCode,
    LogDirectoryOffline,
    NotEnoughSpace,
    RequestRefused,
    StaleClaim,
    StorageError,
)
from storage_node.move.copier import Copier, CorruptSource, Halted
from storage_node.move.creation import no_room
from storage_node.move.future import open_copy
from storage_node.move.lookup import Lookup
from storage_node.move.marker import MarkerCorrupt
from storage_node.move.moving import Move, Shared
from storage_node.move.pace import Paces
from storage_node.move.pauses import Pauses
from storage_node.move.registry import Registry
from storage_node.move.scheduler import MoveScheduler, Waiting
from storage_node.move.status import MoveState
from storage_node.move.throttle import RateLimiter

_log = logging.getLogger(__name__)

LOG_DIR_OFFLINE = "LogDirOffline"
TARGET_FULL = "TargetFull"
CORRUPT_SOURCE = "CorruptSource"
STALE_CLAIM = "StaleClaim"
MOVES_STOPPED = "MovesStopped"
NODE_FAILURE = "NodeFailure"

_LOOK = 0.2  # seconds between two looks at which threads are still waited for

STOPPED_BY_OPERATOR = "stopped by the operator"  # why copiers leave when all moves of the node are stopped


class Movers:
    """As many copying threads as there are slots, started when the first move is queued.

    A thread whose move lost a directory may hang in that disk for ever: it gives its slot to a new thread at once, and
    ends when it comes back.
    """

    def __init__(
        self,
        node: Lookup,
        registry: Registry,
        limiter: RateLimiter,
        slots: int,
        discard_copy: Callable[[Move], None],
        directories: int = 1,
        chunk: int | None = None,
    ) -> None:
        self._node = node
        self._registry = registry
        self._discard_copy = discard_copy
        self._scheduler = MoveScheduler(slots)
        self._shared = Shared(limiter, self._scheduler, Paces())
        # Each directory that fails may keep as many as there are slots; threads are made when they are needed.
        most = slots * (directories + 1)
        self.flushes = ThreadPoolExecutor(max_workers=most, thread_name_prefix="move-flush")
        self._reads = ThreadPoolExecutor(max_workers=2 * most, thread_name_prefix="move-read")
        self.pauses = Pauses()
        paces = self._shared.paces
        self._copier = Copier(limiter, self.flushes, registry.check, self._reads, paces, self.pauses, chunk)
        self._threads: list[threading.Thread] = []
        self._busy: dict[threading.Thread, Waiting] = {}
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
            self._fill()

    def _fill(self) -> None:
        while len(self._threads) < self._scheduler.slots:
            thread = threading.Thread(target=self._run, name=f"mover-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def give_up(self, move: Move) -> None:
        """A directory of a move is offline: nobody waits for its copier any more, and others get its slot."""
        with self._starting:
            for thread in [thread for thread, lane in self._busy.items() if lane == move.lane]:
                self._scheduler.done(self._busy.pop(thread))
                if thread in self._threads:
                    self._threads.remove(thread)
                self._fill()

    def halt(self, move: Move, reason: str, timeout: float) -> bool:
        """Take a move out of queue and copier; False if the copier does not leave in time."""
        self._scheduler.remove(move.lane)
        left = move.halt(reason, timeout)
        if move.state in (MoveState.QUEUED, MoveState.COPYING, MoveState.THROTTLED):
            self._stopped(move, reason)
        return left

    def close(self) -> None:
        """End the threads; every move must have been halted before. Those that were given up are left behind."""
        self._scheduler.close()
        while True:
            with self._starting:
                left = [thread for thread in self._threads if thread.is_alive()]
            if not left:
                break
            left[0].join(_LOOK)
        # No copier is left that would wait for one of theirs.
        self.flushes.shutdown(wait=False)
        self._reads.shutdown(wait=False)

    def close_copy(self, move: Move, clean: bool) -> None:
        """Let go of a copy's files; `clean`: flushed and noted, so that the next start need not check all of it.

        Those on a disk that may keep whoever writes there are left as they are.
        """
        copy = move.future
        if copy is None or not move.target.online:
            return
        try:
            if clean:
                copy.apply_deferred()
                copy.flush()
                copy.note_flushed()
            copy.close(clean=False)
        except StorageError as error:
            self._node.fail(error)
        except RequestRefused as error:
            _log.info("the copy of %s is checked at the next start: %s", move.tp, error)

    def _run(self) -> None:
        me = threading.current_thread()
        while (lane := self._scheduler.take()) is not None:
            with self._starting:
                self._busy[me] = lane
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
                with self._starting:
                    given_up = self._busy.pop(me, None) is None
                if not given_up:
                    self._scheduler.done(lane)
            if given_up:
                return

    def _copy(self, move: Move) -> None:
        move.become(MoveState.COPYING)
        try:
            self._copier.check(move)
            self._open(move)
            self._copier.run(move)
        except Halted as halted:
            self._stopped(move, str(halted))
        except StaleClaim as stale:
            with move.changed:  # see `Creator._adopt`
                taken_over = self._registry.has_newest_claim(move)
                if not taken_over:
                    self.failed(move, stale)
            if taken_over:
                self._copy(move)
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
            with move.partition.lock:
                self._copier.check(move)  # checking a large copy takes its time
                future.config = move.partition.log.config  # it may have changed meanwhile
                move.future = future
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
        if not move.target.online and move.partition.future is move.future:
            # The replica lives on without its copy (KIP-113); the folder is left for the next start to judge.
            # Without the partition's lock, which another thread may hold that waits for this directory to be offline.
            # A copier that comes back late may find the copy of the next move there, which is none of its business.
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
        if not isinstance(error, LogDirectoryOffline) and fault_of(error) is not Fault.DISK:
            name = errno.errorcode.get(getattr(error.__cause__, "errno", None) or 0, "")
            return NODE_FAILURE, f"{reason_of(error)} ({name})"  # the disk is good: tried again
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
    if isinstance(error, MarkerCorrupt):
        return RequestRefused(f"{error}; move it away and start the node again", ErrorCode.KAFKA_STORAGE_ERROR)
    return error
