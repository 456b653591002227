"""Plays a plan through with a clock of its own: the scheduler's decisions, with assumed durations."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workflows.model.plans.options import PlanOptions
from workflows.model.plans.schedule import Scheduler
from workflows.model.plans.values import Disk, Lane, PlannedMove

#: Lanes beyond which those with the same disks are joined before a plan is played through.
MOST_LANES = 2_000


@dataclass(slots=True)
class Played:
    """What happened: the seconds until the last lane ended, the lanes that never began, and the bytes of each disk.

    `most` and `last` are the bytes that came to a disk less those that left it: at the worst moment and at the end.
    """

    seconds: float = 0.0
    stuck: tuple[int, ...] = ()
    most: dict[Disk, int] = field(default_factory=dict)
    last: dict[Disk, int] = field(default_factory=dict)

    def add(self, disk: Disk, size: int) -> None:
        """Count bytes that a disk receives, or frees if negative."""
        self.last[disk] = self.last.get(disk, 0) + size
        self.most[disk] = max(self.most.get(disk, 0), self.last[disk])


def play(
    lanes: Sequence[Lane],
    options: PlanOptions,
    seconds_of: Callable[[Lane], float],
    free: Mapping[Disk, int] | None = None,
    leaves: Callable[[Lane], Mapping[Disk, int]] | None = None,
) -> Played:
    """Play lanes through. `seconds_of` is a lane's duration, `free` the space that they may fill, unlimited without it.

    A lane's space on its targets is reserved when it begins; `leaves` are the bytes that it frees when it ends.
    """
    by_number = {lane.number: lane for lane in lanes}
    scheduler, room = Scheduler(lanes, options), dict(free or {})
    played, now = Played(), 0.0
    ends: list[tuple[float, int]] = []
    while True:
        for number in scheduler.choose(room, {}):
            lane = by_number[number]
            for disk, need in lane.needs.items():
                played.add(disk, need)
                if disk in room:
                    room[disk] -= need
            heapq.heappush(ends, (now + seconds_of(lane), number))
        if not ends:
            break
        now, number = heapq.heappop(ends)
        scheduler.end(number)
        for disk, size in (leaves(by_number[number]) if leaves is not None else {}).items():
            played.add(disk, -size)
            if disk in room:
                room[disk] += size
    played.seconds, played.stuck = now, scheduler.waiting
    return played


def coarse(lanes: Sequence[Lane], most: int = MOST_LANES) -> tuple[Lane, ...]:
    """Join lanes of one group with the same disks, so that about `most` are left, or one for each set of disks."""
    if len(lanes) <= most:
        return tuple(lanes)
    share = -(-sum(max(1, lane.size) for lane in lanes) // most)
    joined: list[tuple[int, list[PlannedMove]]] = []
    last: dict[tuple[int, frozenset[Disk], frozenset[Disk]], tuple[int, int]] = {}  # by disks: lane, its bytes
    for lane in lanes:
        key = (lane.group, lane.reads, lane.writes)
        at, size = last.get(key, (-1, 0))
        if at < 0 or size + lane.size > share:
            at, size = len(joined), 0
            joined.append((lane.group, []))
        last[key] = at, size + max(1, lane.size)
        joined[at][1].extend(lane.moves)
    return tuple(Lane(number, tuple(moves), group) for number, (group, moves) in enumerate(joined))
