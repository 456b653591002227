"""The first and the last durable steps of a move: making the `.move`, and taking it away again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from storage_node import failpoints
from storage_node.directories import partition_metadata
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors, is_no_room, rename_new
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import delete_name, new_delete_id, replica_name
from storage_node.errors import NotEnoughSpace, StaleClaim, StorageError
from storage_node.failpoints import failpoint
from storage_node.move import marker as markers
from storage_node.move.host import PartitionLike
from storage_node.move.marker import Marker, Reason, State

AFTER_CLAIM = failpoints.register("create.after_claim")
AFTER_MKDIR = failpoints.register("create.after_mkdir")
AFTER_MARKER = failpoints.register("create.after_marker")
AFTER_RENAMED = failpoints.register("create.after_renamed")
AFTER_FLUSH = failpoints.register("create.after_flush")
CANCEL_AFTER_MARKER = failpoints.register("cancel.after_marker")
CANCEL_AFTER_RENAMED = failpoints.register("cancel.after_renamed")
CANCEL_AFTER_FLUSHED = failpoints.register("cancel.after_flushed")
DISCARD_AFTER_MARKER = failpoints.register("discard.after_marker")
DISCARD_AFTER_RENAMED = failpoints.register("discard.after_renamed")
DISCARD_AFTER_FLUSHED = failpoints.register("discard.after_flushed")

_HEADROOM = 1 << 20  # bytes beside the records: indexes, markers, folders


def no_room(error: StorageError) -> bool:
    """Whether the disk was merely full: the move fails, the directory stays online. A flush that says so is a failed
    flush.
    """
    return is_no_room(error)


def check_space(directory: LogDirectory, needed: int, spoken_for: int) -> None:
    """Refuse a move for which the target has no room, counting what other moves will still bring there."""
    usable = directory.usage().usable - spoken_for
    wanted = needed + needed // 100 + _HEADROOM
    if usable < wanted:
        raise NotEnoughSpace(
            f"log directory {directory.name} has {max(0, usable)} bytes left for this move, which needs {wanted}; "
            f"make room there or choose another directory"
        )


def write_source(partition: PartitionLike, claim: int, target_id: str | None = None, ended_run: str = "") -> Marker:
    """Flush a claim into the marker of the replica, making the marker if there is none; raises StorageError.

    `ended_run` is the id of a run whose move another request has ended, see `refuse_ended`. On a full disk a marker is
    changed where it stands, and none is made: the claim is then only in the `.move`, which is on another disk, and the
    source of the swap gets its name without a marker, which no start takes for the newest copy.
    """
    path = partition.log.path
    found = markers.read(path) or Marker(partition.tp.topic, partition.tp.partition)
    marker = replace(
        found.settled(max(partition.generation, found.generation)),
        topic_id=partition.topic_id or found.topic_id,
        source_id=partition.directory.id,
        target_id=found.target_id if target_id is None else target_id,
        claim=max(claim, found.claim),
        run_id=ended_run or found.run_id,
    )
    if marker != found:
        markers.write_in_any_case(path, marker)
    failpoint(AFTER_CLAIM)
    return marker


def refuse_ended(partition: PartitionLike, run_id: str, ended: bool) -> None:
    """Raise StaleClaim for a run that asks for a move which was made for it and ended: swapped, or by another request.

    The run may not know of it: the answer to its first request was lost, and it asks again, without a claim. That must
    not begin anew what somebody has cancelled, after a crash neither, so the replica's marker remembers the last run;
    `ended` is what this process remembers of others.
    """
    found = markers.read(partition.log.path)
    if run_id and (ended or (found is not None and found.run_id == run_id)):
        raise StaleClaim(f"the move of {partition.tp} by run {run_id} is over; start another run to move it again")


def make(partition: PartitionLike, target: LogDirectory, path: Path, marker: Marker) -> None:
    """Make the `.move` with its marker, durable. Raises NotEnoughSpace or StorageError; see `unmake`."""
    with _room(target):
        # A power loss must not leave the copy as the only one: the replica's own name comes first.
        with io_errors(partition.directory.name, "flushing its names"):
            partition.directory.flush_found_names()
        # Made under a name that a start removes: a `.move` without a marker would pass for a whole copy.
        making = path.with_name(delete_name(partition.tp, new_delete_id()))
        with io_errors(target.name, f"making {path.name}"):
            try:
                with full_is_no_room():
                    making.mkdir()
                failpoint(AFTER_MKDIR)
                markers.write(making, marker, name=False)
                failpoint(AFTER_MARKER)
                if marker.topic_id:
                    partition_metadata.write(making, marker.topic_id, directory=target.name, name=False)
                fsync_dir(making)
                with full_is_no_room():
                    rename_new(making, path)
                failpoint(AFTER_RENAMED)
                fsync_dir(target.path)
                failpoint(AFTER_FLUSH)
            except (StorageError, OSError):
                if target.online:
                    unmake(target, making)
                raise


def unmake(target: LogDirectory, path: Path) -> None:
    """Take away what `make` left when it failed and the directory is good; nothing was copied into it yet.

    Where even that fails, the next start finds a copy to go on with.
    """
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.name != markers.NAME:
                entry.unlink()
        (path / markers.NAME).unlink(missing_ok=True)
        path.rmdir()
        fsync_dir(target.path)


def take_away(directory: LogDirectory, path: Path, marker: Marker) -> Path:
    """Turn a `.move` into a `.delete` that no start will take for a copy; answers its new path. Raises StorageError.

    The marker comes first, so that a start finishes what was begun here.
    """
    with io_errors(directory.name, f"cancelling {path.name}"):
        markers.write_in_any_case(path, replace(marker, state=State.CANCELLED, reason=Reason.CANCEL))
        failpoint(CANCEL_AFTER_MARKER)
        gone = path.with_name(delete_name(marker.tp, new_delete_id()))
        with full_is_no_room():
            rename_new(path, gone)
        failpoint(CANCEL_AFTER_RENAMED)
        fsync_dir(directory.path)
        failpoint(CANCEL_AFTER_FLUSHED)
    return gone


def set_aside(directory: LogDirectory, path: Path, marker: Marker) -> Path:
    """Turn a copy whose marker cannot be changed, for want of room, into a `.delete`; return its new path.

    It was never sealed, so that no start takes it for a replica under that name either. Raises StorageError.
    """
    with io_errors(directory.name, f"cancelling {path.name}"):
        gone = path.with_name(delete_name(marker.tp, new_delete_id()))
        with full_is_no_room():
            rename_new(path, gone)
        fsync_dir(directory.path)
    return gone


def retire(directory: LogDirectory, path: Path, marker: Marker, reason: Reason, delete_at_ms: int) -> Path:
    """Turn a replica into a `.delete` for good: the reason stands in the marker before the name changes."""
    unique = new_delete_id()
    gone = path.with_name(delete_name(marker.tp, unique))
    full = f"{replica_name(marker.tp)}.{unique}.delete"
    with io_errors(directory.name, f"deleting {path.name}"):
        markers.write_in_any_case(
            path, replace(marker, state=State.DELETED, reason=reason, delete_at_ms=delete_at_ms, full_name=full)
        )
        failpoint(DISCARD_AFTER_MARKER)
        with full_is_no_room():
            rename_new(path, gone)
        failpoint(DISCARD_AFTER_RENAMED)
        fsync_dir(directory.path)
        failpoint(DISCARD_AFTER_FLUSHED)
    return gone


@contextlib.contextmanager
def _room(target: LogDirectory) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        if no_room(error) and error.directory == target.name:
            raise NotEnoughSpace(f"log directory {target.name} is full: no room for the copy's folder") from error
        raise
