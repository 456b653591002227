"""Do the first durable steps of a move: claim the replica, check the space, and create the `.move`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from storage_node import failpoints
from storage_node.directories import partition_metadata
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors, is_no_room, rename_new
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import delete_name, new_delete_id
from storage_node.errors import NotEnoughSpace, StaleClaim, StorageError
from storage_node.failpoints import failpoint
from storage_node.replicas import marker as markers
from storage_node.replicas.host import ServedReplica
from storage_node.replicas.marker import Marker

AFTER_CLAIM = failpoints.register("create.after_claim")
AFTER_MKDIR = failpoints.register("create.after_mkdir")
AFTER_MARKER = failpoints.register("create.after_marker")
AFTER_RENAMED = failpoints.register("create.after_renamed")
AFTER_FLUSH = failpoints.register("create.after_flush")

_HEADROOM = 1 << 20  # bytes in addition to the records: indexes, markers, folders


def no_room(error: StorageError) -> bool:
    """Return whether the disk was merely full: the move fails, the directory stays online.

    A flush that reports a full disk is a failed flush.
    """
    return is_no_room(error)


def check_space(directory: LogDirectory, needed: int, spoken_for: int) -> None:
    """Reject a move for which the target has no room, counting what other moves will still write there."""
    usable = directory.usage().usable - spoken_for
    wanted = needed + needed // 100 + _HEADROOM
    if usable < wanted:
        raise NotEnoughSpace(
            f"log directory {directory.name} has {max(0, usable)} bytes left for this move, which needs {wanted}; "
            f"make room there or choose another directory"
        )


def write_source(partition: ServedReplica, claim: int, target_id: str | None = None, ended_run: str = "") -> Marker:
    """Flush a claim into the marker of the replica, creating the marker if there is none. Raises StorageError.

    `ended_run` is the id of a run whose move another request has ended, see `refuse_ended`. On a full disk an existing
    marker is overwritten in place, and none is created: the claim is then only in the `.move`, which is on another
    disk, and the source of the swap gets its name without a marker, which no start takes for the newest copy.
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


def refuse_ended(partition: ServedReplica, run_id: str, ended: bool) -> None:
    """Raise StaleClaim for a run that requests a move which was created for it and has ended, by a swap or a request.

    The run may not know of it: the response to its first request was lost, and it repeats the request, without a claim.
    That must not begin again what another request has cancelled, not even after a crash, so the replica's marker has
    the last run's id; `ended` is whether this process knows the run as ended.
    """
    found = markers.read(partition.log.path)
    if run_id and (ended or (found is not None and found.run_id == run_id)):
        raise StaleClaim(f"the move of {partition.tp} by run {run_id} is over; start another run to move it again")


def make(partition: ServedReplica, target: LogDirectory, path: Path, marker: Marker) -> None:
    """Create the `.move` with its marker, durably. Raises NotEnoughSpace or StorageError; see `unmake`."""
    with _room(target):
        # A power loss must not leave the copy as the only one: the replica's own name is flushed first.
        with io_errors(partition.directory.name, "flushing its names"):
            partition.directory.flush_found_names()
        # It is created under a name that a start removes: a `.move` without a marker would count as a whole copy.
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
    """Remove what `make` left when it failed and the directory is good; nothing was copied into it yet.

    If even that fails, the next start finds a copy to continue.
    """
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.name != markers.NAME:
                entry.unlink()
        (path / markers.NAME).unlink(missing_ok=True)
        path.rmdir()
        fsync_dir(target.path)


@contextlib.contextmanager
def _room(target: LogDirectory) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        if no_room(error) and error.directory == target.name:
            raise NotEnoughSpace(f"log directory {target.name} is full: no room for the copy's folder") from error
        raise
