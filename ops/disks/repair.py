"""Set the other copies of replicas aside that are in several directories, and take them back. May be killed anywhere.

Every step is one rename inside a log directory, after a note that says what it is for. What a crash leaves is either
the state before the rename or after it, and both are where the next run begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.disks import aside
from ops.disks.aside import Note, NoteKind, Wrapper
from ops.disks.duplicates import Duplicate
from ops.disks.found import Copy
from storage_node import failpoints
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, OffsetCheckpoint
from storage_node.failpoints import failpoint
from storage_node.model.ids import TopicPartition

__all__ = ["SetAside", "Undo", "finish_undo", "plan", "plan_undo", "set_aside", "undo"]

ADDED = failpoints.register("offline.repair_after_checkpoints")
UNADDED = failpoints.register("offline.undo_after_checkpoints")

#: What a kept copy gets from the directory of the other where its own has no entry. A recovery point is not carried:
#: without one the start checks more.
_CARRIED = (HIGH_WATERMARKS, LOG_START_OFFSETS)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A copy to set aside, the one that is kept, and why."""

    copy: Copy
    keep: Copy
    why: str


@dataclass(frozen=True, slots=True)
class Undo:
    """What an undo does with one wrapper: takes the replica back, or `refused`: why it cannot."""

    wrapper: Wrapper
    refused: str = ""


def plan(
    found: Iterable[Duplicate], keep: Mapping[TopicPartition, str] | None = None
) -> tuple[list[SetAside], list[str]]:
    """Return what to set aside, and a sentence for each replica that is left as it is. Pure.

    `keep` has the directory that the operator decided for a replica; only replicas that the copies do not decide, or
    decide otherwise, need it. Raises ValueError for a directory that has no copy.
    """
    chosen = dict(keep or {})
    steps: list[SetAside] = []
    left: list[str] = []
    for each in found:
        directory = chosen.pop(each.tp, None)
        kept, why = each.keep, each.why
        if directory is not None:
            kept = next((copy for copy in each.copies if copy.directory == directory), None)
            why = "the operator decided"
            if kept is None:
                where = ", ".join(copy.directory for copy in each.copies)
                raise ValueError(f"{each.tp} has no copy in {directory}; its copies are in {where}")
        elif each.by_itself:
            continue
        if kept is None:
            left.append(f"{each.tp}: {each.why}; decide with --keep {each.tp}=DIR")
            continue
        steps += [SetAside(copy, kept, why) for copy in each.copies if copy is not kept]
    if chosen:
        names = ", ".join(sorted(map(str, chosen)))
        raise ValueError(f"--keep names {names}, which is not in several directories")
    return steps, left


def set_aside(step: SetAside, directories: Sequence[str]) -> Path:
    """Carry one step out; return where the copy is now. `directories` are the broker's.

    Raises OSError, StorageError; nothing of the copy was lost then.
    """
    tp, kept = step.copy.tp, step.keep
    offsets = _missing(step)
    note = Note(
        tp.topic, tp.partition, NoteKind.REPAIRED, kept.directory, step.why, _made(step, directories), added=offsets
    )
    # The note has the entries before the checkpoints have them: an undo after a crash removes what was added.
    aside.make_wrapper(step.copy.directory, note)
    for name, offset in offsets.items():
        OffsetCheckpoint(kept.directory, name).update({tp: offset})
    failpoint(ADDED)
    return aside.set_aside(step.copy.directory, note)


def _made(step: SetAside, directories: Sequence[str]) -> int:
    """Return the time to note: now, or that of a repair that was stopped after it had set another copy aside."""
    earlier = [
        wrapper.note
        for directory in directories
        for wrapper in aside.wrappers(directory)
        if wrapper.note.kind is NoteKind.REPAIRED and wrapper.note.tp == step.copy.tp and wrapper.filled
    ]
    newest = max(earlier, key=lambda note: note.made_ns, default=None)
    # A copy that was kept earlier, under the same path, is another one if it was created since.
    if newest is not None and newest.other == step.keep.directory and newest.made_ns > step.keep.created_ns:
        return newest.made_ns
    return time.time_ns()


def _missing(step: SetAside) -> dict[str, int]:
    """Return the entries that the kept copy's checkpoints lack and the other's have, at most the kept copy's end."""
    tp, added = step.copy.tp, {}
    for wrapper in aside.wrappers(step.copy.directory):
        note = wrapper.note
        if (note.tp, note.kind, wrapper.filled, note.other) == (tp, NoteKind.REPAIRED, False, step.keep.directory):
            return dict(note.added)  # of an earlier attempt, which may have added some of them
    for name in _CARRIED:
        if name == LOG_START_OFFSETS and step.copy.starts_beyond:
            continue  # lowered to the kept copy's end, it would delete all of that copy's records
        theirs = OffsetCheckpoint(step.keep.directory, name).read_lenient()
        offset = OffsetCheckpoint(step.copy.directory, name).read_lenient()[0].get(tp)
        if (
            offset is not None
            and theirs[1] is None
            and tp not in theirs[0]
            and step.keep.topic_id == step.copy.topic_id
        ):
            added[name] = min(offset, step.keep.log.end)
    return added


def finish_undo(directories: Sequence[str]) -> None:
    """Remove the empty folders that an undo left which was killed. Raises OSError."""
    for directory in directories:
        aside.sweep(directory)


def plan_undo(directories: Sequence[str]) -> list[Undo]:
    """Return what an undo does: of each replica, it takes back what was set aside last. Raises OSError."""
    found = [w for path in directories for w in aside.wrappers(path) if w.note.kind is NoteKind.REPAIRED]
    newest: dict[TopicPartition, int] = {}
    for wrapper in found:
        newest[wrapper.note.tp] = max(newest.get(wrapper.note.tp, 0), wrapper.note.made_ns)
    steps = []
    for wrapper in found:
        if wrapper.note.made_ns == newest[wrapper.note.tp]:
            taken = wrapper.filled and (wrapper.path.parent / wrapper.inner.name).exists()
            refused = f"{wrapper.directory} has a replica {wrapper.inner.name} again; remove it first" if taken else ""
            steps.append(Undo(wrapper, refused))
    return steps


def undo(step: Undo, directories: Sequence[str]) -> None:
    """Carry one step of an undo out; repeatable. `directories` are the broker's. Raises OSError, StorageError."""
    wrapper = step.wrapper
    if wrapper.filled:
        aside.take_back(wrapper)
    for name, offset in wrapper.note.added.items():
        if wrapper.note.other not in directories or name not in _CARRIED:
            continue
        checkpoint = OffsetCheckpoint(wrapper.note.other, name)
        # A broker that ran meanwhile has written its own.
        if checkpoint.read_lenient()[0].get(wrapper.note.tp) == offset:
            checkpoint.update({}, drop=[wrapper.note.tp])
    failpoint(UNADDED)
    aside.remove(wrapper.path)
