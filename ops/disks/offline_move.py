"""Move replicas of a stopped broker to other directories, step by step from what the disks hold. Killable anywhere.

The order of a move: copy and flush; the target's checkpoint files; the copy gets the replica's name; the source is set
aside; the source's checkpoint files; the note goes. What Apache Kafka does with the result: it serves the replica where
it finds it, and reports the directory's id to the controller, which changes the metadata (KIP-858).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ops.disks import aside
from ops.disks.aside import Note, NoteKind, Wrapper
from ops.disks.copying import CopyFailed, Source, copy, remaining, unchanged
from ops.disks.found import DirectoryFound, Folder
from ops.disks.moving import CopyState, MoveRefused, Room, Seen, Step, next_step
from ops.disks.scanning import CHECKPOINTS
from storage_node import failpoints
from storage_node.directories import atomic, clean_shutdown
from storage_node.directories.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.directories.io_faults import reason_of
from storage_node.directories.names import replica_name
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint
from storage_node.log.recovery import log_end
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker

__all__ = ["Move", "begun", "left_to_copy", "room", "run"]

CHECKPOINTED = failpoints.register("offline.move_after_checkpoints")
PLACED = failpoints.register("offline.move_after_placed")
SET_ASIDE = failpoints.register("offline.move_after_set_aside")
DROPPED = failpoints.register("offline.move_after_dropped")

_KEPT = "moved"
_REMOVED = "moved, to be removed"


@dataclass(frozen=True, slots=True)
class Move:
    """A replica and the directories between which it moves.

    `keep`: the source is set aside, not removed. `unfinished`: copies of the replica that only the running broker could
    finish; they are set aside.
    """

    tp: TopicPartition
    source: DirectoryFound
    target: DirectoryFound
    keep: bool = True
    unfinished: tuple[Folder, ...] = ()


def begun(found: Iterable[DirectoryFound]) -> dict[TopicPartition, tuple[str, str]]:
    """Return the replicas whose copy was begun, with its source and target directory. Raises OSError."""
    return {
        wrapper.note.tp: (wrapper.note.other, wrapper.directory)
        for directory in found
        if directory.meta.state != "missing" and not directory.unreadable
        for wrapper in aside.wrappers(directory.path)
        if wrapper.note.kind is NoteKind.COPY
    }


def room(path: str) -> Room:
    """Return what is free in a directory's file system. Raises OSError."""
    info = os.statvfs(path)
    return Room(path, info.f_bavail * info.f_frsize, Path(path).stat().st_dev)


def left_to_copy(move: Move) -> int:
    """Return the bytes that a move still copies; 0 once the copy is complete. Raises OSError, CopyFailed."""
    source = _source(move)
    if not source.folder.is_dir():
        return 0
    wrapper = _wrapper(move)
    if wrapper is not None and wrapper.note.complete and unchanged(source, wrapper.note):
        return 0
    return remaining(source, wrapper.note if wrapper is not None and wrapper.filled else None)


def run(move: Move, admit: Callable[[int], None] = lambda _: None) -> list[str]:
    """Carry a replica's move to its end; return what the operator should know.

    Raises MoveRefused, CopyFailed, OSError, StorageError. After any of them, or a crash, it can be called again.
    """
    says: list[str] = []
    for _ in Step:
        seen = _look(move)
        match next_step(move.tp, seen):
            case Step.COPY:
                says += _copy(move, admit)
            case Step.PLACE:
                says += _place(move)
            case Step.SET_ASIDE:
                says += _retire(move)
            case Step.TIDY:
                says += _tidy(move)
            case Step.DONE:
                for directory in (move.target, move.source):
                    with contextlib.suppress(OSError):  # a source that fails is not needed any more
                        aside.sweep(directory.path)
                return says
    raise MoveRefused(f"{move.tp} does not become complete: another process changes {move.target.path}")


def _name(move: Move) -> str:
    return replica_name(move.tp)


def _source(move: Move) -> Source:
    point = OffsetCheckpoint(move.source.path, RECOVERY_POINTS)
    try:
        recovery_point = point.read_lenient()[0].get(move.tp, 0)
    except StorageError:
        recovery_point = 0
    return Source(Path(move.source.path) / _name(move), move.source.clean, recovery_point)


def _wrapper(move: Move) -> Wrapper | None:
    """Return the wrapper of this move in the target directory; None without one."""
    for each in aside.wrappers(move.target.path):
        if each.note.kind is NoteKind.COPY and each.note.tp == move.tp and each.note.other == move.source.path:
            return each
    return None


