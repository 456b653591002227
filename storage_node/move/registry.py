"""Keep the moves of a node, the newest claims, and the operator's stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import MovesStopped, StaleClaim, StorageError
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move import patience
from storage_node.move.host import PartitionLike
from storage_node.move.moving import Move
from storage_node.move.status import MoveStatus
from storage_node.move.throttle import RunLimiters
from storage_node.replicas import marker as markers
from storage_node.replicas.creation import check_space, write_source

STOPPED_FILE = "moves-stopped"
_REMEMBERED = 4096  # finished moves whose status is kept

AFTER_STOPPED = failpoints.register("stop.after_first_file")


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Bytes reserved in a directory for a copy, until the copy exists or they are released. A context manager."""

    target: LogDirectory
    size: int
    _drop: Callable[[Room], None]

    def release(self) -> None:
        """Release the bytes; has no effect if that was done before, or if the copy exists."""
        self._drop(self)

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Registry:
    """The moves of a node by partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moves: dict[TopicPartition, Move] = {}
        self._finished: dict[TopicPartition, MoveStatus] = {}
        # A guard lives as long as its move, or a thread that holds it or waits for it.
        self._guards: WeakValueDictionary[TopicPartition, threading.RLock] = WeakValueDictionary()
        self._claims: dict[TopicPartition, int] = {}
        self._past_claims: dict[TopicPartition, int] = {}
        """The newest claims of partitions that left this node."""
        self._ended: dict[tuple[TopicPartition, str], None] = {}
        self._rooms: set[Room] = set()
        self._reserving: dict[str, threading.Lock] = {}
        self.limiters = RunLimiters()

    def guard(self, tp: TopicPartition) -> threading.RLock:
        """Return the lock under which names and markers of a partition's move change."""
        with self._lock:
            return self._guards.setdefault(tp, threading.RLock())

    def guards(self) -> list[threading.RLock]:
        """Return all guards, for a caller that waits until no step is in progress."""
        with self._lock:
            return list(self._guards.values())

    def get(self, tp: TopicPartition) -> Move | None:
        """Return the move whose `.move` is on disk now."""
        with self._lock:
            return self._moves.get(tp)

    def all(self) -> list[Move]:
        with self._lock:
            return [self._moves[tp] for tp in sorted(self._moves, key=lambda tp: (tp.topic, tp.partition))]

    def spoken_for(self, target: LogDirectory) -> int:
        """Return the bytes that moves will still write into a directory, including moves that are being created."""
        with self._lock:
            moves, rooms = list(self._moves.values()), list(self._rooms)
        left = sum(move.bytes_left for move in moves if move.target is target)
        return left + sum(room.size for room in rooms if room.target is target)

    def reserve(self, target: LogDirectory, needed: int, freed: int) -> Room:
        """Reserve room for a copy of `needed` bytes, `freed` of which the copy that it replaces gives back.

        Raises NotEnoughSpace, StorageError.
        """
        with self._lock:
            reserving = self._reserving.setdefault(target.name, threading.Lock())
        # One thread at a time, so that no two moves are admitted to the same bytes.
        with patience.held(reserving, (target,)) as free:
            if not free:
                target.check_online()
            check_space(target, needed, self.spoken_for(target) - freed)
            room = Room(target, max(0, needed - freed), self._drop)
            with self._lock:
                self._rooms.add(room)
        return room

    def reserved(self, target: LogDirectory) -> bool:
        """Return whether a move into a directory is being created."""
        with self._lock:
            return any(room.target is target for room in self._rooms)

    def _drop(self, room: Room) -> None:
        with self._lock:
            self._rooms.discard(room)

    def add(self, move: Move, room: Room | None = None) -> None:
        """Register a move whose `.move` is on disk; from now on it accounts for the bytes in `room` itself."""
        with self._lock:
            self._moves[move.tp] = move
            self._finished.pop(move.tp, None)
            if room is not None:
                self._rooms.discard(room)

    def finish(self, move: Move) -> MoveStatus:
        """Remove a move that has ended; its last status is kept for a while."""
        status = move.status()
        self.remember(status)
        with self._lock:
            if self._moves.get(move.tp) is move:
                del self._moves[move.tp]
        if status.state in (MoveState.SWAPPED, MoveState.CANCELLED):
            self.end_run(move.tp, status.run_id)
        return status

    def end_run(self, tp: TopicPartition, run_id: str) -> None:
        """Note that a run has got what it requested of a partition, or needs no more of it; see `run_ended`."""
        with self._lock:
            if run_id:
                self._ended[tp, run_id] = self._ended.pop((tp, run_id), None)
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def run_ended(self, tp: TopicPartition, run_id: str) -> bool:
        """Return whether a request is late: an attempt of the run's first request that was given up and still runs
        here.
        """
        with self._lock:
            return (tp, run_id) in self._ended

    def remember(self, status: MoveStatus) -> None:
        with self._lock:
            self._finished.pop(status.tp, None)
            self._finished[status.tp] = status
            while len(self._finished) > _REMEMBERED:
                del self._finished[next(iter(self._finished))]

    def finished(self, tp: TopicPartition) -> MoveStatus | None:
        with self._lock:
            return self._finished.get(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition that left this node: a later partition of that name is another one, with newer claims.

        Otherwise a run that was paused meanwhile, or whose worker was unavailable, would take a move of the later one
        for its own.
        """
        with self._lock:
            self._finished.pop(tp, None)
            claim = self._claims.pop(tp, 0)
            if claim:
                self._past_claims[tp] = max(claim, self._past_claims.pop(tp, 0))
            while len(self._past_claims) > _REMEMBERED:
                del self._past_claims[next(iter(self._past_claims))]

    def forget_finished(self, tp: TopicPartition) -> None:
        """Drop how the last move of a partition ended: the same run continues with another."""
        with self._lock:
            self._finished.pop(tp, None)

    # Claims

    def newest_claim(self, partition: PartitionLike) -> int:
        """Return the newest claim issued; 0 when none ever was. Raises StorageError."""
        with self._lock:
            known = self._claims.get(partition.tp)
        if known is None:
            found = markers.read(partition.log.path)
            known = self.learn(partition.tp, found.claim if found is not None else 0)
        return known

    def learn(self, tp: TopicPartition, claim: int) -> int:
        """Register a claim that was found on disk; return the newest."""
        with self._lock:
            self._claims[tp] = max(claim, self._claims.get(tp, 0), self._past_claims.get(tp, 0))
            return self._claims[tp]

    def issue(self, partition: PartitionLike, ended_run: str = "") -> int:
        """Issue the next claim, durable before it is returned; every older one is rejected from then on.

        `ended_run`: the id of the run whose move this ends, see `creation.refuse_ended`.
        """
        claim = self.newest_claim(partition) + 1
        write_source(partition, claim, ended_run=ended_run)
        return self.learn(partition.tp, claim)

    def has_newest_claim(self, move: Move) -> bool:
        """Return whether no newer claim than the move's was issued."""
        return self._claims.get(move.tp, 0) <= move.marker.claim

    def check(self, move: Move) -> None:
        """Raise StaleClaim when a newer claim than the move's was issued."""
        newest = self._claims.get(move.tp, 0)
        if newest > move.marker.claim:
            raise StaleClaim(f"claim {move.marker.claim} on {move.tp} is not the newest: {newest} was issued")


class StopSwitch:
    """The operator's order to stop all moves of this node; it survives a restart."""

    def __init__(self, directories: Iterable[LogDirectory]) -> None:
        self._directories = list(directories)
        self._on = any(_noted(directory) for directory in self._directories if directory.online)

    def add(self, directory: LogDirectory) -> None:
        """Keep the order in another directory too, perhaps in the place of one that failed.

        What its file says is older than what the others say. Raises StorageError.
        """
        self._directories = [*(each for each in self._directories if each.name != directory.name), directory]
        _write(directory, self._on)

    def remove(self, directory: LogDirectory) -> None:
        """Keep the order in a directory no longer."""
        self._directories = [each for each in self._directories if each is not directory]

    @property
    def on(self) -> bool:
        return self._on

    def refuse(self) -> None:
        """Raise MovesStopped while moves are stopped."""
        if self._on:
            raise MovesStopped("moves of this node are stopped; `rehome node resume-moves` resumes them")

    def turn_on(self) -> None:
        """Reject moves from now on; `set` makes it durable."""
        self._on = True

    def set(self, on: bool) -> None:
        """Write or remove the file in every directory that is online; raises StorageError if one fails.

        One directory is enough to remember a stop, so the others are tried even after a failure.
        """
        if on:
            self._on = True
        problem: StorageError | None = None
        for directory in self._directories:
            if not directory.online:
                continue
            try:
                _write(directory, on)
            except StorageError as error:
                directory.fail_on(error)
                problem = error
        if problem is not None:
            raise problem
        self._on = on


def _write(directory: LogDirectory, on: bool) -> None:
    path = directory.path / STOPPED_FILE
    with atomic.io_errors(directory.name, f"writing {path}" if on else f"removing {path}"):
        if on:
            atomic.write_atomic(path, b"moves are stopped: rehome node resume-moves\n")
            failpoint(AFTER_STOPPED)
        else:
            atomic.remove(path)


def _noted(directory: LogDirectory) -> bool:
    try:
        with atomic.io_errors(directory.name, f"looking for {STOPPED_FILE}"):
            return (directory.path / STOPPED_FILE).exists()
    except StorageError as error:
        directory.fail_on(error)
        return False  # the other directories have the file too
