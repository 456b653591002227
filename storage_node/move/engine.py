"""Create the moves of a node, copy them in threads of their own, swap and cancel them, and keep the status of ended
ones.

Every call reads the state on disk (from what was read before) and does the next missing step, so that callers can
repeat it after any failure. Calls block and are thread-safe. The package's docstring describes how the parts are used
together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from storage_node.directories import partition_metadata
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import replica_name
from storage_node.errors import (
    LogDirectoryOffline,
    RequestRefused,
    RequestTimedOut,
    StaleClaim,
    StorageError,
    Superseded,
    UnknownTopicOrPartition,
)
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome
from storage_node.move import patience
from storage_node.move.copying.copier import Copier, Halted
from storage_node.move.copying.movers import STOPPED_BY_OPERATOR, Movers, explain
from storage_node.move.creator import Creator, MoveRequest
from storage_node.move.future import bytes_found
from storage_node.move.host import MoveHost, PartitionLike
from storage_node.move.lookup import Lookup
from storage_node.move.moving import Move, OpenMove
from storage_node.move.registry import Registry, Room, StopSwitch
from storage_node.move.settling import Settler
from storage_node.move.status import DelayedDeletion, MoveStatus, SwapOutcome
from storage_node.move.swap import CATCH_UP_SECONDS, Swapper
from storage_node.move.throttle import RateLimiter
from storage_node.replicas import marker as markers
from storage_node.replicas.boot.actions import BootPlan, ResumeMove, ScheduleDelete, SuspendMove
from storage_node.replicas.creation import no_room, write_source
from storage_node.replicas.deletion import Deletion, Deletions, wall_clock_ms
from storage_node.replicas.marker import Marker, Reason, State
from storage_node.replicas.retirement import retire, set_aside, take_away

log = logging.getLogger(__name__)

SWAPPING = "swap"  # why the copier stops when a swap begins
HALT_SECONDS = 30.0  # for a copier to stop; if it takes longer, its disk hangs


class MoveEngine:
    """The move engine of one node.

    It runs `slots` copies at a time, together at most `rate` bytes per second (None: unlimited). A swap catches up for
    at most `swap_seconds` before it is "behind". `delete_delay_ms` is how long a `.delete` is kept whose partition this
    node no longer serves; others take it from their config. No chunk is larger than `chunk` bytes.
    """

    def __init__(
        self,
        host: MoveHost,
        *,
        slots: int = 1,
        rate: int | None = None,
        swap_seconds: float = CATCH_UP_SECONDS,
        delete_delay_ms: int = 60_000,
        chunk: int | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._node = Lookup(host)
        self._now_ms = now_ms
        self._delete_delay_ms, self._closed = delete_delay_ms, False
        self._registry = Registry()
        self._limiter = RateLimiter(rate)
        self._switch = StopSwitch(host.directories())
        self._deletions = Deletions(host, now_ms)
        self._settler = Settler(host, self._registry.guard)
        self._movers = Movers(
            self._node, self._registry, self._limiter, slots, self._discard_copy, len(host.directories()), chunk
        )
        copier = Copier(self._limiter, self._movers.flushes, self._registry.check, most=chunk)
        self.swapper = Swapper(host, copier, self._movers.pauses, swap_seconds)
        self._creator = Creator(self._node, self._registry, self._switch, self._cancel)
        for directory in host.directories():
            directory.on_failure(self._directory_failed)

    # Directories

    def add_directory(self, directory: LogDirectory) -> None:
        """Move from and to another directory too, perhaps in the place of one that failed. Raises StorageError."""
        self._switch.add(directory)
        self.swapper.add_directory(directory)
        directory.on_failure(self._directory_failed)

    def remove_directory(self, directory: LogDirectory) -> None:
        """Use a directory no longer that holds no folder. Raises RequestRefused while a move has it."""
        for move in self._registry.all():
            if directory in (move.source, move.target):
                raise RequestRefused(f"{directory.path} still holds the copy of {move.tp}")
        if self._registry.reserved(directory):
            raise RequestRefused(f"a move into {directory.path} is being created")
        self._switch.remove(directory)
        self._deletions.let_go(directory)

    def let_go(self, directory: LogDirectory) -> None:
        """Forget the ended moves from or to a directory that is offline, since its folders are decided on again.

        Raises RequestRefused while a copier, or a step, still hangs in that disk.
        """
        for move in self._registry.all():
            if directory not in (move.source, move.target):
                continue
            if not self._movers.halt(move, move.stop or "its directory is offline", 0.0) or not move.guard.acquire(
                timeout=patience.SECONDS
            ):
                raise RequestRefused(f"the move of {move.tp} still waits for {directory.path}; a restart ends it")
            try:
                self._registry.finish(move)
            finally:
                move.guard.release()
        self._deletions.let_go(directory)

    # Claims and creation

    def next_claim(self, tp: TopicPartition) -> int:
        """Issue the next claim on a partition, flushed before it is returned; older ones are rejected from then on."""
        with self._changing(tp):
            return self._registry.issue(self._node.partition(tp))

    def claim_orphan(self, tp: TopicPartition, claim: int) -> int:
        """Issue the next claim on a partition whose move has this claim and no run, and return it; its copy continues.

        Return 0 if the move has ended since the caller read it. The new claim is flushed into the `.move` first: with
        an older one than the replica's, a start would remove it, and no run would know of the move before its own has
        begun.
        """
        with self._changing(tp):
            move = self._registry.get(tp)
            if move is None or move.marker.claim != claim:
                return 0
            partition = self._node.partition(tp)
            marker = replace(move.marker, claim=self._registry.newest_claim(partition) + 1)
            markers.write(move.path, marker)
            with move.changed:
                move.marker = marker
            write_source(partition, marker.claim, move.target.id)
            return self._registry.learn(tp, marker.claim)

    def create(
        self,
        tp: TopicPartition,
        target_path: Path | str,
        *,
        claim: int = 0,
        generation: int = 0,
        owner: str = "",
        run_id: str = "",
        throttle: int | None = None,
        room: Room | None = None,
    ) -> MoveStatus:
        """Create the `.move`, durably, and return its status; nothing is copied yet.

        A `.move` of the same claim, or without a claim of the same owner, counts as created before; a newer claim takes
        over a move or changes its target. `generation` is the one that the metadata assigned to the move, `claim` 0
        lets the engine issue a new one, and `room`, which `admit` reserved, is released. Raises ReplicaBusy,
        StaleClaim, Superseded, MovesStopped, LogDirNotFound, InvalidTopic, NotEnoughSpace, UnknownTopicOrPartition,
        StorageError, and then leaves nothing on disk. A move whose target was to change continues to its present one,
        unless the new target's disk itself failed while the `.move` was created.
        """
        with self._changing(tp):
            return self._creator.create(tp, target_path, MoveRequest(claim, generation, owner, run_id, throttle, room))

    def admit(self, tp: TopicPartition, target_path: Path | str) -> Room:
        """Check whether a new copy could be created in a directory, instead of the one in progress, and reserve its
        room.

        The caller passes the room to `create`, or releases it. Raises MovesStopped, LogDirNotFound, InvalidTopic,
        NotEnoughSpace, UnknownTopicOrPartition, RequestRefused, StorageError.
        """
        with self._changing(tp):
            return self._creator.admit(tp, target_path)

    # Copying

    def start_copy(self, tp: TopicPartition, claim: int, throttle: int | None = None) -> None:
        """Queue the copy; a move that is queued or copied already only gets the throttle.

        Raises StaleClaim, MovesStopped, StorageError.
        """
        with self._changing(tp):
            self._switch.refuse()
            move = self._moving(tp, claim)
            self._limit(move, throttle)
            self._movers.queue(move)

    def wait(self, tp: TopicPartition, claim: int, timeout: float) -> MoveStatus:
        """Wait at most `timeout` seconds until the copy has caught up, failed or was stopped; return its status."""
        move = self._registry.get(tp)
        if move is None:
            finished = self._registry.finished(tp)
            if finished is not None and (not claim or finished.claim == claim):
                return finished
            raise StaleClaim(f"no move of {tp} with claim {claim} is known")
        if claim and move.marker.claim != claim:
            raise StaleClaim(f"{tp} is being moved under claim {move.marker.claim}, not {claim}")
        move.wait_settled(timeout)
        return move.status()

    def pause_copy(self, tp: TopicPartition, claim: int) -> MoveStatus:
        """Stop copying; the `.move` stays and `start_copy` continues it."""
        self._movers.halt(move := self._moving(tp, claim), "paused", HALT_SECONDS)
        return move.status()

    def set_throttle(self, tp: TopicPartition, claim: int, rate: int | None) -> None:
        """Change one move's own rate (bytes per second, None: only the node's), durably.

        Raises StaleClaim, StorageError.
        """
        with self._changing(tp):
            self._limit(self._moving(tp, claim), rate)

    def _limit(self, move: Move, rate: int | None) -> None:
        move.limiter.set_rate(rate)
        wanted = replace(move.marker, throttle=rate or 0)
        if wanted == move.marker or not move.target.online:
            return
        try:
            markers.write(move.path, wanted)
        except StorageError as error:
            if not no_room(error):
                raise
            log.info("the limit of %s is not kept over a restart: %s", move.tp, error)
        move.marker = wanted

    def set_node_rate(self, rate: int | None) -> None:
        """Change the rate that all moves share (replica.alter.log.dirs.io.max.bytes.per.second)."""
        self._limiter.set_rate(rate)

    # Swap and cancel

    def swap(self, tp: TopicPartition, claim: int, generation: int = 0) -> SwapOutcome:
        """Make the copy the replica. A swap done before is a success; "behind" requires more copying first.

        Raises StaleClaim, Superseded (a higher generation is on disk), MovesStopped, StorageError.
        """
        with self._changing(tp):
            partition = self._node.partition(tp)
            move = self._registry.get(tp)
            if move is None:
                return self._swapped_before(partition, claim, generation)
            move = self._moving(tp, claim)
            if (known := partition.generation) >= min(generation or known + 1, move.marker.generation):
                raise Superseded(f"{tp} is at generation {known} already")
            self._switch.refuse()
            if not self._movers.halt(move, SWAPPING, HALT_SECONDS):
                move.source.check_online()
                move.target.check_online()
                raise RequestTimedOut(f"the copier of {tp} does not respond; its disk may hang")
            opened = move.opened
            if opened is None or not opened.recovered or move.stop != SWAPPING:
                # The copy was not opened since the start, or a stop or cancel was requested, which takes precedence.
                move.become(MoveState.STOPPED, message=move.stop)
                return SwapOutcome(Outcome.BEHIND, 0.0, partition.generation)
            return self._swap(opened)

    def _swap(self, opened: OpenMove) -> SwapOutcome:
        move = opened.move
        move.stop = ""
        move.become(MoveState.SWAPPING)
        delay_ms = (source := move.partition.log).config.file_delete_delay_ms
        try:
            done = self.swapper.swap(opened, delay_ms, self._now_ms())
        except Halted:
            done = None
        except Exception as error:
            self._movers.failed(move, error)
            self._movers.clean_up(move)
            found = explain(error)
            raise found from (error.__cause__ if found is error else error)  # the caller judges the disk by the cause
        if done is None:
            move.become(MoveState.STOPPED, message=move.stop or "the source ran ahead of the copy")
            return SwapOutcome(Outcome.BEHIND, move.seconds_locked, move.partition.generation)
        move.become(MoveState.SWAPPED)
        self._registry.finish(move)
        gone = Deletion(move.tp, done.source_path, move.source, done.source_generation, done.delete_at_ms, True, source)
        self._deletions.schedule(gone)
        self._settler.add(move.tp, move.target, move.marker.generation, gone)
        return SwapOutcome(Outcome.SWAPPED, move.seconds_locked, move.partition.generation, delay_ms / 1000)

    def _swapped_before(self, partition: PartitionLike, claim: int, generation: int) -> SwapOutcome:
        newest = self._registry.newest_claim(partition)
        if claim and claim < newest:
            raise StaleClaim(f"claim {claim} on {partition.tp} is not the newest: {newest} was issued")
        if generation and partition.generation > generation:
            raise Superseded(f"{partition.tp} is at generation {partition.generation} already")
        if generation and partition.generation < generation:
            raise RequestRefused(f"{partition.tp} has no copy that could be swapped in")
        found = self._registry.finished(partition.tp)
        locked = found.seconds_locked if found is not None and found.claim == claim else 0.0
        wait = max((d.due_ms - self._now_ms() for d in self._deletions.pending(partition.tp)), default=0) / 1000
        return SwapOutcome(Outcome.SWAPPED, locked, partition.generation, max(0.0, wait))

    def cancel(
        self, tp: TopicPartition, claim: int | None = None, reason: str = "", run: str = ""
    ) -> MoveStatus | None:
        """Discard the `.move`; the source stays the replica. Return None if no move exists (or it was swapped before).

        The marker records the cancel first: a start completes what a crash interrupts. A cancel without a claim does
        not come from the run that moves the replica: a new claim makes the node reject late requests of that run, also
        after a crash. `run` is the id of a run that sends no more requests for this partition. Raises StaleClaim when
        another claim moves it.
        """
        self._registry.end_run(tp, run)
        return self._cancel(tp, claim, reason, renew=not claim)

    def _cancel(self, tp: TopicPartition, claim: int | None, reason: str, *, renew: bool = False) -> MoveStatus | None:
        move = self._registry.get(tp)
        if move is not None and (not claim or move.marker.claim == claim):
            move.stop = move.stop or "cancelled"  # a swap that is still catching up stops
        with self._changing(tp):
            move = self._registry.get(tp)
            if move is None:
                return self._registry.finished(tp)
            if claim and move.marker.claim != claim:
                raise StaleClaim(f"{tp} is being moved under claim {move.marker.claim}, not {claim}")
            self._movers.halt(move, "cancelled", HALT_SECONDS)
            if renew and move.source.online:
                try:
                    self._registry.issue(move.partition, move.marker.run_id)
                except StorageError as error:
                    self._node.fail(error)  # the source's disk has failed; the copy is discarded all the same
            self._discard_copy(move)
            move.become(MoveState.CANCELLED, message=reason)
            return self._registry.finish(move)

    def _discard_copy(self, move: Move) -> None:
        partition = move.partition
        # If the source's disk hangs, the holder never releases the lock, and no other thread uses the replica then.
        with patience.held(partition.lock, (move.source,)):
            partition.future = None
        if not move.target.online:
            # Its marker cannot be written now: a claim above its own makes the next start that finds it complete the
            # cancel.
            move.source.check_online()
            self._registry.learn(move.tp, write_source(partition, move.marker.claim + 1).claim)
            return
        try:
            gone = take_away(move.target, move.path, move.marker)
        except StorageError as error:
            self._node.fail(error)
            self._registry.learn(move.tp, write_source(partition, move.marker.claim + 1).claim)
            if not move.target.online or move.marker.state is not State.COPYING:
                return
            try:
                gone = set_aside(move.target, move.path, move.marker)
            except StorageError as worse:
                self._node.fail(worse)  # the next start finds a copy of an older claim
                return
        self._deletions.schedule(Deletion(move.tp, gone, move.target, 0, self._now_ms(), False, move.future))

    # Status

    def status(self, tp: TopicPartition) -> MoveStatus | None:
        """Return the status of a partition's move: the one on disk, else the last one that ended in this process."""
        move = self._registry.get(tp)
        return move.status() if move is not None else self._registry.finished(tp)

    def statuses(self) -> list[MoveStatus]:
        """Return all moves that have a `.move`, by topic and partition."""
        return [move.status() for move in self._registry.all()]

    def delayed_deletions(self) -> list[DelayedDeletion]:
        """Return the sources of swaps whose `.delete` still exists, in the order of the swaps."""
        now = self._now_ms()
        return [
            DelayedDeletion(each.tp, each.directory.name, each.generation, (each.due_ms - now) / 1000)
            for each in self._deletions.pending()
            if each.guarded
        ]

    # Deletion

    def settle(self) -> None:
        """Write now what swaps have left for later."""
        self._settler.settle()

    def delete_now_if_due(self, tp: TopicPartition, generation: int = 0) -> float:
        """Return the seconds until the `.delete` that a swap to `generation` (0: any) left is due; 0.0 when it is
        deleted.
        """
        return self._deletions.seconds_until_gone(tp, generation)

    def abandon(self, tp: TopicPartition, reason: Reason = Reason.TOPIC) -> None:
        """Forget an unreachable replica that is being deleted: discard its copy and all that is known of its moves.

        A copy that cannot be reached either is left to the start that finds that it must be deleted.
        """
        with self._changing(tp):
            move = self._registry.get(tp)
            if move is not None:
                try:
                    self._cancel(tp, None, markers.GOES[Reason(reason)])
                except StorageError:
                    self._registry.finish(move)
            self._deletions.unguard(tp)
            self._registry.forget(tp)

    def discard(self, tp: TopicPartition, reason: str = Reason.TOPIC, partition: PartitionLike | None = None) -> None:
        """Delete the partition from this node: its `.move` first, then its log become `.delete`.

        In the other order a crash between the two would restore the topic from a partial copy. The host must have
        stopped serving the partition (and passes it, if the host no longer has it). Raises StorageError.
        """
        with self._changing(tp):
            partition = partition or self._node.find(tp)
            if partition is None:
                raise UnknownTopicOrPartition(f"{tp} is not on this node")
            move = self._registry.get(tp)
            if move is None or move.partition is partition:
                self._cancel(tp, None, markers.GOES[Reason(reason)])
            with partition.lock:
                log = partition.log
                due = self._now_ms() + log.config.file_delete_delay_ms
                found = markers.read_any(log.path) or Marker(tp.topic, tp.partition, topic_id=partition.topic_id)
                gone = retire(partition.directory, log.path, found, Reason(reason), due)
                log.relocated(gone)
            self._deletions.unguard(tp)
            self._deletions.schedule(Deletion(tp, gone, partition.directory, partition.generation, due, False, log))
            self._registry.learn(tp, found.claim)
            self._registry.forget(tp)

    def discard_unopened(
        self, tp: TopicPartition, reason: Reason, directory: LogDirectory, topic_ids: Collection[str]
    ) -> bool:
        """Delete a replica that could not be opened, if its folder in a directory is of one of these topics; return
        whether it was there. Raises StorageError, and RequestRefused for a folder whose topic id is malformed.
        """
        with self._changing(tp):
            path = directory.path / replica_name(tp)
            if path.is_symlink() or not path.is_dir():
                return False
            if partition_metadata.read(path, directory=directory.name) not in topic_ids:
                return False
            found = markers.read_any(path) or Marker(tp.topic, tp.partition)
            due = self._now_ms() + self._delay_ms(tp)
            gone = retire(directory, path, found, reason, due)
            self._deletions.schedule(Deletion(tp, gone, directory, found.generation, due, False))
            return True

    # Stop, start, end

    @property
    def moves_stopped(self) -> bool:
        """Whether the operator stopped all moves of this node."""
        return self._switch.on

    def stop_moves(self) -> None:
        """Stop all moves now and reject new ones, also after restarts. Raises StorageError if no directory remembers
        it.
        """
        self._switch.turn_on()
        moving = [move for move in self._registry.all() if move.state.under_way]
        for move in moving:
            move.stop = move.stop or STOPPED_BY_OPERATOR
        try:
            self._switch.set(True)
        finally:
            for move in moving:
                self._movers.halt(move, STOPPED_BY_OPERATOR, HALT_SECONDS)

    def resume_moves(self) -> None:
        """Undo `stop_moves` and continue the copies that it stopped."""
        self._switch.set(False)
        for move in self._registry.all():
            if move.error == ErrorType.MOVES_STOPPED:
                self._movers.queue(move)

    def resume(self, plan: BootPlan) -> None:
        """Continue what a start found, once the node serves the partition: schedule deletions, resume its copy."""
        for action in plan.actions:
            if isinstance(action, ScheduleDelete):
                directory = self._node.directory(action.path.parent)
                # The delay is capped, in case the clock was set back meanwhile.
                later = self._now_ms() + self._delay_ms(action.tp)
                due = min(action.delete_at_ms or later, later)
                self._deletions.schedule(
                    Deletion(action.tp, action.path, directory, action.generation, due, action.guarded)
                )
            elif isinstance(action, ResumeMove | SuspendMove) and action.marker is not None:
                self._resume(action, action.marker)

    def _resume(self, action: ResumeMove | SuspendMove, marker: Marker) -> None:
        partition = self._node.partition(action.tp)
        target = self._node.directory(action.path.parent)
        limiter = self._registry.limiters.of(marker.owner, marker.run_id, marker.throttle or None)
        move = Move(partition, target, action.path, marker, self._registry.guard(action.tp), limiter)
        move.orphan, move.bytes_found = not marker.owner, bytes_found(action.path)
        self._registry.newest_claim(partition)
        self._registry.learn(action.tp, marker.claim)
        self._registry.add(move)
        if isinstance(action, SuspendMove):
            move.become(MoveState.SUSPENDED, message=action.reason)
        elif self._switch.on:
            move.become(MoveState.STOPPED, ErrorType.MOVES_STOPPED, "moves of this node are stopped")
        else:
            self._movers.queue(move)

    def close(self, clean: bool = False) -> None:
        """Stop copying and deleting; everything on disk stays as it is for the next start.

        `clean`: flush copies, so that the next start continues without validating them again. A swap in progress ends
        or stops first. Afterwards nothing more is changed, because another process may use the directories soon.
        """
        self._closed = True
        for move in self._registry.all():
            self._movers.halt(move, "the node stops", HALT_SECONDS)
        hangs = False
        for guard in self._registry.guards():
            with patience.held(guard, self._node.host.directories(), 0.0 if hangs else None) as free:
                hangs = hangs or not free
        self.swapper.close()
        self._settler.close()
        self._movers.close()
        self._deletions.close()
        for move in self._registry.all():
            self._movers.close_copy(move, clean)

    # Helpers

    @contextlib.contextmanager
    def _changing(self, tp: TopicPartition) -> Iterator[None]:
        """Hold the partition's guard; raises RequestTimedOut once the node stops."""
        guard = self._registry.guard(tp)
        if not patience.acquire(guard, self._node.host.directories()):
            raise RequestTimedOut(f"a step on {tp} hangs in a log directory that is offline; only a restart ends it")
        try:
            if self._closed:
                raise RequestTimedOut(f"the node stops; {tp} is as it was")
            yield
        except StorageError as error:
            self._node.fail(error)  # whichever disk failed, for any caller
            raise
        except markers.MarkerCorrupt as error:
            raise explain(error) from error
        finally:
            guard.release()

    def _moving(self, tp: TopicPartition, claim: int) -> Move:
        move = self._registry.get(tp)
        if move is None or (claim and move.marker.claim != claim):
            now = f"claim {move.marker.claim} moves it now" if move is not None else "no mover copies it now"
            raise StaleClaim(f"claim {claim} on {tp} is not valid: {now}")
        self._registry.check(move)
        return move

    def _delay_ms(self, tp: TopicPartition) -> int:
        partition = self._node.find(tp)
        return partition.log.config.file_delete_delay_ms if partition is not None else self._delete_delay_ms

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        """Fail the moves from or to a directory that went offline; the next start decides about their `.move`s."""
        for move in self._registry.all():
            if directory in (move.source, move.target):
                self._movers.failed(move, LogDirectoryOffline(directory.name, reason))
                self._movers.give_up(move)
