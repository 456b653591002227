"""Swap a move: the copy becomes the replica, in KIP-113's order, each step durable before the next begins.

While the swap holds the log, it does only the last chunk and its flush, the seal, two renames and the flushes of their
folders. All that can be done before (catching up, flushing, the target's checkpoints) is done before, and what can wait
is done later (the markers' final states, see `settling`, and the source's checkpoints).

Clients do not wait for a target that hangs meanwhile: the node defers appends (`log_hold`), and once the target is
offline another thread gives the source back (`swap_hold`).

A seal that does not complete raises the source two generations before it takes another record: the sealed copy may
return from a failing disk, and must then be the older one.
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
from storage_node.directories.io_faults import Fault, fault_of, reason_of
from storage_node.directories.names import delete_name, new_delete_id, replica_name
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint
from storage_node.move.copying.copier import Copier
from storage_node.move.copying.pauses import Pauses
from storage_node.move.copying.reconcile import fits_source
from storage_node.move.host import MoveHost
from storage_node.move.moving import Move, OpenMove
from storage_node.move.swap_hold import SwapGivenUp, SwapHold, TakeBack
from storage_node.move.throttle import LIMITED_CHUNK
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, State

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

CATCH_UP_SECONDS = 2.0  # without the lock, before the swap is "behind": replica.move.swap.deadline.ms
LOCK_WAIT_SECONDS = 1.0  # for the partition's lock
TAIL_SECONDS = 0.02  # for the last copy while the log is held
CLOSE_SECONDS = 5.0  # for threads that give a source back when the node stops


@dataclass(frozen=True, slots=True)
class Swapped:
    """A completed swap: the source is now at `source_path` and is due for deletion at `delete_at_ms`."""

    source_path: Path
    source_generation: int
    delete_at_ms: int


class Swapper:
    """The swapper of one move at a time under its guard; thread-safe across moves.

    A copy that has not reached its source after `seconds` of catching up is "behind".
    """

    def __init__(self, host: MoveHost, copier: Copier, pauses: Pauses, seconds: float = CATCH_UP_SECONDS) -> None:
        self._host = host
        self._copier = copier
        self._pauses = pauses
        self._seconds = seconds
        self._held: dict[Move, SwapHold] = {}
        self._giving_back: list[threading.Thread] = []
        for directory in host.directories():
            self.add_directory(directory)

    def add_directory(self, directory: LogDirectory) -> None:
        """Give up swaps that hang in this directory, should it fail."""
        directory.on_failure(self._directory_failed)

    def swap(self, opened: OpenMove, delay_ms: int, now_ms: int) -> Swapped | None:
        """Catch up and swap; return None when the source outgrew the copy ("behind"), with nothing changed.

        Raises what the copier raises, and StorageError; after those the source stays the replica or its directory is
        offline.
        """
        move, future = opened.move, opened.future
        partition = move.partition
        if not self._catch_up(opened):
            return None
        source_path = move.source.path / delete_name(move.tp, new_delete_id())
        version = future.version
        bare = markers.read_any(partition.log.path) is None
        if bare:
            # Without the lock, this flushes most of what `_finish_copy` flushes of the source.
            partition.log.flush_records()
        self._host.checkpoint(move.target, partition)
        failpoint(BEFORE_LOCK)
        with self._pauses.asked():
            if not self._promote_under_hold(opened, source_path, version, bare):
                if future.version != version:
                    # The target's checkpoint is ahead of the copy since the copy was truncated.
                    self._host.checkpoint(move.target, partition)
                return None
        failpoint(AFTER_REFERENCES)
        if not move.target.online:
            # It failed before it had the replica, so the failure did not take it offline.
            self._host.take_offline_with(move.target, [move.tp])
        source_generation = move.marker.generation - 1
        move.marker = move.marker.settled()
        # The source's checkpoints are written later: their entries for it no longer belong to a replica.
        self._host.moved()
        return Swapped(source_path, source_generation, now_ms + delay_ms)

    def _promote_under_hold(self, opened: OpenMove, source_path: Path, version: int, bare: bool) -> bool:
        """Hold the log and promote the copy; return False with nothing changed when the source outgrew the copy.

        `version` is the copy's when the target's checkpoint was written, `bare` whether the source has no marker.
        """
        move = opened.move
        partition = move.partition
        # Records appended meanwhile are flushed too, so that the flush during the hold is small.
        if not self._catch_up(opened):
            return False
        hold = partition.hold(LOCK_WAIT_SECONDS)
        if hold is None:
            return False
        began = time.monotonic()
        held = self._held[move] = SwapHold(hold, move.target.name, f"the swap of {move.tp}")
        try:
            with held.asking(lambda: None):
                # A copy that was truncated since is below its offsets in the target's checkpoint.
                complete = self._finish_copy(opened, began + TAIL_SECONDS, bare) and opened.future.version == version
            if complete:
                self._promote(opened, held, source_path)
            return complete
        finally:
            move.seconds_locked = time.monotonic() - began
            if held.end():
                partition.release(hold)
            self._held.pop(move)
            self._copier.leave(opened)

    # In place of a swap that hangs

    def asked(self) -> list[tuple[LogDirectory, str, float]]:
        """Return the operations in progress on targets: directory, operation, and its start (`time.monotonic`)."""
        every = [(move.target, held) for move, held in self._held.copy().items()]
        return [(target, held.what, since) for target, held in every if (since := held.asked) is not None]

    def _directory_failed(self, directory: LogDirectory, _: str) -> None:
        """Give back the sources of the swaps that wait for this directory, each in a thread of its own."""
        for move, held in self._held.copy().items():
            take_back = held.give_up() if move.target is directory else None
            if take_back is not None:
                thread = threading.Thread(
                    target=self._give_back, args=(move, held, take_back), name=f"give-back-{move.tp}", daemon=True
                )
                self._giving_back = [*(other for other in self._giving_back if other.is_alive()), thread]
                thread.start()

    def _give_back(self, move: Move, held: SwapHold, take_back: TakeBack) -> None:
        partition = move.partition
        try:
            # A source whose disk has failed too takes no more records: the next start decides by what it finds.
            if move.source.online:
                take_back()
                _log.warning("%s continues in %s: its swap hangs in %s", move.tp, move.source.path, move.target.path)
        except Exception as error:
            _log.exception("giving %s back after its swap hung in %s", move.tp, move.target.path)
            self._host.replica_failed(move.tp, f"{move.tp} cannot be taken back on {move.source.name}: {error!r}")
        finally:
            partition.release(held.hold)

    def close(self) -> None:
        """Wait, not long, for the threads that give sources back: the source's disk may hang, too."""
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._giving_back:
            thread.join(max(0.0, until - time.monotonic()))

    # Before the lock

    def _catch_up(self, opened: OpenMove) -> bool:
        """Copy and flush until less than a chunk is missing; return False when that takes too long."""
        future = opened.future
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            began = future.size
            reached = False
            try:
                while not reached and time.monotonic() < until:
                    reached = not self._copier.step(opened, until=until)
            finally:
                self._copier.leave(opened)
            future.flush()
            if reached and future.size - began < LIMITED_CHUNK:
                return fits_source(opened)
        return False

    # During the hold

    def _finish_copy(self, opened: OpenMove, deadline: float, bare: bool) -> bool:
        source, future = opened.move.partition.log, opened.future
        while self._copier.step(opened, limited=False):
            if time.monotonic() > deadline:
                return False
        if not fits_source(opened):
            return False
        self._copier.leave(opened)
        future.carry_history(source)
        # The indexes can wait: writers do not wait for flushes that are omitted here.
        future.flush_records()
        if bare:
            # A source that ends before the seal counts as one without later appends: a start without the copy's disk
            # raises the generation in the source's marker before it serves it. A source that got no marker (its disk is
            # full) must not become that short by a power loss: it would be served, appended to, and still lose against
            # the sealed copy.
            source.flush_records()
        failpoint(AFTER_TAIL)
        return True

    def _promote(self, opened: OpenMove, held: SwapHold, source_path: Path) -> None:
        move, copy = opened.move, opened.future.log
        partition = move.partition
        source = partition.log
        self._copier.check(move)
        try:
            with (
                held.asking(lambda: self._undo(move, None)),
                io_errors(move.target.name, f"sealing {move.path.name}"),
            ):
                move.target.check_online()
                self._seal(move)
            move.target.check_online()
        except SwapGivenUp:
            raise
        except StorageError as error:
            move.target.fail_on(error)  # first, so that a bad disk is not used for undoing the seal
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
                held.asking(lambda: self._undo(move, source_path)),
                io_errors(move.target.name, f"renaming {move.path.name} to {target_path.name}"),
            ):
                move.target.check_online()
                with full_is_no_room():
                    rename_new(move.path, target_path)
                promoted = True
                failpoint(AFTER_TARGET_RENAMED)
                fsync_dir(move.target.path)
            # A disk may complete the rename after it was given up: nothing is served from it, so the source is taken
            # back.
            move.target.check_online()
        except SwapGivenUp:
            raise
        except StorageError as error:
            if not move.target.fail_on(error) and promoted:
                # A start may find it under its final name or not; a disk that stays in use must not have it.
                move.target.fail(error)
            self._undo(move, source_path)
            raise
        failpoint(AFTER_TARGET_FLUSHED)
        with partition.lock:
            source.relocated(source_path)
            copy.relocated(target_path)
            partition.swapped(copy, move.target, move.marker.generation)

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
        """Give the source back, two generations higher, or else with the seal undone.

        If neither can be made durable, the replica goes offline, with its whole directory where the disk is bad. The
        copy on a good target is no longer sealed, and newer than the source again: it can be copied and swapped once
        more.
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
                    # Nothing would distinguish the sealed copy, should it return, from what is appended here now: the
                    # source keeps its present name, so that no start takes it for the newest replica while that disk is
                    # missing.
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
        """Take only the replica offline, because the source's disk is full."""
        path = move.partition.log.path
        self._host.replica_failed(
            move.tp, f"{path.name} cannot be taken back on {move.source.name}: no room for its marker"
        )

    def _not_taken_back(self, move: Move, error: StorageError | markers.MarkerCorrupt, renamed: Path | None) -> None:
        """Take the replica offline, because the source has neither its name nor a higher generation for sure.

        Appends continue only if its name was never changed and the copy's marker is durably not a seal.
        """

        def failed() -> None:
            self._host.replica_failed(
                move.tp, f"{move.tp} cannot be taken back on {move.source.name}: {reason_of(error)}"
            )

        if isinstance(error, StorageError):
            if move.source.fail_on(error) or not move.source.online:
                return
            if renamed is None and fault_of(error) is Fault.STEP and self._unseal(move, hangs=failed):
                return
        failed()

    def _unseal(self, move: Move, generation: int = 0, *, hangs: TakeBack = lambda: None) -> bool:
        """Mark the copy durably as incomplete, with this generation if that is higher than its own; return whether it
        is.

        `hangs` is what remains to be done if the target hangs; the swap then raises SwapGivenUp.
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
