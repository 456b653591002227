"""Carry out the actions that `table.decide` returned, each durable before the next."""

from __future__ import annotations

from collections.abc import Callable

from storage_node import failpoints
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors, rename_new
from storage_node.failpoints import failpoint
from storage_node.replicas import marker as markers
from storage_node.replicas.boot.actions import BootPlan, Rename, WriteMarker
from storage_node.replicas.marker import State

AFTER_MARKER = failpoints.register("boot.after_marker")
AFTER_RENAMED = failpoints.register("boot.after_renamed")
AFTER_FLUSHED = failpoints.register("boot.after_flushed")


def apply(plan: BootPlan, check: Callable[[], None] = lambda: None) -> None:
    """Write the markers and do the renames of a plan, in order; `check` is called before each, and may raise.

    Deletions and moves of the plan wait for `MoveEngine.resume`, once the node serves the replica. Raises
    StorageError with the directory; after that the partition must not be served, and the next decision starts from what
    is then on disk.
    """
    for action in plan.actions:
        check()
        if isinstance(action, WriteMarker):
            # A deletion frees space, so its marker is written even when there is none.
            write = markers.write_in_any_case if action.marker.state is State.DELETED else markers.write
            write(action.path, action.marker)
            failpoint(AFTER_MARKER)
        elif isinstance(action, Rename):
            with io_errors(action.source.parent, f"renaming {action.source.name} to {action.target.name}"):
                with full_is_no_room():
                    rename_new(action.source, action.target)
                failpoint(AFTER_RENAMED)
                fsync_dir(action.target.parent)
                failpoint(AFTER_FLUSHED)