def _look(move: Move) -> Seen:
    source = _source(move)
    has = source.folder.is_dir() and not source.folder.is_symlink()
    wrapper = _wrapper(move)
    state = CopyState.NONE
    if wrapper is not None:
        if not wrapper.note.complete:
            state = CopyState.PARTIAL
        elif has and not unchanged(source, wrapper.note, records_only=not wrapper.filled):
            state = CopyState.STALE
        else:
            state = CopyState.COMPLETE if wrapper.filled else CopyState.PLACED
    return Seen(has, (Path(move.target.path) / _name(move)).is_dir(), state)


def _copy(move: Move, admit: Callable[[int], None]) -> list[str]:
    wrapper = _wrapper(move)
    note = Note(move.tp.topic, move.tp.partition, NoteKind.COPY, move.source.path, "an offline move")
    if wrapper is None or not wrapper.filled:
        path = aside.make_wrapper(move.target.path, note)
    else:
        path, note = wrapper.path, wrapper.note
    _, cut = copy(_source(move), path, note, admit, extra=_marker(move))
    return [f"left out {each}, which the broker's start would cut off too" for each in cut]


def _marker(move: Move) -> dict[str, bytes]:
    """Return the marker of a storage node's copy: as after a move of the running node, its generation is one higher.

    A source that turns up again is then known to be older. Apache Kafka has no such file.
    """
    found = markers.read(Path(move.source.path) / _name(move))
    if not move.target.of_node and found is None:
        return {}
    marker = found or Marker(move.tp.topic, move.tp.partition)
    moved = replace(marker.settled(marker.generation + 1), source_id=move.source.id, target_id=move.target.id)
    return {markers.NAME: markers.encode(moved)}


def _place(move: Move) -> list[str]:
    """Write the target's checkpoints, and rename the copy to the replica's name."""
    wrapper = _wrapper(move)
    assert wrapper is not None
    says = [*_unfinished(move)]
    end = log_end(wrapper.inner, move.target.path)
    if not move.source.clean:
        # The copy has no clean stop behind it: the start must check it, and not trust the marker of the others.
        atomic.remove(Path(move.target.path) / clean_shutdown.FILE)
    for name in CHECKPOINTS:
        source = OffsetCheckpoint(move.source.path, name)
        try:
            offsets, problem = source.read_lenient()
        except StorageError as error:
            offsets, problem = {}, reason_of(error)
        if problem is not None:
            says.append(f"{source.path} cannot be used ({problem}): the start determines this offset again")
        offset = offsets.get(move.tp)
        checkpoint = OffsetCheckpoint(move.target.path, name)
        if offset is not None:
            checkpoint.update({move.tp: offset if name == LOG_START_OFFSETS else min(offset, end)})
        else:
            checkpoint.update({}, drop=[move.tp])
    failpoint(CHECKPOINTED)
    aside.take_back(wrapper)
    failpoint(PLACED)
    return says


def _unfinished(move: Move) -> list[str]:
    """Set copies aside that only the running broker could finish: they are of the directory that the replica leaves."""
    says = []
    note = Note(move.tp.topic, move.tp.partition, NoteKind.MOVED, move.target.path, "the copy of an unfinished move")
    for folder in move.unfinished:
        if Path(folder.path).is_dir():
            where = aside.set_aside(folder.directory, note, folder.name)
            says.append(f"set its unfinished copy {folder.path} aside as {where}")
    return says


def _retire(move: Move) -> list[str]:
    """Set the source aside; the next step removes it, unless it is kept."""
    reason = _KEPT if move.keep else _REMOVED
    note = Note(move.tp.topic, move.tp.partition, NoteKind.MOVED, move.target.path, reason)
    try:
        where = aside.set_aside(move.source.path, note)
    except OSError as error:
        raise CopyFailed(
            f"it is whole in {move.target.path}, but its source {move.source.path}/{_name(move)} cannot be renamed "
            f"({reason_of(error)}): take {move.source.path} out of log.dirs before the broker starts"
        ) from error
    failpoint(SET_ASIDE)
    return [f"its source is set aside as {where}"] if move.keep else []


def _tidy(move: Move) -> list[str]:
    """Remove the source's checkpoint entries, the source if it is not kept, and the note."""
    says = []
    for each in aside.wrappers(move.source.path):
        note = each.note
        if (note.tp, note.kind, note.other, note.reason) == (move.tp, NoteKind.MOVED, move.target.path, _REMOVED):
            aside.destroy(each)
    for name in CHECKPOINTS:
        try:
            OffsetCheckpoint(move.source.path, name).update({}, drop=[move.tp])
        except StorageError as error:
            says.append(f"{move.source.path}/{name} could not be written: {reason_of(error)}")
    failpoint(DROPPED)
    wrapper = _wrapper(move)
    if wrapper is not None and not wrapper.filled:
        aside.remove(wrapper.path)
    return says
