"""What runs return to queries: `progress` of everything that moves data, and the controller's `describe`. Values only.

Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.model.run_results import DirectoryFailureResult, Sla, Span
from workflows.model.versioned import Versioned

# --- MoveReplica


@dataclass(frozen=True)
class ReplicaProgress:
    """One replica of a move: the last report of its copy, or the result of its last step."""

    topic: str
    partition: int
    phase: str  # a `Phase`
    state: str  # the copy's `MoveState`, or what it waits for
    source: str
    directory: str  # the target
    claim: int
    generation: int
    bytes_total: int
    bytes_copied: int
    bytes_resumed: int  # of these, found valid on disk when a copy was resumed
    rate: float
    append_rate: float  # the growth of the source
    eta_seconds: float | None  # None: unknown, or never
    stall: str  # a `StallReason`, "" while the copy advances
    stall_message: str
    seconds_by_reason: dict[str, float]  # the time by `StallReason`
    attempt: int
    report_age: float | None  # of the node's last report, None before the first
    outcome: str  # an `Outcome`, "" while the replica is open
    error: str  # an `ErrorType`, "" without an error
    message: str


@dataclass(frozen=True)
class MoveProgress(Versioned):
    """The response of MoveReplica to `progress`; sums are over its replicas."""

    workflow_id: str
    node: int
    phase: str  # the run's `Phase`, `paused` or `ended`
    waiting_for: str  # a node whose report is overdue, else ""
    paused: bool
    cancelling: bool
    throttle: int | None  # the run's own limit, null for none
    bytes_total: int
    bytes_copied: int
    rate: float  # of the copies in progress
    eta_seconds: float | None  # None: unknown, or never
    stall: str  # the `StallReason` of a run none of whose replicas advances, else ""
    stall_message: str
    started: float
    sla: Sla
    replicas: list[ReplicaProgress]
    phases: list[Span]


# --- PartitionReassignment


@dataclass(frozen=True)
class NodeProgress:
    """One node's replica of a partition that is reassigned."""

    node: int
    state: str  # a `ReplicaState`, a `ReplicaOutcome`, or why the node does not report
    directory: str
    bytes_total: int
    bytes_copied: int
    rate: float
    eta_seconds: float | None  # until it is in sync, None: unknown
    message: str  # why it waits
    report_age: float | None  # of the node's last report, None before the first


@dataclass(frozen=True)
class PartitionProgress:
    """One partition of a reassignment; sums are over its added replicas."""

    topic: str
    partition: int
    phase: str  # a `ReassignmentPhase`, or the outcome
    outcome: str  # a `PartitionOutcome`, "" while the replica set is not final
    by: str  # the client that requested it
    original: list[int]  # the replicas before
    target: list[int]  # the requested replicas
    adding: list[int]
    removing: list[int]
    bytes_total: int
    bytes_copied: int
    rate: float
    eta_seconds: float | None  # of the slowest replica, None: unknown
    error: str  # an `ErrorType`, "" without an error
    message: str  # why it waits, or how it ended
    nodes: list[NodeProgress]


@dataclass(frozen=True)
class ReassignmentProgress(Versioned):
    """The response of PartitionReassignment to `progress`; sums are over its partitions."""

    workflow_id: str
    cancelling: bool
    started: float
    phase: str  # the run's `ReassignmentPhase`, or `ended`
    waiting_for: str  # the controller, and nodes whose reports are overdue, else ""
    bytes_total: int
    bytes_copied: int
    rate: float
    eta_seconds: float | None  # of the slowest partition, None: unknown
    partitions: list[PartitionProgress]
    phases: list[Span]
    throttles: Mapping[str, Any] = field(default_factory=dict)  # that the run holds, as its parameter has them
    paused: bool = False
    throttle: int | None = None  # the lowest rate of these, null for none


# --- ThrottleLease


@dataclass(frozen=True)
class ThrottleLeaseProgress(Versioned):
    """The response of ThrottleLease to `progress`."""

    workflow_id: str
    cancelling: bool
    phase: str  # `asking`, `holding`, `watching`, `releasing` or `ended`
    throttles: Mapping[str, Any]  # that the run holds, as its parameter has them
    waiting_for: str  # the controller if it does not respond, else ""
    nodes: list[int]  # the nodes whose moves are under way
    phases: list[Span]


# --- DirectoryFailure


@dataclass(frozen=True)
class DirectoryFailureProgress(DirectoryFailureResult):
    """The response of DirectoryFailure to `progress`: its result as far as it is known, and what it waits for."""

    workflow_id: str
    phase: str  # `recording` or `ended`
    waiting_for: str  # the controller, or why it has rejected the report, else ""
    seconds: float  # from the failure until it was recorded, or until now


# --- Cluster


@dataclass(frozen=True)
class NodeDescription:
    """One registered node, as the controller knows it."""

    node: int
    incarnation: str
    broker_epoch: int
    host: str
    port: int
    fenced: bool
    suspect: bool  # whether the controller probes it
    directories: list[tuple[str, str, bool]]  # id, path, and whether it is online
    known: tuple[int, int]  # generation and version of the newest image that it has applied


@dataclass(frozen=True)
class ClusterDescription(Versioned):
    """The response of Cluster to `describe` and to `recover_without`."""

    cluster: str
    phase: str  # `collecting` or `serving`
    rules: int  # the version of the rules by which the run decides
    awaited: list[int]  # nodes whose images are awaited while collecting
    answered: list[int]  # nodes whose images it has
    generation: int
    version: int
    topics: int
    partitions: int
    deletions: int  # deleted topics that a node has not confirmed
    nodes: list[NodeDescription]
