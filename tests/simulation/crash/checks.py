"""What must hold after any start, told from the disks and from what was promised, not from what the node says."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from storage_node.directories import names, partition_metadata
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import CorruptRecord
from storage_node.log.batches.batch import headers
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, Reason, State
from tests.simulation import inodes
from tests.simulation.crash.node import TP, VALUE, values_in
from tests.simulation.crash.world import Life, Truth, World


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """A folder of the partition: where, what its name and its marker say, and what it holds."""

    disk: str
    name: str
    kind: str
    marker: Marker | None
    corrupt: bool
    topic_id: str
    start: int
    values: tuple[bytes, ...]
    unborn: bool
    """Without marker and segments: its creation did not come to its end."""

    @property
    def whole(self) -> bool:
        """Whether it once was all of the replica, and is not being removed."""
        marker = self.marker
        if self.corrupt:
            return self.kind == "current"
        if self.kind == "current":
            # With a swap's last word in its marker it was on its way to be a `.delete`.
            given_up = marker is not None and marker.state is State.DELETED and marker.reason == Reason.SWAP
            return marker is None or marker.state in (State.CURRENT, State.SEALED) or given_up
        if marker is None:
            return False
        if self.kind == "move":
            return marker.state is State.SEALED
        settled = (State.CURRENT, State.SEALED, State.DELETED)
        return marker.state in settled and marker.reason in ("", Reason.SWAP)

    def promised(self, truth: Truth) -> int:
        """How many of the acknowledged records, from offset 0, are here or were rightly deleted."""
        if self.start > truth.start:
            return 0
        end = self.start + len(self.values)
        for offset in range(max(self.start, truth.start), min(end, len(truth.acked))):
            if self.values[offset - self.start] != truth.acked[offset]:
                return offset
        return min(end, len(truth.acked))

    def summary(self) -> tuple[object, ...]:
        """What a start decides by."""
        m = self.marker
        told = () if m is None else (m.state, m.reason, m.generation, m.claim)
        return (self.disk, self.kind, self.topic_id, self.corrupt, told)


def copies(states: Mapping[str, inodes.State]) -> list[FoundCopy]:
    """All folders of the partition on these disks."""
    found = []
    for disk, state in states.items():
        for name, inode in sorted(state.root.entries.items()):
            if inode.is_dir:
                files = inode.entries.items()
                told = tuple(sorted((n, bytes(i.content)) for n, i in files if n in _TELLING or n.endswith(".log")))
                copy = _copy(disk, name, told)
                if copy is not None:
                    found.append(copy)
    return found


_TELLING = frozenset({markers.NAME, partition_metadata.FILE})


@functools.lru_cache(maxsize=1 << 16)
def _copy(disk: str, name: str, told: tuple[tuple[str, bytes], ...]) -> FoundCopy | None:
    kind, files = names.parse(name).kind, dict(told)
    marker, corrupt = None, False
    if markers.NAME in files:
        try:
            marker = markers.decode(files[markers.NAME], name)
        except markers.MarkerCorrupt:
            corrupt = True
    metadata = files.get(partition_metadata.FILE, b"")
    topic_id = partition_metadata.decode(metadata) if metadata else ""
    start, values = _values(files)
    if (names.parse(name).tp or (marker.tp if marker is not None else None)) != TP:
        return None
    whose = topic_id or (marker.topic_id if marker else "")
    unborn = marker is None and not corrupt and not any(name.endswith(".log") for name in files)
    return FoundCopy(disk, name, kind, marker, corrupt, whose, start, values, unborn)


def _values(files: Mapping[str, bytes]) -> tuple[int, tuple[bytes, ...]]:
    logs = sorted(name for name in files if name.endswith(".log"))
    start = int(logs[0][:20]) if logs else 0
    values: list[bytes] = []
    for name in logs:
        if int(name[:20]) != start + len(values):
            break
        try:
            for position, header in headers(files[name]):
                end = position + header.length - 1
                values.append(files[name][end - VALUE : end])
        except CorruptRecord:
            break
    return start, tuple(values)


def best(found: Iterable[FoundCopy], truth: Truth) -> int:
    """The most promised records that any whole copy of the topic holds; -1 when there is no copy."""
    return max((c.promised(truth) for c in found if c.whole and c.topic_id in ("", truth.topic_id)), default=-1)


class Violation(AssertionError):
    """Something that must never happen; says after what."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a start on a world has to come to, taken before it.

    `best` is what the best copy holds that is there; `online`: nothing was ever taken away for good, and every disk is
    there that holds anything of the partition, or that the metadata assigns to it. `places` are the disks with a copy
    of the topic: one that the operator takes away for good, before the controller heard of it, may be followed by an
    empty one elsewhere. What is left there of another topic of that name is no copy: the disks that are left are then
    those of a replica that was not made yet, and have to be answered in the same way.
    """

    best: int
    online: bool
    needed: int
    places: frozenset[str]

    @classmethod
    def of(cls, world: World, away: frozenset[str]) -> Expected:
        """Of a world some of whose disks are not there."""
        truth = world.truth
        there = copies({name: state for name, state in world.disks.items() if name not in away})
        found = [copy for copy in there if copy.topic_id in ("", truth.topic_id)]
        here = best(_newest(found) if truth.lost else found, truth)
        needed = min(truth.needed, max(here, 0)) if truth.lost else truth.needed
        every = not away or (here >= 0 and not any(_concerned(world, name) for name in away))
        places = frozenset(copy.disk for copy in found)
        return cls(here, every and not truth.lost and bool(truth.topic_id), needed, places)


def _newest(found: list[FoundCopy]) -> list[FoundCopy]:
    """The whole copies that no other has overtaken: of a disk that is older than the others nothing else is asked."""
    ages = [(copy.marker.generation if copy.marker is not None else 0, copy) for copy in found if copy.whole]
    return [copy for age, copy in ages if age == max(ages, key=lambda pair: pair[0])[0]]


def _concerned(world: World, disk: str) -> bool:
    """Whether a disk has to do with the partition: holds anything of it, or is the one that some image assigns."""
    state = world.disks[disk]
    if copies({disk: state}):
        return True
    row = world.truth.image.partition(TP)
    file = state.root.entries[meta_properties.FILE]
    own = meta_properties.decode(bytes(file.content)).directory_id
    return row is not None and row.directory_of(1) == own


def check_started(life: Life, expected: Expected, *, heard: bool) -> None:
    """After a start: what is served is whole, there is one of it, and it is there if it can be."""
    truth = life.truth
    partition = life.node.served
    here = {name: disk.state for name, disk in life.machine.disks.items() if not disk.faults}
    if partition is not None and truth.topic_id and partition.topic_id == truth.topic_id and not partition.offline:
        start, values = values_in(partition.log)
        made = partition.directory.path.name not in expected.places
        if expected.best < 0 and truth.acked and not heard:
            if not (truth.lost and made):
                raise Violation(f"served from {partition.log.path}, where no whole copy is left")
            if (start, values) != (0, ()):
                raise Violation(f"served from {partition.log.path} with records, which no copy there has")
        _check_served(truth, start, values, expected)
        current = [c for c in copies(here) if c.kind == "current"]
        if len(current) != 1:
            raise Violation(f"{len(current)} current copies: {[(c.disk, c.name) for c in current]}")
    elif expected.online and (heard or expected.best >= 0):
        reason = life.node.replicas.offline.get(TP, "absent")
        raise Violation(f"every disk is there and the partition is not online: {reason}")
    if heard and partition is not None and partition.topic_id != truth.topic_id and not partition.offline:
        raise Violation(f"a topic that was deleted is served: {partition.topic_id}")


def _check_served(truth: Truth, start: int, values: tuple[bytes, ...], expected: Expected) -> None:
    if start > truth.start and start > 0:
        raise Violation(f"the log starts at {start}, records from {truth.start} on were not deleted")
    end = start + len(values)
    for offset in range(max(start, truth.start), end):
        value = values[offset - start]
        right = truth.acked[offset] if offset < len(truth.acked) else truth.tried
        if truth.lost and value.startswith(b"%05d." % offset):
            continue  # of the copies that are left one may have been overtaken
        if value != right:
            raise Violation(f"offset {offset} has {value!r} instead of {right!r}")
    if end < expected.needed:
        raise Violation(f"served up to {end}, promised up to {expected.needed} ({len(truth.acked)} acknowledged)")


def settle(life: Life) -> None:
    """What is served now is what counts from here on."""
    truth, partition = life.truth, life.node.served
    if partition is None or not life.online:
        return
    start, values = values_in(partition.log)
    acked = (*truth.acked[:start], *values)
    life.truth = replace(
        truth,
        acked=acked,
        needed=len(acked),
        flushed=min(truth.flushed, len(acked)),
        tried=b"",
        start=min(truth.start, len(acked)),
    )


def check_kept(life: Life, world: World, expected: Expected) -> None:
    """After deletions: what was the best copy is still there, or a better one."""
    truth = life.truth
    if not truth.topic_id or truth.topic_id != world.truth.topic_id or expected.best < 0:
        return
    states = {**world.disks, **{name: disk.state for name, disk in life.machine.disks.items()}}
    now = best(copies(states), world.truth)
    before = min(expected.needed, max(expected.best, 0))
    if now < before:
        raise Violation(f"the best copy holds {now} records, before the start it was {before}")


def check_gone(life: Life) -> None:
    """After a start that knows of the topic's deletion: nothing is left of it where it can be reached.

    A folder that does not tell its topic is left alone; it may be of another.
    """
    here = {name: disk.state for name, disk in life.machine.disks.items() if not disk.faults}
    left = [(c.disk, c.name) for c in copies(here) if c.kind in ("current", "move") and c.topic_id]
    if left:
        raise Violation(f"left of a deleted topic: {left}")
