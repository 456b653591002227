"""The space of a plan: what each disk has before, at its worst moment, and after; and which disks it would overfill.

A replica that moves between directories needs its bytes on the target while its source still has them. A broker that
chooses the directory of a replica itself is checked as a whole, and each of its directories for each lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workflows.model.move.parameter import ANY
from workflows.model.plans.lanes import left_by
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.simulate import coarse, play
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, Disk, Lane

#: Lanes that are played with their slots; of larger plans, only the space is played.
MOST_LANES = 3_000


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A disk that a plan reads or writes, in bytes: used in all, as its file system reports it, and usable.

    `usable` is -1 if the broker does not report it. The directory "any" of a broker is all of its directories together.
    """

    disk: Disk
    used_before: int
    usable_before: int
    used_worst: int
    used_after: int

    @property
    def usable_worst(self) -> int:
        """Return the usable bytes at the worst moment, negative if the disk would be overfilled, -1 if unknown."""
        return self._usable(self.used_worst)

    @property
    def usable_after(self) -> int:
        """Return the usable bytes after the plan, -1 if unknown."""
        return self._usable(self.used_after)

    def _usable(self, used: int) -> int:
        if self.usable_before == UNKNOWN_SIZE:
            return UNKNOWN_SIZE
        return self.usable_before - (used - self.used_before)


@dataclass(frozen=True, slots=True)
class Space:
    """The disks of a plan in order, and the lanes that would never begin for want of space."""

    disks: tuple[DiskSpace, ...]
    stuck: tuple[int, ...] = ()


def free_of(view: ClusterView, lanes: Iterable[Lane] = ()) -> dict[Disk, int]:
    """Return the usable bytes of the directories that are online and report them.

    Less what copies of other clients have yet to write: those that are not of these lanes, which count their own.
    """
    found = {
        disk: held.usable for disk, held in view.directories.items() if held.usable != UNKNOWN_SIZE and not held.error
    }
    own = {(disk.node, move.partition) for lane in lanes for move in lane.moves for disk in sorted(move.writes)}
    for (node, tp), future in view.futures.items():
        placed = view.replicas.get((node, tp))
        if placed is not None and (node, tp) not in own:
            _reserve(found, Disk(node, future.path), placed.size - future.size)
    for tp, state in view.partitions.items():
        for node in state.adding:
            placed = view.replicas.get((node, tp))
            if placed is not None and (node, tp) not in own:
                _reserve(found, Disk(node, placed.path), view.size_of(tp) - placed.size)
    return found


def reserve(free: dict[Disk, int], disk: Disk, size: int) -> None:
    """Take bytes off a disk, or off each directory of a broker that has yet to choose one of them ("any")."""
    for each in [one for one in free if one.node == disk.node] if disk.path == ANY else [disk]:
        if each in free:
            free[each] -= size


def _reserve(free: dict[Disk, int], disk: Disk, size: int) -> None:
    if disk in free and size > 0:
        free[disk] = max(0, free[disk] - size)


def space_of(lanes: Sequence[Lane], view: ClusterView, options: PlanOptions) -> Space:
    """Compute the space of a plan by playing it through with durations in proportion to the bytes."""
    free = free_of(view, lanes)
    played = play(
        coarse(lanes, MOST_LANES),
        options,
        lambda lane: max(lane.loads.values(), default=0),
        free,
        lambda lane: leaving(lane, view),
    )
    stuck = played.stuck if len(lanes) <= MOST_LANES else _without_space(lanes, free, view)
    after: dict[Disk, int] = {}
    for lane in lanes:
        for disk, size in lane.needs.items():
            after[disk] = after.get(disk, 0) + size
        for disk, size in leaving(lane, view).items():
            after[disk] = after.get(disk, 0) - size
    rows = [_row(disk, change, max(change, played.most.get(disk, 0)), view) for disk, change in sorted(after.items())]
    return Space(tuple(rows), stuck)


