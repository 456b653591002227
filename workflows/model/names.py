"""Names that users see: task queues, workflow types and ids."""

from __future__ import annotations

import re

#: The server's limit for a workflow's id, in bytes; it rejects the whole workflow task for a longer one.
LONGEST_ID = 1_000
#: The maximum for a cluster's name and for a plan's id, in bytes: queues and lanes append to them.
LONGEST_CLUSTER = LONGEST_ID - 50
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

CLUSTER = "Cluster"
NODE_LEASE = "NodeLease"
MOVE_REPLICA = "MoveReplica"
EXPORT_HISTORY = "ExportHistory"
DIRECTORY_FAILURE = "DirectoryFailure"
PARTITION_REASSIGNMENT = "PartitionReassignment"
THROTTLE_LEASE = "ThrottleLease"
REASSIGNMENT_PLAN = "ReassignmentPlan"
PLAN_LANE = "PlanLane"
PLAN_ALERT = "PlanAlert"
THROTTLE_KEEPER = "ThrottleKeeper"
SLOT_KEEPER = "SlotKeeper"
EVACUATE_DIRECTORY = "EvacuateDirectory"
_PLANS = "/plans"
#: What follows the cluster in the id of a run that a node, or the controller, starts for a request.
OF_NODE, OF_CONTROLLER = "/move/", "/reassign/"


def is_workflow_id(text: str) -> bool:
    """Return whether the server accepts this as a workflow id."""
    return bool(text) and len(text.encode()) <= LONGEST_ID


def is_run_id(text: str) -> bool:
    """Return whether the server accepts this as a run id."""
    return _UUID.fullmatch(text) is not None


def cluster_queue(cluster: str) -> str:
    """Return the queue of workflows, and of admin and metadata activities."""
    return cluster


def node_queue(cluster: str, node: int) -> str:
    """Return the queue of one node's short activities."""
    return f"{cluster}/node-{node}"


def moves_queue(cluster: str, node: int) -> str:
    """Return the queue of one node's long activities, such as copies."""
    return f"{cluster}/node-{node}/moves"


def history_queue(cluster: str) -> str:
    """Return the queue of exports of histories."""
    return f"{cluster}/history"


def plans_queue(cluster: str) -> str:
    """Return the queue of plans and of their activities, which need only a Kafka cluster's admin API."""
    return f"{cluster}{_PLANS}"


def cluster_of_plans(queue: str) -> str:
    """Return the cluster of a queue of plans."""
    return queue.removesuffix(_PLANS)


def cluster_id(cluster: str) -> str:
    """Return the id of the one workflow that owns the metadata."""
    return cluster


def lease_id(cluster: str, node: int, incarnation: str) -> str:
    return f"{cluster}/lease/{node}/{incarnation}"


def move_id(cluster: str, node: int, topic: str, partition: int, count: int, claim: int) -> str:
    """Return the id of a run that the node starts: its first replica, the number of others, and the first's claim."""
    more = f"+{count - 1}" if count > 1 else ""
    return f"{cluster}{OF_NODE}{node}/{topic}-{partition}{more}/{claim}"


def reassign_id(cluster: str, topic: str, partition: int, count: int) -> str:
    """Return the beginning of the id of a run of reassignments: its first partition and the number of others."""
    more = f"+{count - 1}" if count > 1 else ""
    return f"{cluster}{OF_CONTROLLER}{topic}-{partition}{more}"


def throttle_id(cluster: str, name: str) -> str:
    """Return the id of a run that holds throttles for a command."""
    return f"{cluster}/throttle/{name}"


def directory_failure_id(cluster: str, node: int, directory_id: str, noticed: float) -> str:
    """Return the id of the run for one failure of a directory: the same for all starts of a node that notice it."""
    return f"{cluster}/directory-failure/{node}/{directory_id}/{int(noticed * 1000)}"


def plan_id(cluster: str, name: str) -> str:
    """Return the id of a plan's run."""
    return f"{cluster}/plan/{name}"


def plan_lane_id(plan: str, number: int) -> str:
    """Return the id of the run of a plan's lane; `plan` is the plan's workflow id."""
    return f"{plan}/lane-{number}"


def plan_alert_id(plan: str, event: str, started: float, occurrence: int) -> str:
    """Return the id of the run that sends an alert of a plan, which began at `started` (epoch seconds)."""
    return f"{plan}/alert/{event}-{started:.0f}-{occurrence}"


def evacuation_id(cluster: str, broker: int, path: str) -> str:
    """Return the id of the run that empties a log directory."""
    return f"{cluster}/evacuate/{broker}{path}"


def throttle_keeper_id(cluster: str) -> str:
    """Return the id of the one run that keeps the throttles of a cluster's plans."""
    return f"{cluster}/throttles"


def slot_keeper_id(cluster: str) -> str:
    """Return the id of the one run that shares the slots of a cluster among its plans."""
    return f"{cluster}/slots"


def export_id(cluster: str) -> str:
    return f"{cluster}/export"
