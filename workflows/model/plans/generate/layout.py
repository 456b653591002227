"""The replicas of a cluster while a plan for them is made, and the plan that comes out.

Space is counted for the worst moment: a copy needs its bytes on the target, and what leaves a disk frees nothing for
the same plan, since its lanes may run in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, Disk


class PlanRefused(ValueError):
    """No plan does what was requested; `reasons` are sentences with the numbers."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan is worth, and what it must keep. All in percent."""

    min_benefit: float = 1.0
    """A balance that takes less of all bytes to where they belong is not worth its moves."""
    min_density: float = 5.0
    """Disks that are on average less full than that are left alone: moving a little between them gains nothing."""
    tolerance: float = 1.0
    """A disk or broker that has at most so much more or less than its share counts as balanced."""
    keep_free: float = 5.0
    """The part of each disk that stays usable at the worst moment."""
    fewer_racks: bool = False
    """Whether a partition's replicas may end on fewer racks than they are on now."""


@dataclass(frozen=True, slots=True)
class GeneratedPlan:
    """A plan and what it is good for. Imbalance is the percentage of bytes that are not where an even share is."""

    document: PlanDocument
    bytes: int
    before: float
    after: float
    skipped: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def nothing_to_do(self) -> bool:
        """Return whether the plan has no partition."""
        return not self.document.partitions


@dataclass(frozen=True, order=True, slots=True)
class Item:
    """A replica that may move. Sorts by size, then by name."""

    size: int
    partition: TopicPartition
    node: int
    path: str
    leads: bool = False

    @property
    def disk(self) -> Disk:
        """Return the disk that has the replica."""
        return Disk(self.node, self.path)


class Layout:
    """The replicas where the plan puts them. A replica moves at most once."""

    def __init__(self, view: ClusterView, limits: Limits) -> None:
        self.view, self.limits = view, limits
        self.disks = sorted(
            disk for disk, held in view.directories.items() if not held.error and self.responds(disk.node)
        )
        self.of_node: dict[int, list[Disk]] = {}
        for disk in self.disks:
            self.of_node.setdefault(disk.node, []).append(disk)
        self.free = {disk: self._free(disk) for disk in self.disks}
        self.replicas = {tp: list(state.target) for tp, state in view.partitions.items()}
        self.moved: dict[tuple[TopicPartition, int], Disk] = {}
        self.made: list[tuple[Item, Disk]] = []
        self._offline = sorted({disk.node for disk, held in view.directories.items() if held.error})

    @property
    def bytes(self) -> int:
        """Return the bytes that the plan copies."""
        return sum(item.size for item, _ in self.made)

    def responds(self, node: int) -> bool:
        """Return whether a broker is registered and returned its log directories."""
        held = self.view.nodes.get(node)
        return held is not None and held.responds

    def moves_inside(self, node: int) -> bool:
        """Return whether a broker can move replicas between its directories: Kafka needs all of them online."""
        return node not in self._offline

    def _free(self, disk: Disk) -> int | None:
        """Return the bytes that a disk may receive, None if its space is unknown."""
        held = self.view.directories[disk]
        if held.usable == UNKNOWN_SIZE:
            return None
        return max(0, held.usable - int(max(0, held.total) * self.limits.keep_free / 100))

    def busy(self, tp: TopicPartition) -> bool:
        """Return whether a reassignment or a move between directories of the partition is in progress.

        A copy whose broker does not report its source does not go on: the source's disk has failed.
        """
        state, view = self.view.partitions[tp], self.view
        copies = any((node, tp) in view.futures and (node, tp) in view.replicas for node in state.replicas)
        return bool(state.adding or state.removing) or copies

    def items(self, disks: Collection[Disk]) -> list[Item]:
        """Return the replicas on these disks that may move, by size: of known size, led, and not moved already."""
        found: list[Item] = []
        wanted = dict.fromkeys(disks)
        for (node, tp), placed in self.view.replicas.items():
            state = self.view.partitions.get(tp)
            if Disk(node, placed.path) not in wanted or state is None or node not in state.target:
                continue
            if placed.size >= 0 and not self.busy(tp) and state.leader != NO_LEADER:
                found.append(Item(placed.size, tp, node, placed.path, node == state.leader))
        return sorted(found)

    def fits(self, size: int, disk: Disk) -> bool:
        """Return whether a disk has space for so many more bytes at the worst moment."""
        free = self.free[disk]
        return free is None or size <= free

    def roomiest(self, size: int, node: int, without: Disk | None = None, tight: bool = False) -> Disk | None:
        """Return the directory of a broker with the most space, or with `tight` the least that is enough for a copy."""
        held = [disk for disk in self.of_node.get(node, []) if disk != without and self.fits(size, disk)]
        sign = 1 if tight else -1
        return min(held, key=lambda disk: (sign * self._room(disk), disk), default=None)

    def _room(self, disk: Disk) -> int:
        free = self.free[disk]
        return 1 << 62 if free is None else free

    def may_replace(self, tp: TopicPartition, old: int, new: int) -> bool:
        """Return whether a broker may take the place of another one: it has no replica, and the racks stay as many.

        Nor has it had one before the plan: for the controller, that replica would stay.
        """
        held = self.replicas[tp]
        if new in held or new in self.view.partitions[tp].replicas:
            return False
        if self.limits.fewer_racks:
            return True
        others = [node for node in held if node != old]
        return self._racks([*others, new]) >= self._racks(held)

    def _racks(self, nodes: Iterable[int]) -> int:
        held = [self.view.nodes.get(node) for node in nodes]
        return len({each.rack for each in held if each is not None and each.rack is not None})

    def move(self, item: Item, target: Disk) -> None:
        """Move a replica to a disk, of its broker or another one."""
        held = self.replicas[item.partition]
        held[held.index(item.node)] = target.node
        self.moved[item.partition, target.node] = target
        self.made.append((item, target))
        free = self.free[target]
        self.free[target] = None if free is None else free - item.size

    def document(self) -> PlanDocument:
        """Return the plan: the partitions with a moved replica; replicas that stay have the directory "any"."""
        changed = sorted({tp for tp, _ in self.moved})
        return PlanDocument(tuple(self._entry(tp) for tp in changed))

    def _entry(self, tp: TopicPartition) -> PlannedPartition:
        nodes = self.replicas[tp]
        paths = [self.moved[tp, node].path if (tp, node) in self.moved else ANY for node in nodes]
        return PlannedPartition(tp.topic, tp.partition, tuple(nodes), tuple(paths))


def used_of(view: ClusterView, disks: Collection[Disk]) -> tuple[dict[Disk, int], dict[Disk, int]]:
    """Return the bytes used on each disk, and its capacity.

    Where a disk does not report its space, all of them count the bytes of their replicas, and are alike.
    """
    held = {disk: view.directories[disk] for disk in sorted(disks)}
    if all(each.total > 0 and each.usable != UNKNOWN_SIZE for each in held.values()):
        return {disk: max(0, each.total - each.usable) for disk, each in held.items()}, {
            disk: each.total for disk, each in held.items()
        }
    used = dict.fromkeys(held, 0)
    for (node, _), placed in view.replicas.items():
        disk = Disk(node, placed.path)
        if disk in used:
            used[disk] += max(0, placed.size)
    return used, dict.fromkeys(held, 1)
