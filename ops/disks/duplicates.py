"""Which of several copies of a replica is kept. Pure.

A copy is kept only when it holds all that the others hold: it is whole, no other has a later record or a higher leader
epoch, and where they overlap their batches are the same. Everything else is left to the operator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ops.disks.found import Copy, DirectoryFound
from storage_node.model.ids import TopicPartition

__all__ = ["Duplicate", "duplicates", "listed", "resolve"]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A replica in several directories: the copy to keep, or None if the copies do not decide it, and why.

    `by_itself`: a storage node's start keeps the one with the highest generation without help.
    """

    tp: TopicPartition
    copies: tuple[Copy, ...]
    keep: Copy | None
    why: str
    by_itself: bool = False

    @property
    def aside(self) -> tuple[Copy, ...]:
        """The copies to set aside."""
        return tuple(copy for copy in self.copies if copy is not self.keep) if self.keep is not None else ()


def duplicates(found: Iterable[DirectoryFound], topics: Mapping[str, str] | None = None) -> list[Duplicate]:
    """Return the replicas that are in several directories, each with the copy to keep.

    `topics`: the topic ids in the metadata that the broker has, by name.
    """
    known = topics or {}
    copies: defaultdict[TopicPartition, list[Copy]] = defaultdict(list)
    ids: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for directory in found:
        for copy in directory.copies:
            copies[copy.tp].append(copy)
    for tp, each in copies.items():
        if len(each) == 1 and each[0].topic_id:
            ids[tp.topic][each[0].topic_id] += 1
    return [
        resolve(each, expected=known.get(tp.topic) or _expected(ids[tp.topic]))
        for tp, each in sorted(copies.items())
        if len(each) > 1
    ]


def _expected(ids: Counter[str]) -> str:
    """Return the topic id that the topic's other replicas agree on; "" if there are none, or two."""
    return next(iter(ids)) if len(ids) == 1 else ""


def resolve(copies: Sequence[Copy], expected: str = "") -> Duplicate:
    """Decide which of several copies of a replica is kept; `expected` is the topic id of the topic's other replicas."""
    tp, every = copies[0].tp, tuple(copies)
    ages = sorted((c.marker.created_epoch, c.marker.generation) if c.marker else (-1, 0) for c in copies)
    if ages[-1] > ages[-2]:
        newest = max(copies, key=lambda c: (c.marker.created_epoch, c.marker.generation) if c.marker else (-1, 0))
        why = "its generation is the highest: the storage node keeps it when it starts"
        return Duplicate(tp, every, newest, why, by_itself=True)
    ids = {copy.topic_id for copy in copies}
    rivals = list(copies)
    if len(ids) > 1:
        rivals = [copy for copy in copies if expected and copy.topic_id == expected]
        if not rivals:
            return Duplicate(tp, every, None, f"they are of different topics with this name: {listed(ids)}")
    others = [copy for copy in copies if copy not in rivals]
    best = max(rivals, key=_rank)
    if not best.log.whole:
        return Duplicate(tp, every, None, "no copy is whole")
    for other in rivals:
        if other is not best and (why := _lacks(best, other)):
            return Duplicate(tp, every, None, why)
    return Duplicate(tp, every, best, _why(best, [c for c in rivals if c is not best], others))


def _rank(copy: Copy) -> tuple[bool, int, int, int, int]:
    log = copy.log
    return log.whole, log.epochs.latest, log.end, -copy.start, copy.created_ns


def _lacks(best: Copy, other: Copy) -> str:
    """Return which records `other` holds, or may hold, and `best` does not; "" for none."""
    where = f"the copy in {other.directory}"
    if other.log.reach > best.log.end:
        return f"{where} has records up to offset {other.log.reach}, the one in {best.directory} up to {best.log.end}"
    if other.log.epochs.latest > best.log.epochs.latest:
        return f"{where} has records of the later leader epoch {other.log.epochs.latest}"
    if other.start < best.start and other.log.whole:
        return f"{where} begins at offset {other.start}, the one in {best.directory} at {best.start}"
    sparse = best.log.sparse or other.log.sparse
    if other.folder not in best.same_as and not sparse:
        return f"{where} has other batches at the same offsets than the one in {best.directory}"
    return ""


def _why(best: Copy, rivals: Sequence[Copy], others: Sequence[Copy]) -> str:
    parts = []
    for copy in rivals:
        if not copy.log.whole:
            parts.append(f"the copy in {copy.directory} is damaged")
        elif copy.log.end < best.log.end:
            parts.append(f"the copy in {copy.directory} ends at offset {copy.log.end}")
        else:
            parts.append(f"the copy in {copy.directory} holds the same records and is older")
    parts += [f"the copy in {copy.directory} is of another topic with this name" for copy in others]
    return f"it is whole up to offset {best.log.end}; " + ", ".join(parts)


def listed(ids: Iterable[str]) -> str:
    """Return ids as text, in their order."""
    return ", ".join(sorted(each or "none" for each in ids))
