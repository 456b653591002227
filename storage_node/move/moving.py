"""Hold one move in memory: its owner, its progress, the request to its copier to stop, and its copy once it is open."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move.copy_meter import CopyMeter
from storage_node.move.copying.pace import Paces
from storage_node.move.copying.stream import Stream
from storage_node.move.future import FutureLog
from storage_node.move.host import PartitionLike
from storage_node.move.scheduler import MoveScheduler, QueuedMove
from storage_node.move.stall import CopyFacts, MoveFacts, Stall, judge
from storage_node.move.status import MoveStatus
from storage_node.move.throttle import RateLimiter
from storage_node.replicas.marker import Marker

_RATE_WINDOW = 3.0  # seconds over which the current rate is taken
_JUDGED_FOR = 0.1  # seconds for which a stall reason is returned again without a new judgement


@dataclass(frozen=True, slots=True)
class Shared:
    """What all moves of a node share, as far as one of them refers to it."""

    limiter: RateLimiter
    scheduler: MoveScheduler
    paces: Paces


class Move:
    """A `.move` on disk and its state; `opened` once its copy is open.

    `guard` serialises the steps that change names or markers (create, open, swap, cancel). Copying needs no guard: it
    reads `stop` before every chunk. What one thread sets and others read is a single value each.
    """

    def __init__(
        self,
        partition: PartitionLike,
        target: LogDirectory,
        path: Path,
        marker: Marker,
        guard: threading.RLock,
        limiter: RateLimiter,
    ) -> None:
        self.partition = partition
        self.source = partition.directory
        self.target = target
        self.path = path
        self.marker = marker
        self.guard = guard
        self.limiter = limiter
        self.opened: OpenMove | None = None
        self.orphan = False  # found at the start, and no run has owned it yet
        self.state = MoveState.QUEUED
        self.error = ""
        self.message = ""
        self.stop = ""  # why the copier has to stop
        self.attempt = 0
        self.bytes_found = 0  # by a start, before the copy is opened and validated
        self.bytes_resumed = 0
        self.seconds_queued = 0.0
        self.seconds_copying = 0.0
        self.seconds_throttled = 0.0
        self.seconds_stalled = 0.0
        self.seconds_locked = 0.0
        self.meter = CopyMeter()
        self.shared: Shared | None = None  # None until it is queued for the first time
        self.changed = threading.Condition()
        self._copying: tuple[float, float] | None = None  # when the copier began, and what it had waited until then
        self._judged = (Stall(), CopyFacts(), float("-inf"))
        self._active = 0
        self._queued_at = time.monotonic()
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)
        self._sampling = threading.Lock()

    @property
    def tp(self) -> TopicPartition:
        return self.marker.tp

    def open(self, future: FutureLog) -> OpenMove:
        """Take the copy, which has been opened and validated, into use."""
        opened = self.opened = OpenMove(self, future)
        return opened

    @property
    def future(self) -> FutureLog | None:
        """The copy, for a thread that only watches it; None until it is open."""
        opened = self.opened
        return opened.future if opened is not None else None

    @property
    def lane(self) -> QueuedMove:
        """Its place in the scheduler's order."""
        return QueuedMove(self.source.name, self.target.name, self.tp)

    @property
    def lag(self) -> int:
        """Offsets that the copy is behind the replica (KIP-113: LEO of source - LEO of copy)."""
        future = self.future
        return max(0, self.partition.log.log_end_offset - future.log_end_offset) if future is not None else 0

    @property
    def bytes_held(self) -> int:
        """Bytes that the copy has on its disk now."""
        future = self.future
        return future.size if future is not None else self.bytes_found

    @property
    def bytes_left(self) -> int:
        """Bytes that remain to be copied now."""
        return max(0, self.partition.log.size - self.bytes_held)

    # State

    def become(self, state: MoveState, error: str = "", message: str = "") -> None:
        """Change the state and wake the waiting threads."""
        with self.changed:
            now = time.monotonic()
            self.meter.settle(self.state, self._judged[0].reason)
            self._judged = (Stall(), CopyFacts(), float("-inf"))
            if self.state is MoveState.QUEUED and state is not MoveState.QUEUED:
                self.seconds_queued += now - self._queued_at
            elif state is MoveState.QUEUED and self.state is not MoveState.QUEUED:
                self._queued_at = now
            self.state = state
            self.error = error
            self.message = message
            self.changed.notify_all()

    def throttled(self, seconds: float) -> None:
        """Note the seconds that the limits delayed the last chunk."""
        self.seconds_throttled += seconds
        wanted = MoveState.THROTTLED if seconds > 0 else MoveState.COPYING
        if self.state is not wanted and self.state.copies:
            self.state = wanted

    def begin_copying(self) -> None:
        """Begin to count the copier's time."""
        self.meter.begin()
        self._copying = (time.monotonic(), self.seconds_throttled + self.seconds_stalled)

    def end_copying(self) -> None:
        """Count the copier's time, less its waits, as copying."""
        self.seconds_copying, self._copying = self.seconds_copying + self._copying_now(), None

    def _copying_now(self) -> float:
        """Return the seconds of copying since the copier began."""
        since = self._copying
        if since is None:
            return 0.0
        waited = self.seconds_throttled + self.seconds_stalled - since[1]
        return max(0.0, time.monotonic() - since[0] - waited)

    def enter(self) -> bool:
        """Register the copier; return False when it was requested to stop before it began."""
        with self.changed:
            if self.stop:
                return False
            self._active += 1
            return True

    def leave(self) -> None:
        """Note that the copier has stopped and no longer touches the disk."""
        with self.changed:
            self._active -= 1
            self.changed.notify_all()

    def halt(self, reason: str, timeout: float) -> bool:
        """Request the copier to stop and wait until it has; return False if it is stuck in a disk that hangs.

        The call does not wait for a copier that a failed disk may block for ever: that copier checks the disk before it
        writes.
        """
        with self.changed:
            self.stop = self.stop or reason
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._active == 0 or not self._online, timeout)
            return self._active == 0

    @property
    def _online(self) -> bool:
        return self.source.online and self.target.online

    def wait_settled(self, timeout: float) -> bool:
        """Wait until it is neither queued, copying nor swapping; return False after `timeout` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.state.under_way, timeout)

    # Facts

    def sample(self) -> None:
        """Record what was written, for the rate; a partial batch counts, though the copy's size does not include it."""
        with self._sampling:
            self._samples.append((time.monotonic(), self.meter.written))
        if self.meter.due:
            self.stall()

    def stall(self) -> tuple[Stall, CopyFacts]:
        """Return what holds the move now, and its facts; the time since the last call is attributed to that reason."""
        judged, copy, at = self._judged
        state = self.state
        if time.monotonic() - at < _JUDGED_FOR:
            return judged, copy
        copy = self._copy_facts() if state.copies else CopyFacts()
        offline = next((one for one in (self.source, self.target) if not one.online), None)
        ahead = None
        if state is MoveState.QUEUED and self.shared is not None:
            ahead = self.shared.scheduler.ahead(self.lane)
        judged = judge(
            MoveFacts(
                state=state,
                message=self.message,
                offline=f"{offline.name} is offline ({offline.failure})" if offline is not None else "",
                ahead=ahead,
                copy=copy,
            )
        )
        with self.changed:
            if self.state is state:
                self.meter.settle(state, judged.reason)
                self._judged = (judged, copy, time.monotonic())
        return judged, copy

    def _copy_facts(self) -> CopyFacts:
        shared, future, source_size = self.shared, self.future, self.partition.log.size
        if shared is None or future is None:
            return CopyFacts()
        if self.meter.due:
            self.meter.sample(source_size)
        return self.meter.copy_facts(
            self.source.name,
            self.target.name,
            shared.paces,
            run_limit=self.limiter.rate,
            node_limit=shared.limiter.rate,
            sharing=shared.scheduler.running,
            left=max(0, source_size - future.size),
        )

    def _rate(self) -> float:
        now = time.monotonic()
        with self._sampling:
            recent = [sample for sample in self._samples if now - sample[0] <= _RATE_WINDOW]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0
        return max(0.0, (recent[-1][1] - recent[0][1]) / (now - recent[0][0]))

    def status(self) -> MoveStatus:
        """Return the current status."""
        future = self.future
        copied = future.size if future is not None else self.bytes_found
        if self.state is MoveState.SWAPPED:
            copied = self.partition.log.size
        stall, copy = self.stall()
        queued = self.seconds_queued
        if self.state is MoveState.QUEUED:
            queued += time.monotonic() - self._queued_at
        return MoveStatus(
            tp=self.tp,
            state=self.state,
            source=self.source.name,
            directory=self.target.name,
            claim=self.marker.claim,
            generation=self.marker.generation,
            owner=self.marker.owner,
            run_id=self.marker.run_id,
            bytes_total=max(copied, self.partition.log.size),
            bytes_copied=copied,
            bytes_resumed=self.bytes_resumed,
            rate=self._rate(),
            seconds_queued=queued,
            seconds_copying=self.seconds_copying + self._copying_now(),
            seconds_throttled=self.seconds_throttled,
            seconds_stalled=self.seconds_stalled,
            seconds_locked=self.seconds_locked,
            error=self.error,
            message=self.message,
            attempt=self.attempt,
            lag=self.lag,
            throttle=self.limiter.rate,
            bytes_written=self.meter.written,
            append_rate=copy.append_rate,
            stall=stall.reason if stall.reason.stalled else "",
            stall_message=stall.message,
            seconds_by_reason={name: round(value, 3) for name, value in self.meter.seconds.items()},
        )


class OpenMove:
    """A move whose copy is open: what a copier and a swap work on. It stays open until the move or the node ends."""

    def __init__(self, move: Move, future: FutureLog) -> None:
        self.move = move
        self.future = future
        self.stream: Stream | None = None  # the copier's position in the source
        self.doubted = (-1, -1)  # offset and version of the copy at which the source looked corrupt
        self.recovered = False  # a mover has taken over what was valid on disk
