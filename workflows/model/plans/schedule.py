"""Decides which lanes of a plan begin now: slots of disks, nodes and the cluster, and space on the targets.

A lane takes a slot of every disk that it reads or writes, and of every node with such a disk. Where the broker chooses
the directory ("any"), the lane takes a slot of the node in place of the disk's, and must fit into each of the node's
directories, since the broker chooses by the number of replicas and not by space. Lanes that copy nothing share slots.

Among the lanes that can begin, a lower group begins first, then the lane with the disk that has the most bytes left,
then the lower number: the busiest disk bounds the duration of the whole plan, so its slots must never be idle.
A higher group uses the slots that a lower one leaves, but not for ever: a lane of several disks would else wait for a
moment in which all of them are idle. After `PATIENCE` lanes of higher groups, the slots of a disk are kept for the
lower group.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from storage_node.model.ids import NO_LEADER
from workflows.model.move.parameter import ANY
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.values import Disk, Lane

#: The disk of lanes that copy nothing.
NOTHING = Disk(NO_LEADER, "")
#: Lanes of higher groups that may begin on a disk while a lane of a lower group waits for it.
PATIENCE = 4


def choose(
    lanes: Collection[Lane],
    *,
    done: Set[int],
    running: Set[int],
    options: PlanOptions,
    free: Mapping[Disk, int],
    taken: Mapping[Disk, int] | None = None,
) -> tuple[int, ...]:
    """Return the numbers of the lanes that begin now. For one decision; `Scheduler` is for many."""
    return Scheduler(lanes, options, done=done, running=running).choose(free, taken or {})


def waiting_for(
    lane: Lane,
    lanes: Collection[Lane],
    *,
    done: Set[int],
    running: Set[int],
    options: PlanOptions,
    free: Mapping[Disk, int],
    taken: Mapping[Disk, int] | None = None,
) -> str:
    """Return what a lane waits for, a slot or space, in words; "" if nothing holds it back."""
    return Scheduler(lanes, options, done=done, running=running).waiting_for(lane.number, free, taken or {})


@dataclass(slots=True)
class _Route:
    """Lanes with the same disks, by index, and nodes; `pending` is sorted by group and number."""

    disks: tuple[int, ...]
    nodes: tuple[int, ...]
    pending: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """The lanes of a plan, and the slots that its running lanes take.

    Deterministic: the state follows from the lanes, `done`, `running` and the order of calls. A call costs time in
    proportion to what has changed since the one before: the routes of disks that have a slot or space again.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        options: PlanOptions,
        *,
        done: Set[int] = frozenset(),
        running: Set[int] = frozenset(),
    ) -> None:
        self._options = options
        self._lanes = {lane.number: lane for lane in lanes if lane.number not in done}
        self._disks: list[Disk] = []
        self._index: dict[Disk, int] = {}
        self._routes: list[_Route] = []
        self._routes_of: list[list[int]] = []  # by disk
        self._route_of: dict[int, int] = {}  # by lane
        self._loads: dict[int, tuple[tuple[int, int], ...]] = {}  # by lane: disk, bytes
        self._needs: dict[int, tuple[tuple[int, int], ...]] = {}
        self._left: list[int] = []  # by disk: bytes of the lanes that have not begun
        self._used: list[int] = []
        self._used_of_node: dict[int, int] = {}
        self._groups: list[dict[int, int]] = []  # by disk: how many lanes of each group have not begun
        self._passed: list[int] = []  # by disk: how many lanes of higher groups have begun since one of the lowest
        self._running: set[int] = set()
        self._fresh: dict[int, None] = {}  # routes to check
        self._short: dict[int, dict[int, int]] = {}  # by route whose lanes lack space: what its targets had free
        self._taken: dict[int, int] = {}  # by disk
        self._taken_of_node: dict[int, int] = {}
        self._directories: dict[int, int] = {}  # by node: how many report their space
        self._add_all(running)

    # --- what is there

    def _add_all(self, running: Set[int]) -> None:
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        for lane in sorted(self._lanes.values(), key=lambda each: (each.group, each.number)):
            loads = lane.loads or {NOTHING: 0}
            self._loads[lane.number] = held = tuple((self._disk(disk), size) for disk, size in loads.items())
            self._needs[lane.number] = tuple((self._disk(disk), size) for disk, size in lane.needs.items())
            nodes = tuple(dict.fromkeys(disk.node for disk in loads if disk != NOTHING))
            key = (tuple(disk for disk, _ in held), nodes)
            if key not in found:
                found[key] = len(self._routes)
                self._routes.append(_Route(*key))
                for disk in key[0]:
                    self._routes_of[disk].append(found[key])
            self._route_of[lane.number] = found[key]
            if lane.number in running:
                self._take(lane.number)
            else:
                self._routes[found[key]].pending.append((lane.group, lane.number))
                self._count_pending(lane.number, 1)
        self._fresh = dict.fromkeys(range(len(self._routes)))

    def _disk(self, disk: Disk) -> int:
        at = self._index.get(disk)
        if at is None:
            at = self._index[disk] = len(self._disks)
            self._disks.append(disk)
            self._left.append(0)
            self._used.append(0)
            self._groups.append({})
            self._passed.append(0)
            self._routes_of.append([])
        return at

    @property
    def running(self) -> Set[int]:
        """Return the numbers of the lanes that run."""
        return self._running

    @property
    def pending(self) -> int:
        """Return how many lanes have not begun."""
        return len(self._lanes) - len(self._running)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the numbers of the lanes that have not begun, in order."""
        return tuple(number for number in sorted(self._lanes) if number not in self._running)

    # --- what happens

    def begin(self, number: int) -> None:
        """Count a lane as running. Lanes that `choose` returned are counted already."""
        if number in self._running or number not in self._lanes:
            return
        route = self._routes[self._route_of[number]]
        route.pending.remove((self._lanes[number].group, number))
        self._count_pending(number, -1)
        self._take(number)

    def _count_pending(self, number: int, change: int) -> None:
        group = self._lanes[number].group
        for disk, size in self._loads[number]:
            self._left[disk] += change * size
            groups = self._groups[disk]
            groups[group] = groups.get(group, 0) + change
            if not groups[group]:
                del groups[group]

    def _take(self, number: int) -> None:
        self._running.add(number)
        route = self._routes[self._route_of[number]]
        for disk in route.disks:
            self._used[disk] += 1
        for node in route.nodes:
            self._used_of_node[node] = self._used_of_node.get(node, 0) + 1

    def end(self, number: int) -> None:
        """Give back the slots of a lane that has ended, with whatever outcome, or take out one that will not begin."""
        if number not in self._lanes:
            return
        self.begin(number)
        self._give(number)
        del self._lanes[number]

    def put_back(self, number: int) -> None:
        """Make a running lane pending again: it was paused, or not started after all."""
        if number not in self._running:
            return
        self._give(number)
        insort(self._routes[self._route_of[number]].pending, (self._lanes[number].group, number))
        self._count_pending(number, 1)

    def sync(self, done: Set[int], running: Set[int]) -> None:
        """Take over what has happened elsewhere: lanes that have ended, run, or wait again.

        A scheduler that is kept between decisions costs what has changed; a new one costs the whole plan.
        """
        for number in [each for each in self._lanes if each in done]:
            self.end(number)
        for number in [each for each in self._lanes if (each in running) != (each in self._running)]:
            if number in running:
                self.begin(number)
            else:
                self.put_back(number)

    def _give(self, number: int) -> None:
        self._running.discard(number)
        route = self._routes[self._route_of[number]]
        for disk in route.disks:
            self._used[disk] -= 1
            self._fresh.update(dict.fromkeys(self._routes_of[disk]))
        for node in route.nodes:
            self._used_of_node[node] -= 1
            if self._options.slots_per_broker is not None:
                self._look_at_node(node)

    def _look_at_node(self, node: int) -> None:
        for at, disk in enumerate(self._disks):
            if disk.node == node:
                self._fresh.update(dict.fromkeys(self._routes_of[at]))

    # --- what begins

    def choose(self, free: Mapping[Disk, int], taken: Mapping[Disk, int], most: int | None = None) -> tuple[int, ...]:
        """Return the lanes that begin now, at most `most`, in their order; from now on they count as running.

        `free` are the usable bytes of the directories less what running lanes have yet to write; the space of a
        directory that it lacks is not checked. `taken` are the slots that other plans use; a lane of theirs between two
        disks of a node counts twice for `slots_per_broker`.
        """
        room = self._see(free, taken)
        heap: list[tuple[int, int, int, int]] = []
        for at in self._fresh:
            self._offer(at, room, heap)
        self._fresh = {}
        chosen: list[int] = []
        while heap:
            group, load, number, at = heapq.heappop(heap)
            if self._cluster_full() or len(chosen) == most:
                self._fresh[at] = None
                continue
            now = -self._load(number)
            if now > load and heap and (group, now, number, at) > heap[0]:
                heapq.heappush(heap, (group, now, number, at))
                continue
            if self._slot_problem(at) is None and self._space_problem(number, room) is None:
                if self._kept_for_lower(at, group, room) is not None:
                    self._fresh[at] = None
                    continue
                self._pass(at, group)
                self.begin(number)
                chosen.append(number)
                self._reserve(number, room)
            self._offer(at, room, heap)
        return tuple(chosen)

    def _pass(self, at: int, group: int) -> None:
        for disk in self._routes[at].disks:
            lower = min(self._groups[disk]) < group
            self._passed[disk] = self._passed[disk] + 1 if lower else 0

    def _kept_for_lower(self, at: int, group: int, room: _Room) -> int | None:
        """Return a disk of a route whose slots are kept for a lane of a lower group: one that lacks only slots."""
        for disk in self._routes[at].disks:
            if self._passed[disk] < PATIENCE or min(self._groups[disk]) >= group:
                continue
            for other in self._routes_of[disk]:
                for lower, number in self._routes[other].pending:
                    if lower >= group:
                        break
                    if self._space_problem(number, room) is None:
                        return disk
        return None

    def _see(self, free: Mapping[Disk, int], taken: Mapping[Disk, int]) -> _Room:
        """Note which slots and how much space have come back since the last call."""
        new = {self._disk(disk): slots for disk, slots in taken.items() if slots > 0}
        lower = [disk for disk, slots in self._taken.items() if new.get(disk, 0) < slots]
        self._taken, self._taken_of_node = new, {}
        for disk, slots in new.items():
            node = self._disks[disk].node
            self._taken_of_node[node] = self._taken_of_node.get(node, 0) + slots
        for disk in lower:
            self._fresh.update(dict.fromkeys(self._routes_of[disk]))
            if self._options.slots_per_broker is not None:
                self._look_at_node(self._disks[disk].node)
        room = _Room(self, free)
        counts = {node: len(disks) for node, disks in room.of_node.items()}
        if counts != self._directories:
            self._directories = counts
            self._fresh = dict.fromkeys(range(len(self._routes)))
        for at, had in list(self._short.items()):
            if any(room.free.get(target, left + 1) > left for target, left in had.items()):
                del self._short[at]
                self._fresh[at] = None
        return room

    def _offer(self, at: int, room: _Room, heap: list[tuple[int, int, int, int]]) -> None:
        """Put the first lane of a route that can begin on the heap."""
        route = self._routes[at]
        if not route.pending or self._slot_problem(at) is not None:
            return
        for group, number in route.pending:
            if self._space_problem(number, room) is None:
                heapq.heappush(heap, (group, -self._load(number), number, at))
                return
        targets = {
            target
            for _, number in route.pending
            for disk, _ in self._needs[number]
            for target in room.targets(self._disks[disk], disk)
        }
        self._short[at] = {target: room.free[target] for target in sorted(targets) if target in room.free}

    def _load(self, number: int) -> int:
        return max(self._left[disk] for disk, _ in self._loads[number])

    def _cluster_full(self) -> bool:
        slots = self._options.slots_cluster
        return slots is not None and len(self._running) >= slots

    def _slots_of(self, disk: Disk) -> int:
        if disk.path != ANY or disk == NOTHING:
            return self._options.slots_per_disk
        if self._options.slots_per_broker is not None:
            return self._options.slots_per_broker
        return self._options.slots_per_disk * max(1, self._directories.get(disk.node, 1))

    def _slot_problem(self, at: int) -> str | None:
        """Return which slot the lanes of a route lack."""
        route, limit = self._routes[at], self._options.slots_per_broker
        for disk in route.disks:
            taken = self._taken.get(disk, 0)
            slots = self._slots_of(self._disks[disk])
            if self._used[disk] + taken >= slots:
                return _slot_words(self._disks[disk], slots, self._used[disk], taken)
        if limit is not None:
            for node in route.nodes:
                used, taken = self._used_of_node.get(node, 0), self._taken_of_node.get(node, 0)
                if used + taken >= limit:
                    return _of_limit(f"broker {node}", limit, used, taken)
        return None

    def _space_problem(self, number: int, room: _Room) -> str | None:
        for disk, need in self._needs[number]:
            for target in room.targets(self._disks[disk], disk):
                left = room.free.get(target)
                if left is not None and need > left:
                    return _space_words(self._disks[disk], self._disks[target], need, left)
        return None

    def _reserve(self, number: int, room: _Room) -> None:
        for disk, need in self._needs[number]:
            for target in room.targets(self._disks[disk], disk):
                if target in room.free:
                    room.free[target] -= need

    def waiting_for(self, number: int, free: Mapping[Disk, int], taken: Mapping[Disk, int]) -> str:
        """Return what a pending lane waits for, in words; "" if it runs, has ended, or can begin."""
        if number not in self._lanes or number in self._running:
            return ""
        room = self._see(free, taken)
        if self._cluster_full():
            return _of_limit("the cluster", self._options.slots_cluster or 0, len(self._running), 0)
        at = self._route_of[number]
        problem = self._slot_problem(at) or self._space_problem(number, room)
        if problem is not None:
            return problem
        disk = self._kept_for_lower(at, self._lanes[number].group, room)
        return f"waiting for lanes that the order puts first on disk {self._disks[disk]}" if disk is not None else ""


class _Room:
    """The free bytes of the disks, by index, and the directories of each node."""

    def __init__(self, scheduler: Scheduler, free: Mapping[Disk, int]) -> None:
        self.free: dict[int, int] = {}
        self.of_node: dict[int, list[int]] = {}
        for disk, left in sorted(free.items()):
            at = scheduler._disk(disk)
            self.free[at] = left
            self.of_node.setdefault(disk.node, []).append(at)

    def targets(self, disk: Disk, at: int) -> list[int]:
        """Return the directories that a copy to a disk may be written to."""
        return self.of_node.get(disk.node, []) if disk.path == ANY else [at]


def _slot_words(disk: Disk, slots: int, used: int, taken: int) -> str:
    if disk == NOTHING:
        return "waiting for another lane that copies nothing to end"
    where = f"broker {disk.node}, which chooses the directory" if disk.path == ANY else f"disk {disk}"
    return _of_limit(where, slots, used, taken)


def _of_limit(where: str, slots: int, used: int, taken: int) -> str:
    by = [f"{used} by lanes of this plan" if used else "", f"{taken} by other plans" if taken else ""]
    return (
        f"waiting for a slot of {where}: {'its only slot is' if slots == 1 else f'its {slots} slots are'} "
        f"in use, {' and '.join(filter(None, by))}"
    )


def _space_words(disk: Disk, target: Disk, need: int, left: int) -> str:
    if disk.path == ANY:
        return (
            f"waiting for space on broker {disk.node}, which chooses the directory: needs {need} bytes in each, but "
            f"{target} has {max(0, left)} that are not reserved; name a directory in log_dirs, or free space"
        )
    return (
        f"waiting for space on disk {target}: needs {need} bytes, has {max(0, left)} that are not reserved; "
        "free space there, or raise the order of moves that leave it"
    )
