"""Decisions only: workflow classes here, the pure values they decide with in `model`.

`ALL` is the list of workflow classes for a worker. It is made on first use, so that who needs only the model's values
does not load the workflows (and Temporal) with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    ALL: list[type]

__all__ = ["ALL"]


def __getattr__(name: str) -> Any:
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
