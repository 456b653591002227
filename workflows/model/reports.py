"""Reports of nodes about the steps in progress: rows of heartbeats, and of the signal `copy_progress`.

Times are seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workflows.model.calls import MoveRow

#: Seconds until the next report of a node that has not announced it.
NEXT_REPORT = 10.0


@dataclass(frozen=True)
class LiveMoveRow(MoveRow):
    """A heartbeat's row of a copy in progress: its facts, and the values of this moment.

    The server shows it to clients that describe the run.
    """

    state: str = ""  # a `MoveState`
    rate: float = 0.0
    append_rate: float = 0.0  # the growth of the source
    stall: str = ""  # a `StallReason`, or "" while the copy advances
    stall_message: str = ""  # one sentence about it


@dataclass(frozen=True)
class MoveReport:
    """One replica of the signal `copy_progress` to MoveReplica. None and 0: the node has not reported the value."""

    topic: str
    partition: int
    directory: str | None = None
    state: str = ""  # a `MoveState`
    rate: float = 0.0
    append_rate: float = 0.0  # the growth of the source
    stall: str = ""  # a `StallReason`, or "" while the copy advances
    stall_message: str = ""
    bytes_total: int = 0
    bytes_copied: int | None = None
    bytes_resumed: int | None = None
    bytes_written: int = 0
    attempt: int | None = None
    seconds_copying: float = 0.0
    seconds_throttled: float = 0.0
    seconds_by_reason: dict[str, float] = field(default_factory=dict)
    next_in: float = NEXT_REPORT  # the next report follows within it, if the node can send one


@dataclass(frozen=True)
class ReplicaReport:
    """One node's replica of the signal `copy_progress` to PartitionReassignment."""

    topic: str
    partition: int
    node: int = -1
    state: str = ""  # a `ReplicaState`
    message: str = ""  # why the replica waits
    directory: str = ""
    bytes_total: int = 0  # the size of the leader's log
    bytes_copied: int = 0
    rate: float = 0.0
    seconds_placing: float = 0.0
    seconds_catching_up: float = 0.0
    seconds_deleting: float = 0.0
    seconds_throttled: float = 0.0
    attempts: int = 0
    next_in: float = NEXT_REPORT
