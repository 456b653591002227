"""Which moves there are, whose claim is the newest, and whether the operator stopped them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import MovesStopped, StaleClaim, StorageError
from storage_node.failpoints import failpoint
from storage_node.move import marker as markers
from storage_node.move import patience
from storage_node.move.creation import check_space, write_source
from storage_node.move.host import PartitionLike
from storage_node.move.moving import Move
from storage_node.move.status import MoveState, MoveStatus
from storage_node.types import TopicPartition

STOPPED_FILE = "moves-stopped"
_REMEMBERED = 4096  # finished moves whose status can still be asked for

AFTER_STOPPED = failpoints.register("stop.after_first_file")


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Bytes that are reserved in a directory for a copy, until it is there or they are released. A context manager."""

    target: LogDirectory
    size: int
    _drop: Callable[[Room], None]

    def release(self) -> None:
        """Give the bytes back; does nothing where that was done before, or where the copy is there."""
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
        self._guards: dict[TopicPartition, threading.RLock] = {}
        self._claims: dict[TopicPartition, int] = {}
        self._ended: dict[tuple[TopicPartition, str], None] = {}
        self._rooms: set[Room] = set()
        self._reserving: dict[str, threading.Lock] = {}

    def guard(self, tp: TopicPartition) -> threading.RLock:
        """The lock under which names and markers of a partition's move change."""
        with self._lock:
            return self._guards.setdefault(tp, threading.RLock())

    def guards(self) -> list[threading.RLock]:
        """All guards there are, for who waits until nothing is under way."""
        with self._lock:
            return list(self._guards.values())

    def get(self, tp: TopicPartition) -> Move | None:
        """The move whose `.move` is on disk now."""
        with self._lock:
            return self._moves.get(tp)

    def all(self) -> list[Move]:
        with self._lock:
            return [self._moves[tp] for tp in sorted(self._moves, key=lambda tp: (tp.topic, tp.partition))]

    def spoken_for(self, target: LogDirectory) -> int:
        """Bytes that moves will still write into a directory: those there are, and those that are being made."""
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
        # One at a time, so that no two moves are admitted to the same bytes.
        with patience.held(reserving, (target,)) as free:
            if not free:
                target.check_online()
            check_space(target, needed, self.spoken_for(target) - freed)
            room = Room(target, max(0, needed - freed), self._drop)
            with self._lock:
                self._rooms.add(room)
        return room

    def _drop(self, room: Room) -> None:
        with self._lock:
            self._rooms.discard(room)

    def add(self, move: Move, room: Room | None = None) -> None:
        """A `.move` is on disk; `room` is what was reserved for it, which the move itself speaks for from now on."""
        with self._lock:
            self._moves[move.tp] = move
            self._finished.pop(move.tp, None)
            if room is not None:
                self._rooms.discard(room)

    def finish(self, move: Move) -> MoveStatus:
        """The move is over; its last status stays known for a while."""
        status = move.status()
        self.remember(status)
        with self._lock:
            if self._moves.get(move.tp) is move:
                del self._moves[move.tp]
        if status.state in (MoveState.SWAPPED, MoveState.CANCELLED):
            self.end_run(move.tp, status.run_id)
        return status

    def end_run(self, tp: TopicPartition, run_id: str) -> None:
        """A run has got what it asked for of a partition, or wants no more of it; see `run_ended`."""
        with self._lock:
            if run_id:
                self._ended[tp, run_id] = self._ended.pop((tp, run_id), None)
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def run_ended(self, tp: TopicPartition, run_id: str) -> bool:
        """Whether a run asks late: an attempt of its first request that was given up and goes on in this process."""
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
        """The partition is gone from this node, and with it its claims: a later one of that name is another."""
        with self._lock:
            self._finished.pop(tp, None)
            self._claims.pop(tp, None)

    # Claims

    def newest_claim(self, partition: PartitionLike) -> int:
        """The newest claim issued; 0 when none ever was. Raises StorageError."""
        with self._lock:
            known = self._claims.get(partition.tp)
        if known is None:
            found = markers.read(partition.log.path)
            known = self.learn(partition.tp, found.claim if found is not None else 0)
        return known

    def learn(self, tp: TopicPartition, claim: int) -> int:
        """A claim was found on disk; answers the newest."""
        with self._lock:
            self._claims[tp] = max(claim, self._claims.get(tp, 0))
            return self._claims[tp]

    def issue(self, partition: PartitionLike, ended_run: str = "") -> int:
        """The next claim, on the disk before it is handed out; from then on every older one is refused.

        `ended_run`: the id of the run whose move is ended by this, see `creation.refuse_ended`.
        """
        claim = self.newest_claim(partition) + 1
        write_source(partition, claim, ended_run=ended_run)
        return self.learn(partition.tp, claim)

    def has_newest_claim(self, move: Move) -> bool:
        """Whether no newer claim than the move's was issued."""
        return self._claims.get(move.tp, 0) <= move.marker.claim

    def check(self, move: Move) -> None:
        """Raise StaleClaim when a newer claim than the move's was issued."""
        newest = self._claims.get(move.tp, 0)
        if newest > move.marker.claim:
            raise StaleClaim(f"claim {move.marker.claim} on {move.tp} is not the newest: {newest} was issued")


class StopSwitch:
    """The operator's word that nothing is to be moved on this node; it survives a restart."""

    def __init__(self, directories: Iterable[LogDirectory]) -> None:
        self._directories = tuple(directories)
        self._on = any(_noted(directory) for directory in self._directories if directory.online)

    @property
    def on(self) -> bool:
        return self._on

    def refuse(self) -> None:
        """Raise MovesStopped while moves are stopped."""
        if self._on:
            raise MovesStopped("moves of this node are stopped; `rehome node resume-moves` lets them go on")

    def turn_on(self) -> None:
        """Refuse from now on; `set` makes it durable."""
        self._on = True

    def set(self, on: bool) -> None:
        """Write or remove the file in every directory that is online; raises StorageError for one that fails.

        Stopping needs one directory to be remembered, so the others are tried even then.
        """
        if on:
            self._on = True
        problem: StorageError | None = None
        for directory in self._directories:
            if not directory.online:
                continue
            path = directory.path / STOPPED_FILE
            try:
                with atomic.io_errors(directory.name, f"writing {path}" if on else f"removing {path}"):
                    if on:
                        atomic.write_atomic(path, b"moves are stopped: rehome node resume-moves\n")
                        failpoint(AFTER_STOPPED)
                    else:
                        atomic.remove(path)
            except StorageError as error:
                directory.fail_on(error)
                problem = error
        if problem is not None:
            raise problem
        self._on = on


def _noted(directory: LogDirectory) -> bool:
    try:
        with atomic.io_errors(directory.name, f"looking for {STOPPED_FILE}"):
            return (directory.path / STOPPED_FILE).exists()
    except StorageError as error:
        directory.fail_on(error)
        return False  # the other directories have the file too
