"""The mover of a node: makes moves, copies them in threads of its own, swaps, cancels, and remembers what was stopped.

Every call looks at the disk (by way of what was read from it) and does the next missing step, so that it can be made
again after any failure. Calls block; they are safe from any thread. See the package for how the parts are used
together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.errors import (
    LogDirectoryOffline,
    RequestRefused,
    RequestTimedOut,
    StaleClaim,
    StorageError,
    Superseded,
)
from storage_node.move import marker as markers
from storage_node.move import patience
from storage_node.move.boot_plan import BootPlan, ResumeMove, ScheduleDelete, SuspendMove
from storage_node.move.copier import Copier, Halted
from storage_node.move.creation import no_room, retire, set_aside, take_away, write_source
from storage_node.move.creator import Creator, Request
from storage_node.move.deletion import Deletion, Deletions, wall_clock_ms
from storage_node.move.future import bytes_found
from storage_node.move.host import MoveHost, PartitionLike
from storage_node.move.lookup import Lookup
from storage_node.move.marker import Marker, Reason, State
from storage_node.move.movers import MOVES_STOPPED, STOPPED_BY_OPERATOR, Movers, explain
from storage_node.move.moving import Move
from storage_node.move.registry import Registry, Room, StopSwitch
from storage_node.move.settling import Settler
from storage_node.move.status import BEHIND, SWAPPED, MoveState, MoveStatus, SwapOutcome, WaitingDeletion
from storage_node.move.swap import CATCH_UP_SECONDS, Swapper
from storage_node.move.throttle import RateLimiter
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

SWAPPING = "swap"  # why the copier leaves when a swap begins
HALT_SECONDS = 30.0  # for a copier to leave; longer means a disk that hangs


class MoveEngine:
    """See the module.

    `slots` copies at a time, together at most `rate` bytes per second (None: unlimited). A swap catches up for at most
    `swap_seconds` before it is "behind". `delete_delay_ms` is how long a `.delete` is kept whose partition is not
    served here any more; that of others comes from their config. No chunk is larger than `chunk` bytes.
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

    # Claims and making

    def next_claim(self, tp: TopicPartition, after: int | None = None) -> int:
        """Issue the next claim on a partition, flushed before it is answered; older ones are refused from now on.

        `after`: only while the move of this claim is under way, else the answer is 0. It may have been cancelled since
        it was looked at.
        """
        with self._changing(tp):
            move = self._registry.get(tp)
            if after is not None and (move is None or move.marker.claim != after):
                return 0
            return self._registry.issue(self._node.partition(tp))

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
        """Make the `.move`, durable, and answer; nothing is copied yet.

        A `.move` of the same claim, or with no claim given of the same owner, is taken as made before; a newer claim
        takes over a move or gives it another target. `generation` is the one that the metadata gave the move, `claim`
        0 lets a new one be issued, `room` is what `admit` has reserved; it is released. Raises ReplicaBusy, StaleClaim,
        Superseded, MovesStopped, LogDirNotFound, InvalidTopic, NotEnoughSpace, UnknownTopicOrPartition, StorageError;
        nothing is left on disk then. A move that was to get another target goes on to its present one, unless the
        target's disk itself failed at making the `.move`.
        """
        with self._changing(tp):
            return self._creator.create(tp, target_path, Request(claim, generation, owner, run_id, throttle, room))

    def admit(self, tp: TopicPartition, target_path: Path | str) -> Room:
        """Check whether a new copy could be made in a directory, in place of the one under way, and reserve its room.

        The caller gives the room to `create`, or releases it.
        Raises MovesStopped, LogDirNotFound, InvalidTopic, NotEnoughSpace, UnknownTopicOrPartition, RequestRefused,
        StorageError.
        """
        with self._changing(tp):
            return self._creator.admit(tp, target_path)

    # Copying

    def start_copy(self, tp: TopicPartition, claim: int, throttle: int | None = None) -> None:
        """Queue the copy; a move that is queued or copied already only gets the throttle. Raises StaleClaim,
        MovesStopped, StorageError.
        """
        with self._changing(tp):
            self._switch.refuse()
            move = self._moving(tp, claim)
            self._limit(move, throttle)
            self._movers.queue(move)

    def wait(self, tp: TopicPartition, claim: int, timeout: float) -> MoveStatus:
        """Wait `timeout` seconds at most until the copy has caught up, failed or was stopped; answers where it is."""
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
        """Stop copying; the `.move` stays and `start_copy` goes on with it."""
        self._movers.halt(move := self._moving(tp, claim), "paused", HALT_SECONDS)
        return move.status()

    def set_throttle(self, tp: TopicPartition, claim: int, rate: int | None) -> None:
        """Change one move's own rate (bytes per second, None: only the node's), durable. Raises StaleClaim,
        StorageError.
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
        """Let the copy become the replica; a swap done before is success, "behind" asks for more copying first.

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
                raise RequestTimedOut(f"the copier of {tp} does not answer; its disk may hang")
            if not move.recovered or move.stop != SWAPPING:
                # Not opened since the start, or somebody wants it stopped or cancelled, who comes before us.
                move.become(MoveState.STOPPED, message=move.stop)
                return SwapOutcome(BEHIND, 0.0, partition.generation)
            return self._swap(move)

    def _swap(self, move: Move) -> SwapOutcome:
        move.stop = ""
        move.become(MoveState.SWAPPING)
        delay_ms = (source := move.partition.log).config.file_delete_delay_ms
        try:
            done = self.swapper.swap(move, delay_ms, self._now_ms())
        except Halted:
            done = None
        except Exception as error:
            self._movers.failed(move, error)
            self._movers.clean_up(move)
            found = explain(error)
            raise found from (error.__cause__ if found is error else error)  # by its cause the disk is judged
        if done is None:
            move.become(MoveState.STOPPED, message=move.stop or "the source ran ahead of the copy")
            return SwapOutcome(BEHIND, move.seconds_locked, move.partition.generation)
        move.become(MoveState.SWAPPED)
        self._registry.finish(move)
        gone = Deletion(move.tp, done.source_path, move.source, done.source_generation, done.delete_at_ms, True, source)
        self._deletions.schedule(gone)
        self._settler.add(move.tp, move.target, move.marker.generation, gone)
        return SwapOutcome(SWAPPED, move.seconds_locked, move.partition.generation, delay_ms / 1000)

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
        return SwapOutcome(SWAPPED, locked, partition.generation, max(0.0, wait))

    def cancel(
        self, tp: TopicPartition, claim: int | None = None, reason: str = "", run: str = ""
    ) -> MoveStatus | None:
        """Take the `.move` away; the source serves on. None when there is nothing to cancel (or it was swapped before).

        The marker says so first: a start finishes what a crash interrupts. Who cancels without a claim is not the run
        that moves it: a new claim sees to it that what that run asks for late is refused, after a crash, too. `run` is
        the id of one that asks for nothing more of this partition. Raises StaleClaim when another claim moves it now.
        """
        self._registry.end_run(tp, run)
        return self._cancel(tp, claim, reason, renew=not claim)

    def _cancel(self, tp: TopicPartition, claim: int | None, reason: str, *, renew: bool = False) -> MoveStatus | None:
        move = self._registry.get(tp)
        if move is not None and (not claim or move.marker.claim == claim):
            move.stop = move.stop or "cancelled"  # a swap that is still catching up gives way
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
                    self._node.fail(error)  # the source's disk; its copy goes all the same
            self._discard_copy(move)
            move.become(MoveState.CANCELLED, message=reason)
            return self._registry.finish(move)

    def _discard_copy(self, move: Move) -> None:
        partition = move.partition
        # Whoever holds the lock of a replica whose disk hangs has it for ever; nobody else is at work there then.
        with patience.held(partition.lock, (move.source,)):
            partition.future = None
        if not move.target.online:
            # It cannot be told now: a claim above its own makes the start that sees it again finish the cancel.
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
        """The move of a partition: the one on disk, or else how the last one ended since this process began."""
        move = self._registry.get(tp)
        return move.status() if move is not None else self._registry.finished(tp)

    def statuses(self) -> list[MoveStatus]:
        """All moves that have a `.move`, by topic and partition."""
        return [move.status() for move in self._registry.all()]

    def waiting(self) -> list[WaitingDeletion]:
        """The sources of swaps whose `.delete` is still there, in the order in which they were swapped."""
        now = self._now_ms()
        return [
            WaitingDeletion(each.tp, each.directory.name, each.generation, (each.due_ms - now) / 1000)
            for each in self._deletions.pending()
            if each.guarded
        ]

    # Deletion

    def settle(self) -> None:
        """Write now what swaps have left for later."""
        self._settler.settle()

    def delete_now_if_due(self, tp: TopicPartition, generation: int = 0) -> float:
        """Seconds until the `.delete` that a swap to `generation` (0: any) left is due; 0.0 when it is gone."""
        return self._deletions.seconds_until_gone(tp, generation)

    def abandon(self, tp: TopicPartition, reason: Reason = Reason.TOPIC) -> None:
        """A replica that cannot be reached goes for good: its copy goes, and all that was known of its moves.

        A copy that cannot be reached either is left to the start that finds that it is to go.
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
        """The partition goes from this node for good: its `.move` first, then its log become `.delete`.

        In the other order a crash between the two would bring the topic back from a partial copy. The host must have
        stopped serving it (and gives it, when it does not know it any more); raises StorageError.
        """
        with self._changing(tp):
            partition = partition or self._node.partition(tp)
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
            self._registry.forget(tp)

    # Stop, start, end

    @property
    def moves_stopped(self) -> bool:
        """Whether the operator stopped all moves of this node."""
        return self._switch.on

    def stop_moves(self) -> None:
        """Stop all moves now and refuse new ones; remembered over restarts, or else raises StorageError."""
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
        """Undo `stop_moves`: what was copied then is copied on."""
        self._switch.set(False)
        for move in self._registry.all():
            if move.error == MOVES_STOPPED:
                self._movers.queue(move)

    def take_over(self, plan: BootPlan) -> None:
        """Go on with what a start found, once the partition is served: deletions are scheduled, its copy goes on."""
        for action in plan.actions:
            if isinstance(action, ScheduleDelete):
                directory = self._node.directory(action.path.parent)
                # At most, should the clock have been set back meanwhile.
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
        move = Move(partition, target, action.path, marker, self._registry.guard(action.tp), marker.throttle or None)
        move.orphan, move.bytes_found = not marker.owner, bytes_found(action.path)
        self._registry.newest_claim(partition)
        self._registry.learn(action.tp, marker.claim)
        self._registry.add(move)
        if isinstance(action, SuspendMove):
            move.become(MoveState.SUSPENDED, message=action.reason)
        elif self._switch.on:
            move.become(MoveState.STOPPED, MOVES_STOPPED, "moves of this node are stopped")
        else:
            self._movers.queue(move)

    def close(self, clean: bool = False) -> None:
        """Stop copying and deleting; everything on disk stays as it is for the next start.

        `clean`: copies are flushed, so that the next start goes on without checking them again. A swap under way ends
        or gives way first. Afterwards nothing more is changed: the directories may be another process's soon.
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
        """The partition's guard; refused once the node stops."""
        guard = self._registry.guard(tp)
        if not patience.acquire(guard, self._node.host.directories()):
            raise RequestTimedOut(f"a step on {tp} hangs in a log directory that is offline; only a restart ends it")
        try:
            if self._closed:
                raise RequestTimedOut(f"the node stops; {tp} is as it was")
            yield
        except StorageError as error:
            self._node.fail(error)  # whichever disk it was, and whoever asked
            raise
        except markers.MarkerCorrupt as error:
            raise explain(error) from error
        finally:
            guard.release()

    def _moving(self, tp: TopicPartition, claim: int) -> Move:
        move = self._registry.get(tp)
        if move is None or (claim and move.marker.claim != claim):
            now = f"claim {move.marker.claim} moves it now" if move is not None else "nothing moves it now"
            raise StaleClaim(f"claim {claim} on {tp} is not valid: {now}")
        self._registry.check(move)
        return move

    def _delay_ms(self, tp: TopicPartition) -> int:
        partition = self._node.find(tp)
        return partition.log.config.file_delete_delay_ms if partition is not None else self._delete_delay_ms

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        """Moves from or to a directory that went offline stop; their `.move`s stay for the next start to judge."""
        for move in self._registry.all():
            if directory in (move.source, move.target):
                self._movers.failed(move, LogDirectoryOffline(directory.name, reason))
                self._movers.give_up(move)
