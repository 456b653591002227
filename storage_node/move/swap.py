"""The swap: the copy becomes the replica, in KIP-113's order, each step on the disk before the next begins.

While the swap holds the log there are only the last chunk and its flush, the seal, two renames and the flushes of
their folders. All that can be done before (catching up, flushing, the target's checkpoints) is done before, and what
can wait is done later (the markers' final words, see `settling`, and the source's checkpoints).

Nobody waits for a target that hangs meanwhile: appends are put aside (`log_hold`), and once the target is offline
another thread gives the source back (`takeover`).

A seal that does not come to its end leaves the source two generations higher before it takes another record: the sealed
copy may come back from a failing disk, and must then be the older one.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from storage_node import failpoints
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors, rename_new
from storage_node.directories.directory import LogDirectory
from storage_node.directories.latch import Fault, fault_of, reason_of
from storage_node.directories.names import delete_name, new_delete_id, replica_name
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint
from storage_node.move import marker as markers
from storage_node.move.copier import Copier
from storage_node.move.future import carry_history
from storage_node.move.host import MoveHost
from storage_node.move.marker import Marker, State
from storage_node.move.moving import Move
from storage_node.move.pauses import Pauses
from storage_node.move.reconcile import fits_source
from storage_node.move.takeover import SwapGivenUp, TakeBack, Takeover
from storage_node.move.throttle import LIMITED_CHUNK

_log = logging.getLogger(__name__)

BEFORE_LOCK = failpoints.register("swap.before_lock")
AFTER_TAIL = failpoints.register("swap.after_tail")
AFTER_SEAL = failpoints.register("swap.after_seal")
AFTER_SOURCE_RENAMED = failpoints.register("swap.after_source_renamed")
AFTER_SOURCE_FLUSHED = failpoints.register("swap.after_source_flushed")
AFTER_TARGET_RENAMED = failpoints.register("swap.after_target_renamed")
AFTER_TARGET_FLUSHED = failpoints.register("swap.after_target_flushed")
AFTER_REFERENCES = failpoints.register("swap.after_references")
UNDO_AFTER_MARKER = failpoints.register("undo.after_marker")
UNDO_AFTER_RENAMED = failpoints.register("undo.after_renamed")
UNDO_AFTER_FLUSHED = failpoints.register("undo.after_flushed")

CATCH_UP_SECONDS = 2.0  # without the lock, before the answer is "behind": replica.move.swap.deadline.ms
LOCK_WAIT_SECONDS = 1.0  # for the partition's lock
TAIL_SECONDS = 0.02  # for the last copy while the log is held
CLOSE_SECONDS = 5.0  # for threads that give a source back while the node stops


@dataclass(frozen=True, slots=True)
class Swapped:
    """The swap is done: the source stands at `source_path` and is due at `delete_at_ms`."""

    source_path: Path
    source_generation: int
    delete_at_ms: int


class Swapper:
    """Swaps one move; thread-safe as long as each move is swapped under its guard.

    A copy that has not reached its source after `seconds` of catching up is "behind".
    """

    def __init__(self, host: MoveHost, copier: Copier, pauses: Pauses, seconds: float = CATCH_UP_SECONDS) -> None:
        self._host = host
        self._copier = copier
        self._pauses = pauses
        self._seconds = seconds
        self._held: dict[Move, Takeover] = {}
        self._giving_back: list[threading.Thread] = []
        for directory in host.directories():
            directory.on_failure(self._directory_failed)

    def swap(self, move: Move, delay_ms: int, now_ms: int) -> Swapped | None:
        """Catch up and swap; None when the source ran away ("behind"), with nothing changed.

        Raises what the copier raises, and StorageError; after those the source serves on or its directory is offline.
        """
        partition, future = move.partition, move.future
        assert future is not None
        if not self._catch_up(move):
            return None
        source_path = move.source.path / delete_name(move.tp, new_delete_id())
        version = future.version
        bare = markers.read_any(partition.log.path) is None
        if bare:
            # Most of what `_finish_copy` flushes of it, without the lock.
            partition.log.flush_records()
        self._host.checkpoint(move.target, partition)
        failpoint(BEFORE_LOCK)
        with self._pauses.asked():
            if not self._take_over(move, source_path, version, bare):
                if future.version != version:
                    # The target's checkpoint is ahead of the copy since that was truncated.
                    self._host.checkpoint(move.target, partition)
                return None
        failpoint(AFTER_REFERENCES)
        source_generation = move.marker.generation - 1
        move.marker = move.marker.settled()
        # The source's checkpoints are written when it is their time: its entries there speak of no replica any more.
        self._host.moved()
        return Swapped(source_path, source_generation, now_ms + delay_ms)

    def _take_over(self, move: Move, source_path: Path, version: int, bare: bool) -> bool:
        """Hold the log and promote the copy; False with nothing changed when the source ran away.

        `version` is the copy's when the target's checkpoint was written, `bare` whether the source has no marker.
        """
        partition, future = move.partition, move.future
        assert future is not None
        # What came in meanwhile is flushed too, so that the flush during the hold is a small one.
        if not self._catch_up(move):
            return False
        hold = partition.hold(LOCK_WAIT_SECONDS)
        if hold is None:
            return False
        began = time.monotonic()
        takeover = self._held[move] = Takeover(hold, move.target.name, f"the swap of {move.tp}")
        try:
            with takeover.asking(lambda: None):
                # A copy that was cut since then is below what the target's checkpoint says of it.
                complete = self._finish_copy(move, began + TAIL_SECONDS, bare) and future.version == version
            if complete:
                self._promote(move, takeover, source_path)
            return complete
        finally:
            move.seconds_locked = time.monotonic() - began
            if takeover.end():
                partition.release(hold)
            self._held.pop(move)
            self._copier.leave(move)

    # In place of a swap that hangs

    def asked(self) -> list[tuple[LogDirectory, str, float]]:
        """What swaps are asking their targets now: the directory, what for, and since when (`time.monotonic`)."""
        held = [(move.target, takeover) for move, takeover in self._held.copy().items()]
        return [(target, takeover.what, since) for target, takeover in held if (since := takeover.asked) is not None]

    def _directory_failed(self, directory: LogDirectory, _: str) -> None:
        """Give back the sources of the swaps that are asking this directory, each in a thread of its own."""
        for move, takeover in self._held.copy().items():
            take_back = takeover.give_up() if move.target is directory else None
            if take_back is not None:
                thread = threading.Thread(
                    target=self._give_back, args=(move, takeover, take_back), name=f"give-back-{move.tp}", daemon=True
                )
                self._giving_back = [*(other for other in self._giving_back if other.is_alive()), thread]
                thread.start()

    def _give_back(self, move: Move, takeover: Takeover, take_back: TakeBack) -> None:
        partition = move.partition
        try:
            # A source whose disk has failed too takes no more records: a start decides by what it finds.
            if move.source.online:
                take_back()
                _log.warning("%s goes on in %s: its swap hangs in %s", move.tp, move.source.path, move.target.path)
        except Exception as error:
            _log.exception("giving %s back after its swap hung in %s", move.tp, move.target.path)
            self._host.lost(move.tp, f"{move.tp} cannot be taken back on {move.source.name}: {error!r}")
        finally:
            partition.release(takeover.hold)

    def close(self) -> None:
        """Wait for the threads that give sources back, not long: the source's disk may hang, too."""
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._giving_back:
            thread.join(max(0.0, until - time.monotonic()))

    # Before the lock

    def _catch_up(self, move: Move) -> bool:
        """Copy and flush until less than a chunk is missing; False when that does not come to an end."""
        future = move.future
        assert future is not None
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            began = future.size
            reached = False
            try:
                while not reached and time.monotonic() < until:
                    reached = not self._copier.step(move, until=until)
            finally:
                self._copier.leave(move)
            future.flush()
            if reached and future.size - began < LIMITED_CHUNK:
                return fits_source(move)
        return False

    # During the hold

    def _finish_copy(self, move: Move, deadline: float, bare: bool) -> bool:
        future = move.future
        assert future is not None
        while self._copier.step(move, limited=False):
            if time.monotonic() > deadline:
                return False
        if not fits_source(move):
            return False
        self._copier.leave(move)
        carry_history(move.partition.log, future)
        # The indexes can wait: every flush that is spared here is a disk that nobody waits for during the hold.
        future.flush_records()
        if bare:
            # A source that ends before the seal is one that nobody has written to since, which a start with the copy's
            # disk missing notes in its marker. One that got no marker (its disk is full) must not get that short by a
            # loss of power: it would be served, written to, and still give way to the sealed copy.
            move.partition.log.flush_records()
        failpoint(AFTER_TAIL)
        return True

    def _promote(self, move: Move, takeover: Takeover, source_path: Path) -> None:
        partition, future = move.partition, move.future
        assert future is not None
        source = partition.log
        self._copier.check(move)
        try:
            with (
                takeover.asking(lambda: self._undo(move, None)),
                io_errors(move.target.name, f"sealing {move.path.name}"),
            ):
                move.target.check_online()
                self._seal(move)
            move.target.check_online()
        except SwapGivenUp:
            raise
        except StorageError as error:
            move.target.fail_on(error)  # first: a bad disk is not asked to take the seal back
            self._undo(move, None)
            raise
        renamed = False
        try:
            with io_errors(move.source.name, f"renaming {source.path.name} to {source_path.name}"):
                with full_is_no_room():
                    rename_new(source.path, source_path)
                renamed = True
                failpoint(AFTER_SOURCE_RENAMED)
                fsync_dir(move.source.path)
        except StorageError as error:
            # After a bad disk's error it is not known which name a start will find: nothing is appended under either.
            if not move.source.fail_on(error) and move.source.online:
                self._undo(move, source_path if renamed else None)
            raise
        failpoint(AFTER_SOURCE_FLUSHED)
        target_path = move.target.path / replica_name(move.tp)
        promoted = False
        try:
            with (
                takeover.asking(lambda: self._undo(move, source_path)),
                io_errors(move.target.name, f"renaming {move.path.name} to {target_path.name}"),
            ):
                move.target.check_online()
                with full_is_no_room():
                    rename_new(move.path, target_path)
                promoted = True
                failpoint(AFTER_TARGET_RENAMED)
                fsync_dir(move.target.path)
            # A disk that answered after it was given up: nothing is served from it, so the source is taken back.
            move.target.check_online()
        except SwapGivenUp:
            raise
        except StorageError as error:
            if not move.target.fail_on(error) and promoted:
                # Under its final name it may be found or not; a disk that is used on must not have it.
                move.target.fail(error)
            self._undo(move, source_path)
            raise
        failpoint(AFTER_TARGET_FLUSHED)
        with partition.lock:
            source.relocated(source_path)
            future.relocated(target_path)
            partition.swapped(future, move.target, move.marker.generation)

    def _seal(self, move: Move) -> None:
        partition = move.partition
        sealed = replace(
            move.marker,
            state=State.SEALED,
            seal_leo=partition.log.log_end_offset,
            seal_hw=partition.high_watermark,
            log_start=partition.log.log_start_offset,
            leader_epoch=partition.leader_epoch,
        )
        markers.write(move.path, sealed)
        move.marker = sealed
        failpoint(AFTER_SEAL)

    def _undo(self, move: Move, renamed: Path | None) -> None:
        """Give the source back, two generations higher, or else with the seal undone; the replica goes offline if
        neither can be made durable, with its whole directory where the disk is bad.

        The copy on a target that is good is not sealed any more, and younger than the source again: it can be copied
        and swapped once more.
        """
        partition = move.partition
        path = partition.log.path
        generation = max(partition.generation + 2, move.marker.generation + 1)
        try:
            with io_errors(move.source.name, f"taking back {path.name}"):
                here = renamed or path
                found = markers.read(here) or Marker(move.tp.topic, move.tp.partition, source_id=move.source.id)
                marked = markers.write_in_any_case(here, found.settled(generation))
                if not marked and not move.target.online:
                    # Nothing would tell the sealed copy, should it come back, from what is appended here now: the name
                    # stays what it is, so that no start takes it for the newest replica while that disk is away.
                    self._no_marker(move)
                    return
                failpoint(UNDO_AFTER_MARKER)
                if renamed is not None:
                    with full_is_no_room():
                        rename_new(renamed, path)
                    failpoint(UNDO_AFTER_RENAMED)
                    fsync_dir(move.source.path)
                    failpoint(UNDO_AFTER_FLUSHED)
        except (StorageError, markers.MarkerCorrupt) as error:
            self._not_taken_back(move, error, renamed)
            return
        if marked:
            partition.generation = generation
            self._unseal(move, generation + 1)
        elif not self._unseal(move, hangs=lambda: self._no_marker(move)):
            self._no_marker(move)

    def _no_marker(self, move: Move) -> None:
        """The source's disk is full: the replica goes offline, alone."""
        path = move.partition.log.path
        self._host.lost(move.tp, f"{path.name} cannot be taken back on {move.source.name}: no room for its marker")

    def _not_taken_back(self, move: Move, error: StorageError | markers.MarkerCorrupt, renamed: Path | None) -> None:
        """The source has neither its name nor a higher generation for sure. Nothing is appended to it then, unless its
        name was never changed and the copy is durably no whole one.
        """

        def lost() -> None:
            self._host.lost(move.tp, f"{move.tp} cannot be taken back on {move.source.name}: {reason_of(error)}")

        if isinstance(error, StorageError):
            if move.source.fail_on(error) or not move.source.online:
                return
            if renamed is None and fault_of(error) is Fault.STEP and self._unseal(move, hangs=lost):
                return
        lost()

    def _unseal(self, move: Move, generation: int = 0, *, hangs: TakeBack = lambda: None) -> bool:
        """Have the copy say durably that it is no whole one, of this generation if that is higher than its own.

        `hangs` is what is left to do where that hangs. Raises SwapGivenUp then.
        """
        copying = replace(
            move.marker,
            state=State.COPYING,
            seal_leo=-1,
            seal_hw=-1,
            generation=max(generation, move.marker.generation),
        )
        if not move.target.online:
            return False
        try:
            with self._held[move].asking(hangs):
                move.target.check_online()
                markers.write(move.path, copying)
        except SwapGivenUp:
            raise
        except StorageError as error:
            move.target.fail_on(error)
            return False
        move.marker = copying
        return True
