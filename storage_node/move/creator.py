"""Decide what a request to move a replica means for the replica's state, and create the `.move` if there is none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from storage_node.directories.atomic import io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import movable, move_name, replica_name
from storage_node.errors import NotEnoughSpace, ReplicaBusy, RequestRefused, StaleClaim, StorageError, Superseded
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move import patience
from storage_node.move.future import open_copy
from storage_node.move.host import PartitionLike
from storage_node.move.lookup import Lookup
from storage_node.move.moving import Move
from storage_node.move.registry import Registry, Room, StopSwitch
from storage_node.move.status import MoveStatus
from storage_node.replicas import marker as markers
from storage_node.replicas.creation import make, refuse_ended, unmake, write_source
from storage_node.replicas.marker import Marker, State


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The requester, its claim and generation (0: to be issued) and its rate.

    `room` is what `Creator.admit` reserved in the target before the copy that this one replaces was cancelled.
    """

    claim: int = 0
    generation: int = 0
    owner: str = ""
    run_id: str = ""
    throttle: int | None = None
    room: Room | None = None


class Creator:
    """The creator of moves; called under the partition's guard."""

    def __init__(
        self,
        node: Lookup,
        registry: Registry,
        switch: StopSwitch,
        cancel: Callable[[TopicPartition, int | None, str], object],
    ) -> None:
        self._node = node
        self._registry = registry
        self._switch = switch
        self._cancel = cancel

    def create(self, tp: TopicPartition, target_path: Path | str, request: MoveRequest) -> MoveStatus:
        """See `MoveEngine.create`."""
        with ExitStack() as rooms:
            if request.room is not None:
                rooms.enter_context(request.room)
            return self._create(tp, target_path, request, rooms)

    def _create(
        self, tp: TopicPartition, target_path: Path | str, request: MoveRequest, rooms: ExitStack
    ) -> MoveStatus:
        """Create the move; what it reserves is released with `rooms`."""
        room = request.room
        partition = self._node.partition(tp)
        target = self._node.directory(target_path)
        newest = self._registry.newest_claim(partition)
        if request.claim and request.claim < newest:
            raise StaleClaim(f"claim {request.claim} on {tp} is not the newest: {newest} was issued")
        move = self._registry.get(tp)
        ended_run = ""
        if move is not None:
            _refuse_other_owner(move, request)
            if move.marker.run_id != request.run_id:
                self._refuse_ended(partition, request)
            if move.orphan and not request.claim:
                # The requester of an orphan never learned of it: the request gets a claim of its own.
                request = replace(request, claim=newest + 1)
            if move.target is target:
                return self._adopt(move, request)
            if partition.directory is not target:
                # The target is checked first: rejecting it leaves the running copy alone.
                self._check(partition, target, request.generation)
                room = room or rooms.enter_context(self._reserve(partition, target, move))
            self._cancel(tp, None, "another directory was requested")
            if move.marker.run_id and move.marker.run_id == request.run_id:
                # Should the new one fail, the run may return to this target: no request cancelled the move.
                self._registry.forget_finished(tp)
            ended_run = move.marker.run_id if move.marker.run_id != request.run_id else ""
        if partition.directory is target:
            return self._in_place(partition, request, newest)
        if move is None:
            self._refuse_ended(partition, request)
        self._check(partition, target, request.generation)
        room = room or rooms.enter_context(self._reserve(partition, target, None))
        # A removal of the directory that has not seen the room yet is seen here, and the other way round.
        if self._node.directory(target_path) is not target:
            raise RequestRefused(f"{target.path} is no longer the log directory that the move was requested to")
        return self._make(partition, target, request, ended_run, room)

    def admit(self, tp: TopicPartition, target_path: Path | str) -> Room:
        """See `MoveEngine.admit`."""
        partition, target = self._node.partition(tp), self._node.directory(target_path)
        self._check(partition, target, 0)
        return self._reserve(partition, target, self._registry.get(tp))

    def _check(self, partition: PartitionLike, target: LogDirectory, generation: int) -> None:
        """Raise unless a new copy in `target` is possible, apart from its size. Changes nothing."""
        tp = partition.tp
        self._switch.refuse()
        movable(tp)
        target.check_online()
        partition.directory.check_online()
        if generation and generation <= partition.generation:
            raise Superseded(f"{tp} is at generation {partition.generation} already; the move has {generation}")
        for name in (replica_name(tp), move_name(tp)):
            with io_errors(target.name, f"looking for {name}"):
                there = (target.path / name).exists()
            if there:
                raise RequestRefused(f"{target.path / name} is not a known replica: inspect it and move it elsewhere")

    def _reserve(self, partition: PartitionLike, target: LogDirectory, replaced: Move | None) -> Room:
        """Reserve room in `target`, counting what the replaced copy frees there. Raises NotEnoughSpace."""
        freed = replaced.bytes_held if replaced is not None and target.shares_disk_with(replaced.target) else 0
        return self._registry.reserve(target, partition.log.size, freed)

    def _refuse_ended(self, partition: PartitionLike, request: MoveRequest) -> None:
        if not request.claim:
            refuse_ended(partition, request.run_id, self._registry.run_ended(partition.tp, request.run_id))

    def _in_place(self, partition: PartitionLike, request: MoveRequest, newest: int) -> MoveStatus:
        name = partition.directory.name
        status = MoveStatus(
            partition.tp,
            MoveState.IN_PLACE,
            source=name,
            directory=name,
            claim=request.claim or newest,
            generation=partition.generation,
            owner=request.owner,
            run_id=request.run_id,
        )
        self._registry.remember(status)
        return status

    def _make(
        self, partition: PartitionLike, target: LogDirectory, request: MoveRequest, ended_run: str, room: Room
    ) -> MoveStatus:
        tp = partition.tp
        claim = request.claim or self._registry.newest_claim(partition) + 1
        source = write_source(partition, claim, target.id, ended_run)
        self._registry.learn(tp, claim)
        marker = Marker(
            tp.topic,
            tp.partition,
            topic_id=partition.topic_id,
            source_id=partition.directory.id,
            target_id=target.id,
            generation=request.generation or source.generation + 1,
            state=State.COPYING,
            claim=claim,
            owner=request.owner,
            run_id=request.run_id,
            throttle=request.throttle or 0,
            partition_epoch=partition.partition_epoch,
            created_epoch=source.created_epoch,
        )
        path = target.path / move_name(tp)
        try:
            make(partition, target, path, marker)
            limiter = self._registry.limiters.of(request.owner, request.run_id, request.throttle)
            move = Move(partition, target, path, marker, self._registry.guard(tp), limiter)
            future = move.open(open_copy(path, partition.log, target.name)).future
        except (StorageError, NotEnoughSpace) as error:
            if isinstance(error, StorageError):
                self._node.fail(error)
            if target.online:
                unmake(target, path)
            raise
        # A source that hangs keeps the lock for ever; this thread works for the target and does not wait for it.
        with patience.held(partition.lock, (partition.directory,)):
            future.config = partition.log.config  # it may have changed while the copy was being opened
            partition.future = future
        self._registry.add(move, room)
        return move.status()

    def _adopt(self, move: Move, request: MoveRequest) -> MoveStatus:
        """Take over a move that exists: its owner, claim and generation become those of the request, durably."""
        move.source.check_online()
        move.target.check_online()
        if request.generation and request.generation <= move.partition.generation:
            raise Superseded(f"{move.tp} is at generation {move.partition.generation} already")
        wanted = replace(
            move.marker,
            claim=request.claim or move.marker.claim,
            generation=request.generation or max(move.marker.generation, move.partition.generation + 1),
            # The marker is sealed only if a swap failed and could not undo the seal.
            state=State.COPYING,
            seal_leo=-1,
            seal_hw=-1,
            owner=request.owner or move.marker.owner,
            run_id=request.run_id or move.marker.run_id,
            throttle=request.throttle or 0,
        )
        if wanted != move.marker:
            if wanted.claim > move.marker.claim:
                write_source(move.partition, wanted.claim, move.target.id)
                self._registry.learn(move.tp, wanted.claim)
            # A change of the owner alone is not flushed: a start that has lost it queries the owner again.
            same = (wanted.claim, wanted.generation) == (move.marker.claim, move.marker.generation)
            markers.write(move.path, wanted, name=not same)
        move.orphan = False
        move.limiter = self._registry.limiters.of(wanted.owner, wanted.run_id, request.throttle)
        with move.changed:
            # The marker is replaced at once: the copier may be about to find its earlier claim stale.
            move.marker = wanted
            if move.state in (MoveState.FAILED, MoveState.SUSPENDED) and not self._switch.on:
                move.become(MoveState.STOPPED)
        return move.status()


def _refuse_other_owner(move: Move, request: MoveRequest) -> None:
    held = move.marker
    if request.claim >= held.claim or (not request.claim and (request.owner == held.owner or move.orphan)):
        return
    raise ReplicaBusy(
        f"{move.tp} is being moved to {move.target.name} by {held.owner or 'a request'}; cancel that move first",
        held.owner,
    )
