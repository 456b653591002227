"""Plans that balance: the directories of each broker, the brokers of a cluster, and the load of new brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from workflows.model.plans.document import PlanDocument
from workflows.model.plans.generate.layout import GeneratedPlan, Item, Layout, Limits, PlanRefused, used_of
from workflows.model.plans.generate.level import Leveller, misplaced
from workflows.model.plans.values import ClusterView, Disk

_LIMITS = Limits()


def balance_directories(
    view: ClusterView, nodes: Iterable[int] | None = None, limits: Limits = _LIMITS
) -> GeneratedPlan:
    """Return the plan that fills the directories of each broker alike, with moves inside the broker (KIP-113).

    `nodes` are the brokers to balance, all by default. Raises PlanRefused for one that is not registered.
    """
    layout = Layout(view, limits)
    chosen = sorted(set(view.nodes if nodes is None else nodes))
    _known(view, chosen)
    before = after = whole = 0
    skipped: list[str] = []
    for node in chosen:
        disks = layout.of_node.get(node, [])
        used, weights = used_of(view, disks)
        why = _not_inside(layout, node, disks) or _nearly_empty(f"broker {node}", used, weights, limits)
        if why:
            skipped.append(why)
            continue
        by_disk: dict[Disk, list[Item]] = {disk: [] for disk in disks}
        for item in layout.items(disks):
            by_disk[item.disk].append(item)
        leveller = Leveller(used, weights, by_disk, limits.tolerance / 100)
        leveller.run(_inside(layout))
        before += misplaced(used, weights)
        after += misplaced(leveller.used, weights)
        whole += sum(used.values())
    return _result(layout, before, after, whole, skipped)


def _inside(layout: Layout) -> Callable[[Item, Disk], bool]:
    def move(item: Item, target: Disk) -> bool:
        if not layout.fits(item.size, target):
            return False
        layout.move(item, target)
        return True

    return move


def balance_brokers(view: ClusterView, limits: Limits = _LIMITS) -> GeneratedPlan:
    """Return the plan that fills the brokers alike, in proportion to the capacity of their directories (KIP-455).

    Replicas stay on distinct brokers and on as many racks as before, in their places in the list of replicas. Each goes
    to the directory of its new broker with the most space.
    """
    return _between(view, limits, None)


def add_broker(view: ClusterView, nodes: Iterable[int], limits: Limits = _LIMITS) -> GeneratedPlan:
    """Return the plan that brings new brokers to their share. Only they receive replicas; the others stay as they are.

    Raises PlanRefused for a broker that is not registered or does not return its log directories.
    """
    chosen = sorted(set(nodes))
    _known(view, chosen)
    silent = [node for node in chosen if not view.nodes[node].responds]
    if silent:
        raise PlanRefused(
            f"broker {', '.join(map(str, silent))} does not return its log directories, so that it cannot receive "
            "replicas; start it"
        )
    return _between(view, limits, chosen)


def _between(view: ClusterView, limits: Limits, takers: list[int] | None) -> GeneratedPlan:
    layout = Layout(view, limits)
    used_by_disk, weight_by_disk = used_of(view, layout.disks)
    used = {node: sum(used_by_disk[disk] for disk in disks) for node, disks in sorted(layout.of_node.items())}
    weights = {node: sum(weight_by_disk[disk] for disk in disks) for node, disks in sorted(layout.of_node.items())}
    skipped = [f"broker {node} does not return its log directories" for node in sorted(view.nodes) if node not in used]
    if why := _nearly_empty("the cluster", used, weights, limits):
        return GeneratedPlan(PlanDocument(()), 0, 0.0, 0.0, (*skipped, why))
    by_node: dict[int, list[Item]] = {node: [] for node in used}
    for item in layout.items(layout.disks):
        by_node[item.node].append(item)
    leveller = Leveller(used, weights, by_node, limits.tolerance / 100, takers)

    def move(item: Item, target: int) -> bool:
        disk = layout.roomiest(item.size, target)
        if disk is None or not layout.may_replace(item.partition, item.node, target):
            return False
        layout.move(item, disk)
        return True

    leveller.run(move)
    before, after = misplaced(used, weights), misplaced(leveller.used, weights)
    return _result(layout, before, after, sum(used.values()), skipped)


def _known(view: ClusterView, nodes: Collection[int]) -> None:
    unknown = [node for node in nodes if node not in view.nodes]
    if unknown:
        raise PlanRefused(
            f"broker {', '.join(map(str, unknown))} is not registered in the cluster, which has "
            f"{', '.join(map(str, sorted(view.nodes)))}"
        )


def _not_inside(layout: Layout, node: int, disks: Collection[Disk]) -> str:
    if not layout.responds(node):
        return f"broker {node} does not return its log directories"
    if not layout.moves_inside(node):
        return f"broker {node} has an offline directory, and refuses moves between the others until it is restarted"
    return "" if len(disks) > 1 else f"broker {node} has only one directory"


def _nearly_empty(
    what: str,
    used: Mapping[Disk, int] | Mapping[int, int],
    weights: Mapping[Disk, int] | Mapping[int, int],
    limits: Limits,
) -> str:
    whole, capacity = sum(used.values()), sum(weights.values())
    if not whole:
        return f"{what} has no data"
    known = capacity > len(weights)
    if known and 100 * whole < limits.min_density * capacity:
        return (
            f"{what} uses {100 * whole / capacity:.1f}% of its space, less than the {limits.min_density:g}% to begin at"
        )
    return ""


def _result(layout: Layout, before: int, after: int, whole: int, skipped: list[str]) -> GeneratedPlan:
    first, last = (100 * each / whole if whole else 0.0 for each in (before, after))
    if layout.moved and first - last < layout.limits.min_benefit:
        why = (
            f"the plan would take {first - last:.2f}% of the bytes to where they belong, less than the minimum benefit "
            f"of {layout.limits.min_benefit:g}%"
        )
        return GeneratedPlan(PlanDocument(()), 0, first, first, (*skipped, why))
    return GeneratedPlan(layout.document(), layout.bytes, first, last, tuple(skipped))
