"""What can be said about a move, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from storage_node.types import TopicPartition


class MoveState(StrEnum):
    """Where a move stands."""

    QUEUED = "queued"  # `.move` is there, no mover is free
    COPYING = "copying"
    THROTTLED = "throttled"  # copying, and just now held back by a limiter
    CAUGHT_UP = "caught_up"  # the copy reached the source: the swap can be tried
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    CANCELLED = "cancelled"
    FAILED = "failed"  # `error` and `message` say why
    STOPPED = "stopped"  # paused, or all moves of the node are stopped; `.move` stays
    SUSPENDED = "suspended"  # left alone at the start; `message` says why
    IN_PLACE = "in_place"  # the replica is in the directory asked for

    @property
    def under_way(self) -> bool:
        """Whether waiting for it makes sense."""
        return self in (MoveState.QUEUED, MoveState.COPYING, MoveState.THROTTLED, MoveState.SWAPPING)


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """One move. Directories are absolute paths, times seconds, sizes bytes, `rate` bytes per second over the last
    seconds.

    `bytes_copied` counts what the copy holds, `bytes_resumed` how much of it was found valid on disk when this
    process went on with it. `seconds_stalled` is time spent waiting for flushes, `seconds_locked` how long
    the last swap held the log. `bytes_written` is what this process wrote into the copy, `append_rate` how fast
    the source grows. `stall` is what holds the move now (`stall.StallReason`, "" when it copies), `stall_message` says
    so with names and figures, `seconds_by_reason` is where its time went.

    `error` is a stable type name (LogDirOffline, TargetFull, CorruptSource,
    StaleClaim, MovesStopped, NodeFailure), `message` one sentence.
    """

    tp: TopicPartition
    state: MoveState
    source: str = ""
    directory: str = ""
    claim: int = 0
    generation: int = 0
    owner: str = ""
    run_id: str = ""
    bytes_total: int = 0
    bytes_copied: int = 0
    bytes_resumed: int = 0
    rate: float = 0.0
    seconds_queued: float = 0.0
    seconds_copying: float = 0.0
    seconds_throttled: float = 0.0
    seconds_stalled: float = 0.0
    seconds_locked: float = 0.0
    error: str = ""
    message: str = ""
    attempt: int = 0
    lag: int = 0  # offsets between the ends of source and copy
    throttle: int | None = None
    bytes_written: int = 0
    append_rate: float = 0.0
    stall: str = ""
    stall_message: str = ""
    seconds_by_reason: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with topic and partition apart."""
        values = asdict(self)
        del values["tp"]
        return {"topic": self.tp.topic, "partition": self.tp.partition, **values, "state": str(self.state)}


@dataclass(frozen=True, slots=True)
class WaitingDeletion:
    """What a swap has left of its source, in `directory` (absolute): due in so many seconds, below 0 when it is due."""

    tp: TopicPartition
    directory: str
    generation: int
    due: float


@dataclass(frozen=True, slots=True)
class SwapOutcome:
    """What a swap came to: "swapped", or "behind" when the source ran away and the copy has to go on first."""

    outcome: str
    seconds_locked: float = 0.0
    generation: int = 0  # of the replica that is served now
    delete_after: float = 0.0  # seconds until the source's `.delete` is due


SWAPPED = "swapped"
BEHIND = "behind"
