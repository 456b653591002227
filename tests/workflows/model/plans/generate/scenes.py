"""Random clusters for generated plans, and what must hold for each of these plans."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from storage_node.model.ids import TopicPartition
from tests.workflows.model.plans.support import cluster
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import parse, to_text
from workflows.model.plans.generate.layout import GeneratedPlan
from workflows.model.plans.moves import total_bytes, work_of
from workflows.model.plans.values import ClusterView, Disk


def random_cluster(
    chance: random.Random,
    nodes: int,
    disks: int,
    partitions: int,
    *,
    largest: int = 100,
    total: int = 0,
    factor: int = 3,
    racks: int = 0,
) -> ClusterView:
    """Return a cluster with partitions on random brokers, the first disks more often; `total` 0 is room enough."""
    names = [f"{node}:/d{at}" for node in range(nodes) for at in range(disks)]
    held = {}
    for number in range(partitions):
        where = chance.sample(range(nodes), chance.randint(1, min(nodes, factor)))
        held[f"t-{number}"] = [f"{node}:/d{min(chance.randrange(disks), chance.randrange(disks))}" for node in where]
    sizes = {name: chance.randint(0, largest) for name in held}
    room = total or 2 * partitions * largest
    return cluster(
        held,
        sizes=sizes,
        disks=names,
        total=room,
        racks={node: f"r{node % racks}" for node in range(nodes)} if racks else None,
    )


def shuffled(view: ClusterView, chance: random.Random) -> ClusterView:
    """Return the same cluster, reported in another order."""

    def mixed(held: Mapping) -> dict:  # type: ignore[type-arg]
        rows = list(held.items())
        chance.shuffle(rows)
        return dict(rows)

    return replace(
        view,
        nodes=mixed(view.nodes),
        directories=mixed(view.directories),
        partitions=mixed(view.partitions),
        replicas=mixed(view.replicas),
    )


def placed_by(plan: GeneratedPlan, view: ClusterView) -> dict[tuple[TopicPartition, int], Disk]:
    """Return the disk of each replica after the plan."""
    after = {(tp, node): Disk(node, placed.path) for (node, tp), placed in view.replicas.items()}
    for entry in plan.document.partitions:
        tp = TopicPartition(entry.topic, entry.partition)
        before = {node: after.pop((tp, node), None) for node in view.partitions[tp].target}
        for node, path in zip(entry.replicas, entry.log_dirs, strict=True):
            held = before.get(node) if path == ANY else Disk(node, path)
            assert held is not None, "the directory of an added replica is always named"
            after[tp, node] = held
    return after


def used_after(plan: GeneratedPlan, view: ClusterView) -> dict[Disk, int]:
    """Return the bytes of the replicas on each disk after the plan."""
    used = dict.fromkeys(view.directories, 0)
    for (tp, _), disk in placed_by(plan, view).items():
        used[disk] += view.size_of(tp)
    return used


def check(plan: GeneratedPlan, view: ClusterView, keep_free: float = 0.0) -> None:
    """Check what holds for every generated plan."""
    for entry in plan.document.partitions:
        held = view.partitions[TopicPartition(entry.topic, entry.partition)].target
        assert len(entry.replicas) == len(held) == len(set(entry.replicas)), "the replication factor is unchanged"
        racks = [len({view.nodes[node].rack for node in nodes}) for nodes in (held, entry.replicas)]
        assert racks[1] >= racks[0], "on as many racks as before"
    arriving = dict.fromkeys(view.directories, 0)
    for (tp, node), disk in placed_by(plan, view).items():
        placed = view.replicas.get((node, tp))
        if placed is None or placed.path != disk.path:
            arriving[disk] += view.size_of(tp)
    for disk, size in arriving.items():
        room = view.directories[disk].usable - keep_free / 100 * view.directories[disk].total
        assert size == 0 or size <= room, f"{disk} would be overfull at the worst moment"
    assert sum(arriving.values()) == plan.bytes
    if plan.nothing_to_do:
        return
    assert parse(to_text(plan.document)) == plan.document
    work = work_of(plan.document, view)
    assert (work.problems, total_bytes(work.moves), work.in_place) == ((), plan.bytes, 0)
