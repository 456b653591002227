"""One move in memory: who owns it, how far it is, and how its copier is told to leave."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.move.future import FutureLog
from storage_node.move.host import PartitionLike
from storage_node.move.marker import Marker
from storage_node.move.pace import Paces
from storage_node.move.scheduler import MoveScheduler, Waiting
from storage_node.move.stall import CopyFacts, MoveFacts, Stall, judge
from storage_node.move.status import MoveState, MoveStatus
from storage_node.move.stream import Stream
from storage_node.move.throttle import RateLimiter
from storage_node.move.watch import Watch
from storage_node.types import TopicPartition

_RATE_WINDOW = 3.0  # seconds over which the current rate is taken
_TOLD_FOR = 0.1  # seconds for which a reason that was found is told again


@dataclass(frozen=True, slots=True)
class Shared:
    """What all moves of a node have in common, as far as it can hold one of them."""

    limiter: RateLimiter
    scheduler: MoveScheduler
    paces: Paces


class Move:
    """A `.move` on disk and what goes on with it.

    `guard` serialises the steps that change names or markers (create, open, swap, cancel); copying needs no guard, it
    looks at `stop` before every chunk. What is set by one thread and read by others is a single value each.
    """

    def __init__(
        self,
        partition: PartitionLike,
        target: LogDirectory,
        path: Path,
        marker: Marker,
        guard: threading.RLock,
        throttle: int | None,
    ) -> None:
        self.partition = partition
        self.source = partition.directory
        self.target = target
        self.path = path
        self.marker = marker
        self.guard = guard
        self.limiter = RateLimiter(throttle)
        self.future: FutureLog | None = None
        self.stream: Stream | None = None  # the copier's place in the source
        self.doubted = (-1, -1)  # offset and version of the copy at which the source looked damaged
        self.orphan = False  # found at the start, and no run has owned it yet
        self.recovered = False  # the copy was made to fit the source since it was opened
        self.state = MoveState.QUEUED
        self.error = ""
        self.message = ""
        self.stop = ""  # why the copier is to leave
        self.attempt = 0
        self.bytes_found = 0  # by a start, before the copy is opened and checked
        self.bytes_resumed = 0
        self.seconds_queued = 0.0
        self.seconds_copying = 0.0
        self.seconds_throttled = 0.0
        self.seconds_stalled = 0.0
        self.seconds_locked = 0.0
        self.watch = Watch()
        self.shared: Shared | None = None  # until it is queued for the first time
        self.changed = threading.Condition()
        self._copying: tuple[float, float] | None = None  # when the copier came in, and what it had waited until then
        self._told = (Stall(), CopyFacts(), float("-inf"))
        self._active = 0
        self._queued_at = time.monotonic()
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)
        self._sampling = threading.Lock()

    @property
    def tp(self) -> TopicPartition:
        return self.marker.tp

    @property
    def lane(self) -> Waiting:
        """Its place in the scheduler."""
        return Waiting(self.source.name, self.target.name, self.tp)

    @property
    def lag(self) -> int:
        """Offsets that the copy is behind the replica (KIP-113: LEO of source - LEO of copy)."""
        future = self.future
        return max(0, self.partition.log.log_end_offset - future.log_end_offset) if future is not None else 0

    @property
    def bytes_held(self) -> int:
        """Bytes that the copy has on its disk, as of now."""
        return self.future.size if self.future is not None else self.bytes_found

    @property
    def bytes_left(self) -> int:
        """Bytes that are still to be copied, as of now."""
        return max(0, self.partition.log.size - self.bytes_held)

    # State

    def become(self, state: MoveState, error: str = "", message: str = "") -> None:
        """Change the state and wake who waits."""
        with self.changed:
            now = time.monotonic()
            self.watch.settle(self.state, self._told[0].reason)
            self._told = (Stall(), CopyFacts(), float("-inf"))
            if self.state is MoveState.QUEUED and state is not MoveState.QUEUED:
                self.seconds_queued += now - self._queued_at
            elif state is MoveState.QUEUED and self.state is not MoveState.QUEUED:
                self._queued_at = now
            self.state = state
            self.error = error
            self.message = message
            self.changed.notify_all()

    def throttled(self, seconds: float) -> None:
        """Note that the last chunk was held back this long."""
        self.seconds_throttled += seconds
        wanted = MoveState.THROTTLED if seconds > 0 else MoveState.COPYING
        if self.state is not wanted and self.state in (MoveState.COPYING, MoveState.THROTTLED):
            self.state = wanted

    def begin_copying(self) -> None:
        """From now on the copier's time counts."""
        self.watch.begin()
        self._copying = (time.monotonic(), self.seconds_throttled + self.seconds_stalled)

    def end_copying(self) -> None:
        """What the copier did not wait, it copied."""
        self.seconds_copying, self._copying = self.seconds_copying + self._copying_now(), None

    def _copying_now(self) -> float:
        """Seconds of copying since the copier came in."""
        since = self._copying
        if since is None:
            return 0.0
        waited = self.seconds_throttled + self.seconds_stalled - since[1]
        return max(0.0, time.monotonic() - since[0] - waited)

    def enter(self) -> bool:
        """The copier comes in; False when it was told to leave before it began."""
        with self.changed:
            if self.stop:
                return False
            self._active += 1
            return True

    def leave(self) -> None:
        """The copier has left; nothing of it touches the disk any more."""
        with self.changed:
            self._active -= 1
            self.changed.notify_all()

    def halt(self, reason: str, timeout: float) -> bool:
        """Tell the copier to leave and wait until it has; False if it is stuck (a disk that hangs).

        Nobody waits for one that a failed disk may keep for ever: it looks at that disk before it writes anything.
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
        """Wait until it is neither queued, copying nor swapping; False when `timeout` seconds were not enough."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.state.under_way, timeout)

    # Facts

    def sample(self) -> None:
        """Note what was written, for the rate; a batch that is not whole yet counts, though no copy holds it."""
        with self._sampling:
            self._samples.append((time.monotonic(), self.watch.written))
        if self.watch.due:
            self.stall()

    def stall(self) -> tuple[Stall, CopyFacts]:
        """What holds it now, and what that was made of; the time since the last call is put down to it."""
        told, copy, at = self._told
        state = self.state
        if time.monotonic() - at < _TOLD_FOR:
            return told, copy
        copy = self._copy_facts() if state in (MoveState.COPYING, MoveState.THROTTLED) else CopyFacts()
        offline = next((one for one in (self.source, self.target) if not one.online), None)
        ahead = None
        if state is MoveState.QUEUED and self.shared is not None:
            ahead = self.shared.scheduler.ahead(self.lane)
        told = judge(
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
                self.watch.settle(state, told.reason)
                self._told = (told, copy, time.monotonic())
        return told, copy

    def _copy_facts(self) -> CopyFacts:
        shared, future, source_size = self.shared, self.future, self.partition.log.size
        if shared is None or future is None:
            return CopyFacts()
        if self.watch.due:
            self.watch.look(source_size)
        return self.watch.copy_facts(
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
        """All that can be said now."""
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
            bytes_written=self.watch.written,
            append_rate=copy.append_rate,
            stall=stall.reason if stall.reason.stalled else "",
            stall_message=stall.message,
            seconds_by_reason={name: round(value, 3) for name, value in self.watch.seconds.items()},
        )
