"""Names that users see: task queues, workflow types and ids."""

from __future__ import annotations

import re

#: The server's limit for a workflow's id, in bytes; it refuses the whole workflow task for one that is longer.
LONGEST_ID = 1_000
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

CLUSTER = "Cluster"
NODE_LEASE = "NodeLease"
MOVE_REPLICA = "MoveReplica"
EXPORT_HISTORY = "ExportHistory"
DIRECTORY_FAILURE = "DirectoryFailure"
PARTITION_REASSIGNMENT = "PartitionReassignment"
THROTTLE_LEASE = "ThrottleLease"


def is_workflow_id(text: str) -> bool:
    """Return whether the server takes this as the id of a workflow."""
    return bool(text) and len(text.encode()) <= LONGEST_ID


def is_run_id(text: str) -> bool:
    """Return whether the server takes this as the id of a run."""
    return _UUID.fullmatch(text) is not None


def cluster_queue(cluster: str) -> str:
    """Workflows, admin and metadata activities."""
    return cluster


def node_queue(cluster: str, node: int) -> str:
    """Short activities of one node."""
    return f"{cluster}/node-{node}"


def moves_queue(cluster: str, node: int) -> str:
    """Copies of one node."""
    return f"{cluster}/node-{node}/moves"


def history_queue(cluster: str) -> str:
    """Exports of histories."""
    return f"{cluster}/history"


def cluster_id(cluster: str) -> str:
    """The id of the one workflow that owns the metadata."""
    return cluster


def lease_id(cluster: str, node: int, incarnation: str) -> str:
    return f"{cluster}/lease/{node}/{incarnation}"


def move_id(cluster: str, node: int, topic: str, partition: int, count: int, claim: int) -> str:
    """The id of a run that the node starts: its first replica, how many more there are, and that replica's claim."""
    more = f"+{count - 1}" if count > 1 else ""
    return f"{cluster}/move/{node}/{topic}-{partition}{more}/{claim}"


def reassign_id(cluster: str, topic: str, partition: int, count: int) -> str:
    """What the id of a run of reassignments begins with: its first partition and how many more there are."""
    more = f"+{count - 1}" if count > 1 else ""
    return f"{cluster}/reassign/{topic}-{partition}{more}"


def throttle_id(cluster: str, name: str) -> str:
    """The id of a run that holds throttles, for a command."""
    return f"{cluster}/throttle/{name}"


def directory_failure_id(cluster: str, node: int, directory_id: str, noticed: float) -> str:
    """The id of the run about one failure of a directory: noticed by several starts of a node, it is one."""
    return f"{cluster}/directory-failure/{node}/{directory_id}/{int(noticed * 1000)}"


def export_id(cluster: str) -> str:
    return f"{cluster}/export"
