"""Run the copying threads, and handle the errors of their moves."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from storage_node.directories.io_faults import Fault, fault_of, reason_of
from storage_node.errors import LogDirectoryOffline, NotEnoughSpace, RequestRefused, StaleClaim, StorageError
from storage_node.model.error_codes import ErrorCode
from storage_node.model.error_types import LEAVES_A_COPY, ErrorType
from storage_node.model.moves import MoveState
from storage_node.move.copying.copier import Copier, CorruptSource, Halted
from storage_node.move.copying.pace import Paces
from storage_node.move.copying.pauses import Pauses
from storage_node.move.future import open_copy
from storage_node.move.lookup import Lookup
from storage_node.move.moving import Move, OpenMove, Shared
from storage_node.move.registry import Registry
from storage_node.move.scheduler import MoveScheduler, QueuedMove
from storage_node.move.throttle import RateLimiter
from storage_node.replicas.creation import no_room
from storage_node.replicas.marker import MarkerCorrupt

_log = logging.getLogger(__name__)

_LOOK = 0.2  # seconds between two checks of which threads are still alive

STOPPED_BY_OPERATOR = "stopped by the operator"  # why copiers stop when the operator stops all moves of the node


class Movers:
    """The copying threads, as many as there are slots, started when the first move is queued.

    A thread whose move lost a directory may hang in that disk for ever: its slot goes to a new thread at once, and the
    old one ends when its I/O returns.
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
        # Each directory that fails may block as many threads as there are slots; the pools start threads on demand.
        most = slots * (directories + 1)
        self.flushes = ThreadPoolExecutor(max_workers=most, thread_name_prefix="move-flush")
        self._reads = ThreadPoolExecutor(max_workers=2 * most, thread_name_prefix="move-read")
        self.pauses = Pauses()
        paces = self._shared.paces
        self._copier = Copier(limiter, self.flushes, registry.check, self._reads, paces, self.pauses, chunk)
        self._threads: list[threading.Thread] = []
        self._busy: dict[threading.Thread, QueuedMove] = {}
        self._starting = threading.Lock()

    def queue(self, move: Move) -> None:
        """Queue a move for the next free mover; has no effect on a move that is queued or copied already."""
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
        """Replace the copier of a move whose directory is offline, and free its slot for other moves."""
        with self._starting:
            for thread in [thread for thread, lane in self._busy.items() if lane == move.lane]:
                self._scheduler.done(self._busy.pop(thread))
                if thread in self._threads:
                    self._threads.remove(thread)
                self._fill()

    def halt(self, move: Move, reason: str, timeout: float) -> bool:
        """Remove a move from the queue and stop its copier; return False if the copier does not stop in time."""
        self._scheduler.remove(move.lane)
        left = move.halt(reason, timeout)
        if move.state is MoveState.QUEUED or move.state.copies:
            self._stopped(move, reason)
        return left

    def close(self) -> None:
        """End the threads; the caller has halted every move before. Threads that were given up are not joined."""
        self._scheduler.close()
        while True:
            with self._starting:
                left = [thread for thread in self._threads if thread.is_alive()]
            if not left:
                break
            left[0].join(_LOOK)
        # No copier is left that waits for a job of these pools.
        self.flushes.shutdown(wait=False)
        self._reads.shutdown(wait=False)

    def close_copy(self, move: Move, clean: bool) -> None:
        """Close a copy's files; `clean`: flush it and write its recovery point, so that the next start need not
        validate all of it.

        Files in an offline directory are left open, because a call on that disk may never return.
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
            self._copier.run(self._open(move))
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
            # A directory that failed at this very moment has failed the move, and `become` has just overwritten that.
            for directory in (move.source, move.target):
                if not directory.online:
                    self.failed(move, LogDirectoryOffline(directory.name, f"moving {move.tp}"))

    def _open(self, move: Move) -> OpenMove:
        opened = move.opened
        if opened is None:
            future = open_copy(move.path, move.partition.log, move.target.name)
            with move.partition.lock:
                self._copier.check(move)  # validating a large copy takes long
                future.config = move.partition.log.config  # the config may have changed meanwhile
                opened = move.open(future)
                move.partition.future = future
        if not opened.recovered:
            move.bytes_resumed = opened.future.size
            opened.recovered = True
        return opened

    def _stopped(self, move: Move, reason: str) -> None:
        error = ErrorType.MOVES_STOPPED if reason == STOPPED_BY_OPERATOR else ""
        move.become(MoveState.STOPPED, error, reason)

    def failed(self, move: Move, error: BaseException) -> None:
        """Record why a move ended, and take a bad directory offline."""
        kind, message = describe(error)
        if isinstance(error, StorageError) and not no_room(error):
            self._node.fail(error)
        for directory in (move.source, move.target):
            if not directory.online:
                kind, message = (
                    ErrorType.LOG_DIR_OFFLINE,
                    f"{move.tp} cannot be moved: {directory.name} is offline ({directory.failure})",
                )
        if not move.target.online and move.partition.future is move.future:
            # The replica continues without its copy (KIP-113); the next start decides about the folder. The partition's
            # lock is not taken: a thread that waits for this directory to be offline may hold it. A copier that resumes
            # late may find the copy of the next move in `future`, and must not clear that one.
            move.partition.future = None
        move.become(MoveState.FAILED, kind, message)

    def clean_up(self, move: Move) -> None:
        """Discard a copy that is of no more use: the target is full, or the source cannot be copied.

        A copier must not call it: the holder of the guard may be waiting for that copier to stop.
        """
        if move.error not in LEAVES_A_COPY:
            return
        with contextlib.suppress(StorageError), move.guard:
            # After a cancel or a new request meanwhile, the copy belongs to another request.
            if self._registry.get(move.tp) is move and move.state is MoveState.FAILED:
                self._discard_copy(move)
                self._registry.finish(move)


def describe(error: BaseException) -> tuple[ErrorType, str]:
    """Return the stable type of an error and its message."""
    if isinstance(error, NotEnoughSpace) or (isinstance(error, StorageError) and no_room(error)):
        return ErrorType.TARGET_FULL, str(error)
    if isinstance(error, StorageError):
        if not isinstance(error, LogDirectoryOffline) and fault_of(error) is not Fault.DISK:
            name = errno.errorcode.get(getattr(error.__cause__, "errno", None) or 0, "")
            return ErrorType.NODE_FAILURE, f"{reason_of(error)} ({name})"  # the disk is good: the run retries
        return ErrorType.LOG_DIR_OFFLINE, str(error)
    if isinstance(error, CorruptSource):
        return ErrorType.CORRUPT_SOURCE, str(error)
    if isinstance(error, StaleClaim):
        return ErrorType.STALE_CLAIM, str(error)
    return ErrorType.NODE_FAILURE, f"{type(error).__name__}: {error}"


def explain(error: BaseException) -> BaseException:
    """Return the error for the caller: rejections and storage errors unchanged, a full disk as NotEnoughSpace."""
    if isinstance(error, StorageError) and no_room(error):
        return NotEnoughSpace(str(error))
    if isinstance(error, CorruptSource | Halted):
        return RequestRefused(str(error))
    if isinstance(error, MarkerCorrupt):
        return RequestRefused(f"{error}; move it away and start the node again", ErrorCode.KAFKA_STORAGE_ERROR)
    return error
