"""Describe the status of a move, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """One move. Directories are absolute paths, times seconds, sizes bytes, `rate` bytes per second over the last
    seconds.

    `bytes_copied` counts what the copy holds, `bytes_resumed` how much of it was valid on disk when this process
    resumed it. `seconds_stalled` is time spent waiting for flushes, `seconds_locked` how long the last swap held the
    log. `bytes_written` is what this process wrote into the copy, `append_rate` how fast the source grows. `stall` is
    what holds the move now (a `StallReason`, "" when it copies), `stall_message` gives the reason with names and
    figures, `seconds_by_reason` attributes its time.

    `error` is the stable type of the failure (an `ErrorType`, "" without one), `message` its description.
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
        """Return plain values, with topic and partition apart."""
        values = asdict(self)
        del values["tp"]
        return {"topic": self.tp.topic, "partition": self.tp.partition, **values, "state": str(self.state)}


@dataclass(frozen=True, slots=True)
class DelayedDeletion:
    """The source that a swap left in `directory` (absolute), due in this many seconds, below 0 when it is overdue."""

    tp: TopicPartition
    directory: str
    generation: int
    due: float


@dataclass(frozen=True, slots=True)
class SwapOutcome:
    """The result of a swap: SWAPPED, or BEHIND when the source outgrew the copy, which has to continue first."""

    outcome: Outcome
    seconds_locked: float = 0.0
    generation: int = 0  # of the replica that the node serves now
    delete_after: float = 0.0  # seconds until the source's `.delete` is due
