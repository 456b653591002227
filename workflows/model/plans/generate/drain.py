"""Plans that empty a directory or a broker."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.plans.generate.layout import GeneratedPlan, Item, Layout, Limits, PlanRefused, used_of
from workflows.model.plans.generate.level import misplaced
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, Disk

_LIMITS = Limits()
#: Partitions that a refusal names.
NAMED = 5


def drain(view: ClusterView, node: int, path: str | None = None, limits: Limits = _LIMITS) -> GeneratedPlan:
    """Return the plan that empties a directory of a broker, or the broker.

    Replicas of a directory go to the broker's other directories by their space, the rest to other brokers; those of a
    broker go to other brokers. A broker with an offline directory refuses moves between its directories, so that all of
    them go to other brokers; replicas of the offline directory itself are those that the broker does not report.

    Raises PlanRefused, with the bytes that lack space, if the replicas do not all fit one by one.
    """
    known = view.nodes.get(node)
    if known is None:
        raise PlanRefused(
            f"broker {node} is not registered in the cluster, which has {', '.join(map(str, sorted(view.nodes)))}"
        )
    if path is not None and known.responds and Disk(node, path) not in view.directories:
        has = ", ".join(disk.path for disk in sorted(view.directories) if disk.node == node)
        raise PlanRefused(f"{path!r} is not one of the log.dirs of broker {node}, which are {has}")
    items = _leaving(view, node, path)
    # The largest first: they have the fewest places. Filling the roomiest disk keeps the disks even; filling the
    # tightest one succeeds in cases where that fails.
    refused: PlanRefused | None = None
    for tight in (False, True):
        layout = Layout(view, limits)
        _refuse_what_cannot_move(layout, items)
        try:
            _place(layout, items, node, path, tight)
        except PlanRefused as problem:
            refused = refused or problem
            continue
        return _result(layout, view)
    assert refused is not None
    raise refused


def remove_broker(view: ClusterView, node: int, limits: Limits = _LIMITS) -> GeneratedPlan:
    """Return the plan that takes all replicas of a broker, which may be dead, to other brokers. Raises PlanRefused."""
    return drain(view, node, None, limits)


def _leaving(view: ClusterView, node: int, path: str | None) -> list[Item]:
    """Return the replicas that must leave, the largest first."""
    held = view.directories.get(Disk(node, path)) if path is not None else None
    reported = path is None or held is None or not held.error
    found: list[Item] = []
    for tp, state in view.partitions.items():
        if node not in state.target:
            continue
        placed = view.replicas.get((node, tp))
        if path is None or (placed is not None and placed.path == path) or (placed is None and not reported):
            size = placed.size if placed is not None else view.size_of(tp)
            if size == UNKNOWN_SIZE:
                size = view.size_of(tp)
            found.append(Item(size, tp, node, placed.path if placed is not None else path or "", state.leader == node))
    return sorted(found, key=lambda item: (-item.size, item.partition))


def _refuse_what_cannot_move(layout: Layout, items: Sequence[Item]) -> None:
    busy = [item.partition for item in items if layout.busy(item.partition)]
    if busy:
        raise PlanRefused(
            f"{_count(busy)} being moved already, {_names(busy)}; wait until that ends, or cancel it, and plan again"
        )
    dead = [item.partition for item in items if layout.view.partitions[item.partition].leader == NO_LEADER]
    if dead:
        raise PlanRefused(
            f"{_count(dead)} without a leader, {_names(dead)}: there is no replica to copy from; start a broker that "
            "has one, or delete the topic"
        )
    unknown = [item.partition for item in items if item.size == UNKNOWN_SIZE]
    if unknown:
        raise PlanRefused(
            f"{_count(unknown)} of unknown size, {_names(unknown)}: no broker reports a replica; one whose only "
            "replica is lost cannot be moved"
        )


def _place(layout: Layout, items: Sequence[Item], node: int, path: str | None, tight: bool) -> None:
    """Find a place for each replica. Raises PlanRefused if one has none."""
    source = Disk(node, path) if path is not None else None
    inside = source is not None and layout.responds(node) and layout.moves_inside(node)
    placed: list[Item] = []
    for item in items:
        disk = layout.roomiest(item.size, node, source, tight) if inside else None
        if disk is None:
            disk = _elsewhere(layout, item, tight)
        if disk is None:
            raise _refusal(layout, items, placed, item, inside, source)
        layout.move(item, disk)
        placed.append(item)


def _elsewhere(layout: Layout, item: Item, tight: bool) -> Disk | None:
    """Return the disk of another broker that takes a replica: of those allowed the one with the most space."""
    found: list[tuple[int, Disk]] = []
    for node in layout.of_node:
        if node != item.node and layout.may_replace(item.partition, item.node, node):
            disk = layout.roomiest(item.size, node, tight=tight)
            if disk is not None:
                found.append((layout.free[disk] or 0, disk))
    sign = 1 if tight else -1
    return min(found, key=lambda each: (sign * each[0], each[1]), default=(0, None))[1]


def _refusal(
    layout: Layout, items: Sequence[Item], placed: Sequence[Item], item: Item, inside: bool, source: Disk | None
) -> PlanRefused:
    """Return why a replica has no place: no broker is allowed, no disk is large enough, or the sum is too large."""
    what = f"disk {source}" if source is not None else f"broker {item.node}"
    whole, left = sum(each.size for each in items), sum(each.size for each in items[len(placed) :])
    fresh = Layout(layout.view, layout.limits)
    allowed = [n for n in fresh.of_node if n != item.node and fresh.may_replace(item.partition, item.node, n)]
    disks = [disk for n in allowed for disk in fresh.of_node[n]]
    disks += [disk for disk in fresh.of_node.get(item.node, []) if inside and disk != source]
    if not disks:
        return PlanRefused(
            f"{what} cannot be emptied: {item.partition} has no other broker to go to: each has a replica already, "
            "does not respond, or is on a rack that would leave the partition on fewer racks; add a broker"
            f"{'' if layout.limits.fewer_racks else ', or allow fewer racks'}"
        )
    largest = max(disks, key=lambda disk: (fresh.free[disk] or 0, disk))
    room = sum(fresh.free[disk] or 0 for disk in disks)
    kept = f" beside the {layout.limits.keep_free:g}% that stay free" if layout.limits.keep_free else ""
    if not fresh.fits(item.size, largest):
        return PlanRefused(
            f"{what} cannot be emptied: {item.partition} has {item.size} bytes, but the disk with the most space that "
            f"may take it, {largest}, has {fresh.free[largest]}{kept}, though all of them together have {room}; "
            f"{whole} bytes must leave in all"
        )
    return PlanRefused(
        f"{what} cannot be emptied: {whole} bytes must leave, but the disks that may take them have {room}{kept}; "
        f"{_count([each.partition for each in items[len(placed) :]])} without a place, {left} bytes, "
        f"{_names([each.partition for each in items[len(placed) :]])}; free space or add a broker"
    )


def _result(layout: Layout, view: ClusterView) -> GeneratedPlan:
    """Return the plan, with the imbalance of all disks."""
    used, weights = used_of(view, layout.disks)
    whole, before = sum(used.values()), misplaced(used, weights)
    for item, target in layout.made:
        used[target] += item.size
        if item.disk in used:
            used[item.disk] -= item.size
    first, last = (100 * each / whole if whole else 0.0 for each in (before, misplaced(used, weights)))
    return GeneratedPlan(layout.document(), layout.bytes, first, last)


def _count(held: Sequence[TopicPartition]) -> str:
    return "1 partition is" if len(held) == 1 else f"{len(held)} partitions are"


def _names(held: Sequence[TopicPartition]) -> str:
    more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
    return ", ".join(map(str, held[:NAMED])) + more