def _without_space(lanes: Sequence[Lane], free: Mapping[Disk, int], view: ClusterView) -> tuple[int, ...]:
    """Return the lanes that find no space when they are carried out one after the other, over and over."""
    room, left = dict(free), list(lanes)
    of_node: dict[int, list[Disk]] = {}
    for disk in sorted(free):
        of_node.setdefault(disk.node, []).append(disk)
    while True:
        waiting: list[Lane] = []
        for lane in left:
            needs = [
                (target, need)
                for disk, need in lane.needs.items()
                for target in (of_node.get(disk.node, []) if disk.path == ANY else [disk])
                if target in room
            ]
            if any(need > room[target] for target, need in needs):
                waiting.append(lane)
                continue
            for target, need in needs:
                room[target] -= need
            for disk, size in leaving(lane, view).items():
                if disk in room:
                    room[disk] += size
        if len(waiting) in (0, len(left)):
            return tuple(lane.number for lane in waiting)
        left = waiting


def leaving(lane: Lane, view: ClusterView) -> dict[Disk, int]:
    """Return the bytes that the moves of a lane free when they end."""
    found: dict[Disk, int] = {}
    for move in lane.moves:
        for disk in left_by(move, view):
            placed = view.replicas.get((disk.node, move.partition))
            if placed is not None and placed.size != UNKNOWN_SIZE:
                found[disk] = found.get(disk, 0) + placed.size
    return found


def _row(disk: Disk, change: int, most: int, view: ClusterView) -> DiskSpace:
    held = [each for each in view.directories.values() if each.disk == disk or disk == Disk(each.disk.node, ANY)]
    known = [each for each in held if each.usable != UNKNOWN_SIZE and each.total != UNKNOWN_SIZE]
    if known and len(known) == len(held):
        usable = sum(each.usable for each in known)
        used = sum(each.total for each in known) - usable
    else:
        usable, used = UNKNOWN_SIZE, _of_replicas(disk, view)
    return DiskSpace(disk, used, usable, used + most, used + change)


def _of_replicas(disk: Disk, view: ClusterView) -> int:
    held = ((node, placed) for (node, _), placed in view.replicas.items() if node == disk.node)
    return sum(max(0, placed.size) for _, placed in held if disk.path in (ANY, placed.path))


def overfull(space: Space, lanes: Iterable[Lane], reserve: int = 0) -> tuple[str, ...]:
    """Return the sentences of `full_disks`."""
    return tuple(full_disks(space, lanes, reserve).values())


def full_disks(space: Space, lanes: Iterable[Lane], reserve: int = 0) -> dict[Disk, str]:
    """Return a sentence for each disk that the plan would overfill, or leave with less than `reserve` usable bytes.

    Also for each disk whose lanes would never begin, since what they need is never free at once.
    """
    found: dict[Disk, str] = {}
    for each in space.disks:
        if each.usable_before == UNKNOWN_SIZE or each.usable_worst >= reserve or each.used_worst <= each.used_before:
            continue
        kept = f", of which {reserve} are to be kept" if reserve else ""
        found[each.disk] = (
            f"{_name(each.disk)} would be overfilled: {each.usable_before} bytes are usable{kept}, but "
            f"{each.used_worst - each.used_before} more are needed at the worst moment and "
            f"{max(0, each.used_after - each.used_before)} after the plan; choose another target for "
            f"{reserve - each.usable_worst} bytes"
        )
    by_number = {lane.number: lane for lane in lanes}
    lacking: dict[Disk, tuple[int, int]] = {}
    for number in space.stuck:
        for disk, need in by_number[number].needs.items():
            count, largest = lacking.get(disk, (0, 0))
            lacking[disk] = count + 1, max(largest, need)
    usable: Mapping[Disk, int] = {each.disk: each.usable_before for each in space.disks}
    for disk, (count, largest) in sorted(lacking.items()):
        if disk not in found:
            found[disk] = (
                f"{_name(disk)}: {count} {'lane' if count == 1 else 'lanes'} of the plan would never begin: up to "
                f"{largest} bytes are needed at once, {usable.get(disk, UNKNOWN_SIZE)} are usable now, and no other "
                "lane frees enough first; move in two steps, or free space"
            )
    return found


def _name(disk: Disk) -> str:
    return f"broker {disk.node}, which chooses the directory," if disk.path == ANY else f"disk {disk}"
