"""Retire a replica or a copy: durably turn its folder into a `.delete`, which `deletion` removes when it is due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage_node import failpoints
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors, rename_new
from storage_node.directories.directory import LogDirectory
from storage_node.directories.names import delete_name, new_delete_id, replica_name
from storage_node.failpoints import failpoint
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, Reason, State

CANCEL_AFTER_MARKER = failpoints.register("cancel.after_marker")
CANCEL_AFTER_RENAMED = failpoints.register("cancel.after_renamed")
CANCEL_AFTER_FLUSHED = failpoints.register("cancel.after_flushed")
DISCARD_AFTER_MARKER = failpoints.register("discard.after_marker")
DISCARD_AFTER_RENAMED = failpoints.register("discard.after_renamed")
DISCARD_AFTER_FLUSHED = failpoints.register("discard.after_flushed")


def take_away(directory: LogDirectory, path: Path, marker: Marker) -> Path:
    """Turn a `.move` into a `.delete` that no start takes for a copy; return its new path. Raises StorageError.

    The marker is written first, so that a start completes what began here.
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
    """Turn a copy whose marker cannot be changed, because the disk is full, into a `.delete`; return its new path.

    It was never sealed, so no start takes it for a replica under that name either. Raises StorageError.
    """
    with io_errors(directory.name, f"cancelling {path.name}"):
        gone = path.with_name(delete_name(marker.tp, new_delete_id()))
        with full_is_no_room():
            rename_new(path, gone)
        fsync_dir(directory.path)
    return gone


def retire(directory: LogDirectory, path: Path, marker: Marker, reason: Reason, delete_at_ms: int) -> Path:
    """Turn a replica into a `.delete` for good; its marker has the reason before the name changes."""
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
