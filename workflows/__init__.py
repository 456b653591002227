"""Decisions only: workflow classes here, the pure values they decide with in `model`.

`ALL` is the list of workflow classes for a worker of a cluster of storage nodes, `PLANS` that for a worker of plans,
which drives any Kafka cluster, `EXPORTS` that for the exports of such a cluster's plans. They are created on first use,
so that an importer of the model's values does not load the workflows (and Temporal) with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    ALL: list[type]
    PLANS: list[type]
    EXPORTS: list[type]

__all__ = ["ALL", "EXPORTS", "PLANS"]


def __getattr__(name: str) -> Any:
    if name == "PLANS":
        from workflows.plans.evacuate_directory import EvacuateDirectory
        from workflows.plans.plan_alert import PlanAlert
        from workflows.plans.plan_lane import PlanLane
        from workflows.plans.reassignment_plan import ReassignmentPlan
        from workflows.plans.slot_keeper import SlotKeeper
        from workflows.plans.throttle_keeper import ThrottleKeeper

        return [ReassignmentPlan, PlanLane, PlanAlert, ThrottleKeeper, SlotKeeper, EvacuateDirectory]
    if name == "EXPORTS":
        from workflows.export_history import ExportHistory

        return [ExportHistory]
    if name != "ALL":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workflows.cluster import Cluster
    from workflows.directory_failure import DirectoryFailure
    from workflows.export_history import ExportHistory
    from workflows.move_replica import MoveReplica
    from workflows.node_lease import NodeLease
    from workflows.partition_reassignment import PartitionReassignment
    from workflows.throttle_lease import ThrottleLease

    return [Cluster, NodeLease, MoveReplica, PartitionReassignment, ThrottleLease, DirectoryFailure, ExportHistory]
