"""What runs return: their results, and the responses to their updates. Values only.

Times are epoch seconds, durations seconds, sizes bytes. A run that fails has its result in the failure's details.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workflows.model.calls import MoveRow
from workflows.model.versioned import Versioned

#: A phase of a run: its name, its begin and its end, None for the current one.
Span = tuple[str, float, float | None]


# --- MoveReplica


@dataclass(frozen=True)
class Sla:
    """Whether a run met its deadline, with all its replicas as one; the analytics judge each replica by itself."""

    seconds: float | None = None  # the requested maximum, None without an SLA
    deadline: float | None = None
    took: float | None = None  # until the replicas were in place, None before and if none is
    met: bool | None = (
        None  # false once a replica failed or the deadline passed; None without an SLA, open, or cancelled
    )


@dataclass(frozen=True)
class MoveRunResult(Versioned):
    """The result of MoveReplica."""

    rows: list[MoveRow]  # one per replica
    sla: Sla
    phases: list[Span]


@dataclass(frozen=True)
class Paused(Versioned):
    """The response to `pause` and `resume`."""

    paused: bool  # whether the run is paused now


@dataclass(frozen=True)
class Throttle(Versioned):
    """The response to `set_throttle`."""

    throttle: int | None  # bytes per second, null for no limit


@dataclass(frozen=True)
class Retargeted(Versioned):
    """The response to `set_target`: the `.move` in the new directory exists."""

    topic: str
    partition: int
    directory: str  # the new target


@dataclass(frozen=True)
class Dropped(Versioned):
    """The response to `drop`: the `.move` is deleted."""

    topic: str
    partition: int
    outcome: str  # an `Outcome`


# --- PartitionReassignment


@dataclass(frozen=True)
class NodeRow:
    """One node's part of a reassigned partition; as in `ReplicaRow`, of which it has the facts."""

    node: int
    outcome: str  # a `ReplicaOutcome`, "" before the node's first step has ended
    directory: str
    error: str  # an `ErrorType`, "" without an error
    message: str
    bytes_total: int
    bytes_copied: int
    seconds_placing: float  # until the node had created its replica
    seconds_catching_up: float  # from then on until it was in sync
    seconds_in_sync: float  # from then on until the others were in sync as well
    seconds_deleting: float
    seconds_throttled: float
    attempts: int


@dataclass(frozen=True)
class PartitionRow:
    """One partition of a reassignment's result; seconds are those of its slowest node."""

    topic: str
    partition: int
    topic_id: str
    outcome: str  # a `PartitionOutcome`
    error: str  # an `ErrorType`, "" without an error
    message: str  # one sentence: what, where, why, what next
    by: str  # the client that requested it
    original: list[int]  # the replicas before
    target: list[int]  # the requested replicas
    replicas: list[int]  # the replicas in the metadata at the end
    isr: list[int]
    leader: int
    bytes_total: int  # of all added replicas
    bytes_copied: int
    seconds_placing: float
    seconds_catching_up: float
    seconds_deleting: float
    seconds_throttled: float
    attempts: int
    directories: list[tuple[int, str, bool]]  # node, preferred log directory, and whether its replica is there
    nodes: list[NodeRow]


@dataclass(frozen=True)
class ReassignmentRunResult(Versioned):
    """The result of PartitionReassignment."""

    rows: list[PartitionRow]  # one per partition
    phases: list[Span]


# --- ThrottleLease


@dataclass(frozen=True)
class ThrottleLeaseResult(Versioned):
    """The result of ThrottleLease."""

    phases: list[Span]
    left_out: list[int] = field(default_factory=list)  # nodes without a throttle, since they are not registered


@dataclass(frozen=True)
class ThrottleHeld(Versioned):
    """The response to `held`: the throttles are in the metadata, or the lease has ended."""

    held: bool  # false once the lease has ended
    left_out: list[int] = field(default_factory=list)  # nodes without a throttle, since they are not registered


# --- DirectoryFailure


@dataclass(frozen=True)
class OfflineReplicas:
    """The partitions of a topic whose replicas went offline."""

    topic: str
    partitions: list[int]


@dataclass(frozen=True)
class EndedMoveRow:
    """A move that the failure of a directory ended; `storage_node.model.command_rows.move_row` writes it."""

    topic: str
    partition: int
    source: str
    directory: str
    workflow_id: str  # its run, "" before one had begun
    run_id: str
    message: str  # why it ended


@dataclass(frozen=True)
class FailureEvidence:
    """The operation by which a directory counts as failed; `storage_node.model.evidence` writes it."""

    verdict: str  # `disk`, `file`, `full`, `read-only` or `hung`
    operation: str  # what the node did
    path: str  # to which file or folder, "" where it is unknown
    errno: str  # the name of the system's error number, "" for none
    time: float  # when it failed, or its deadline passed


@dataclass(frozen=True)
class EarlySign:
    """A sign of trouble that the directory showed before it failed."""

    text: str  # its kind and words: `errors`, `slow`, `read-only` or `smart`
    time: float  # when it began


@dataclass(frozen=True)
class DirectoryFailureResult(Versioned):
    """The result of DirectoryFailure."""

    node: int
    incarnation: str  # the node's start during which it failed
    directory: str
    directory_id: str
    reason: str  # the error that the node met
    noticed: float  # when the node met it
    recorded: float | None  # when the metadata had it, None before
    outcome: str  # what the controller did with the report, "" before
    version: int  # the metadata's version with it
    broker_epoch: int
    replicas: list[OfflineReplicas]
    moves: list[EndedMoveRow]
    evidence: FailureEvidence | None = field(default=None, kw_only=True)  # None where the node sent none
    signs: list[EarlySign] = field(default_factory=list, kw_only=True)  # since it was last taken into use


# --- NodeLease


@dataclass(frozen=True)
class NodeLeaseResult(Versioned):
    """The result of NodeLease."""

    reason: str  # why the lease ended
