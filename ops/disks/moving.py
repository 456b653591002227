"""What an offline move of replicas does: which directory each goes to, and what the next step of each is. Pure.

Everything is decided from what the disks hold, so that a run that was killed is continued by the next one. The copy is
placed before its source is set aside: between the two the replica is in two directories, with which Apache Kafka does
not start. The other order could leave it in none, for which Apache Kafka makes an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.disks.found import DirectoryFound
from storage_node.model.ids import TopicPartition

__all__ = ["CopyState", "MoveRefused", "Room", "Seen", "Step", "assign", "headroom", "lacking", "next_step", "usable"]

_LEAST_HEADROOM = 32 << 20
_HEADROOM_SHARE = 100


class MoveRefused(Exception):
    """A replica cannot be moved; the message says why and what to do. Nothing was changed for it."""


class CopyState(StrEnum):
    """What a wrapper in the target directory holds of the replica."""

    NONE = "none"
    PARTIAL = "partial"
    COMPLETE = "complete"  # whole and flushed
    STALE = "stale"  # complete, but the source has changed since
    PLACED = "placed"  # the copy has left the wrapper for the replica's name


class Step(StrEnum):
    """The next step of a move."""

    COPY = "copy"
    PLACE = "place"
    SET_ASIDE = "set aside"
    TIDY = "tidy"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is on disk of one move: whether source and target have the replica, and the copy's state."""

    source: bool
    target: bool
    copy: CopyState


#: (source has it, target has it, copy) -> step; what is not here is refused.
_STEPS: Mapping[Seen, Step] = {
    Seen(True, False, CopyState.NONE): Step.COPY,
    Seen(True, False, CopyState.PARTIAL): Step.COPY,
    Seen(True, False, CopyState.STALE): Step.COPY,
    Seen(True, False, CopyState.COMPLETE): Step.PLACE,
    Seen(True, False, CopyState.PLACED): Step.COPY,  # a repair has decided for the source
    Seen(True, True, CopyState.PLACED): Step.SET_ASIDE,
    Seen(False, True, CopyState.PLACED): Step.TIDY,
    Seen(False, True, CopyState.NONE): Step.DONE,
}


def next_step(tp: TopicPartition, seen: Seen) -> Step:
    """Return the next step of a replica's move. Raises MoveRefused."""
    step = _STEPS.get(seen)
    if step is not None:
        return step
    if seen.source and seen.target:
        raise MoveRefused(f"{tp} is in both directories already; run: rehome storage check, then rehome storage repair")
    if not seen.source and not seen.target:
        raise MoveRefused(f"{tp} is in none of the directories; run: rehome storage check")
    raise MoveRefused(f"{tp} is in the target already, beside an unfinished copy of an earlier move; remove that copy")


@dataclass(frozen=True, slots=True)
class Room:
    """A target directory: the bytes that its file system has free, and an id of that file system."""

    path: str
    free: int
    filesystem: int


def headroom(free: int) -> int:
    """Return the bytes that a move leaves free."""
    return max(_LEAST_HEADROOM, free // _HEADROOM_SHARE)


def assign(
    sizes: Mapping[TopicPartition, int], targets: Sequence[Room], begun: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Return each replica's target: the one where its copy was begun, else where most is free, the largest first.

    `sizes` are the bytes still to copy.
    """
    free = {room.filesystem: room.free for room in targets}
    of = {room.path: room.filesystem for room in targets}
    chosen: dict[TopicPartition, str] = {}
    for tp in sorted(sizes, key=lambda each: (each not in begun, -sizes[each], each)):
        path = begun.get(tp, "")
        if path not in of:
            path = max(targets, key=lambda room: free[room.filesystem]).path
        chosen[tp] = path
        free[of[path]] -= sizes[tp]
    return chosen


def lacking(
    sizes: Mapping[TopicPartition, int], chosen: Mapping[TopicPartition, str], targets: Sequence[Room]
) -> list[tuple[str, int, int]]:
    """Return (directory, bytes needed, bytes that may be used) of each target without enough room."""
    found = []
    for filesystem in dict.fromkeys(room.filesystem for room in targets):
        rooms = [room for room in targets if room.filesystem == filesystem]
        paths = {room.path for room in rooms}
        need = sum(size for tp, size in sizes.items() if chosen[tp] in paths)
        usable_bytes = rooms[0].free - headroom(rooms[0].free)
        if need > usable_bytes:
            found.append((rooms[0].path, need, max(0, usable_bytes)))
    return found


def usable(target: DirectoryFound, others: Sequence[DirectoryFound]) -> None:
    """Raise MoveRefused unless a directory can be a target: formatted for the same broker and cluster, and readable."""
    properties = target.meta.properties
    if target.unreadable or target.meta.state == "error":
        raise MoveRefused(f"{target.path} cannot be used: {target.unreadable or target.meta.reason}")
    if properties is None:
        raise MoveRefused(
            f"{target.path} has no meta.properties; format it first, or mount its disk (Apache Kafka: kafka-storage "
            f"format --ignore-formatted; a storage node: rehome storage format --ignore-formatted)"
        )
    for other in others:
        theirs = other.meta.properties
        if theirs is not None and (theirs.cluster_id, theirs.node_id) != (properties.cluster_id, properties.node_id):
            raise MoveRefused(
                f"{target.path} belongs to node {properties.node_id} of cluster {properties.cluster_id}, and "
                f"{other.path} to node {theirs.node_id} of cluster {theirs.cluster_id}; correct log.dirs"
            )
    if target.files_say:
        path, reason = target.files_say[0]
        raise MoveRefused(f"{path} is malformed ({reason}) and would lose its entries; remove it first")
