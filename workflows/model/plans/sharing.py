"""The slots that a lane uses, by the keys under which the plans of a cluster share them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from workflows.model.move.parameter import ANY
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.values import Disk, Lane

#: The key of the whole cluster.
CLUSTER = ""


def keys_of(lane: Lane) -> tuple[str, ...]:
    """Return the keys of a lane: its disks, its nodes, and the cluster."""
    disks = list(lane.loads)
    return (*map(str, disks), *dict.fromkeys(str(disk.node) for disk in disks), CLUSTER)


def limits_of(options: PlanOptions, disks: Collection[Disk], free: Collection[Disk]) -> dict[str, int]:
    """Return how many lanes of all plans a plan lets use each key. `free` are the directories that report their space:
    where the broker chooses among its directories, a lane takes a slot of any of them.
    """
    limits: dict[str, int] = {}
    for disk in sorted(disks):
        per_disk = options.slots_per_disk
        if disk.path == ANY:
            count = sum(each.node == disk.node for each in free)
            per_disk = options.slots_per_broker or options.slots_per_disk * max(1, count)
        limits[str(disk)] = per_disk
        if options.slots_per_broker is not None:
            limits[str(disk.node)] = options.slots_per_broker
    if options.slots_cluster is not None:
        limits[CLUSTER] = options.slots_cluster
    return limits


def taken_of(taken: Mapping[str, int], disks: Collection[Disk]) -> dict[Disk, int]:
    """Return the slots of disks among those that other plans use."""
    return {disk: taken[str(disk)] for disk in disks if str(disk) in taken}
