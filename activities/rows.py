"""From what the engine says about a replica to the rows that stand in results, heartbeats and reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from activities.errors import Classified, classify_name
from storage_node.types import TopicPartition
from workflows.model.calls import (
    CAUGHT_UP,
    CREATED,
    DROPPED,
    FAILED,
    IN_PLACE,
    SWAPPED,
    MoveRow,
    ReplicaMove,
    read_row,
)

if TYPE_CHECKING:
    from storage_node.move.status import MoveStatus

#: What adds up over attempts, steps and restarts of the node.
TOTALS = ("seconds_queued", "seconds_copying", "seconds_throttled", "seconds_stalled", "attempts", "bytes_written")

#: The engine's state -> what the step `copy` ends with for this replica; any other state is still under way.
ENDS = {
    "caught_up": CAUGHT_UP,
    "swapped": SWAPPED,
    "in_place": IN_PLACE,
    "cancelled": DROPPED,
    "failed": FAILED,
}


#: What one copy's counters belong to: partition, claim, target directory.
MoveKey = tuple[TopicPartition, int, str]


def key_of(move: ReplicaMove) -> MoveKey:
    return partition_of(move), move.claim, move.directory


def partition_of(move: ReplicaMove) -> TopicPartition:
    return TopicPartition(move.topic, move.partition)


def made(row: MoveRow) -> ReplicaMove:
    """The replica of a `.move` that was made, with the claim and generation it has."""
    return ReplicaMove(row.topic, row.partition, row.directory, row.claim, row.generation)


def plain(row: MoveRow) -> dict[str, Any]:
    """A row as a heartbeat or a signal carries it."""
    return asdict(row)


def read_rows(found: Iterable[Any]) -> dict[TopicPartition, MoveRow]:
    """Rows that come back as plain objects; what cannot be read is left out."""
    rows = (read_row(MoveRow, one) for one in found)
    return {TopicPartition(row.topic, row.partition): row for row in rows if row is not None}


def blank(move: ReplicaMove, outcome: str = CREATED) -> MoveRow:
    """The row of a replica of which nothing more is known."""
    return MoveRow(
        topic=move.topic,
        partition=move.partition,
        outcome=outcome,
        directory=move.directory,
        claim=move.claim,
        generation=move.generation,
    )


def failed(move: ReplicaMove, error: Classified, known: MoveRow | None = None) -> MoveRow:
    """The row of a replica that ended with a final error."""
    return replace(known or blank(move), outcome=error.outcome, error=error.type, message=error.message)


def from_status(move: ReplicaMove, status: MoveStatus, outcome: str, base: MoveRow | None = None) -> MoveRow:
    """The row of a replica by its status, on top of the totals that earlier attempts reached (`base`)."""
    row = MoveRow(
        topic=move.topic,
        partition=move.partition,
        outcome=outcome,
        source=status.source,
        directory=status.directory or move.directory,
        claim=move.claim or status.claim,
        generation=status.generation or move.generation,
        bytes_total=status.bytes_total,
        bytes_copied=status.bytes_copied,
        bytes_resumed=status.bytes_resumed,
        seconds_queued=status.seconds_queued,
        seconds_copying=status.seconds_copying,
        seconds_throttled=status.seconds_throttled,
        seconds_stalled=status.seconds_stalled,
        seconds_locked=status.seconds_locked,
        attempts=status.attempt,
        bytes_written=status.bytes_written,
        seconds_by_reason=dict(status.seconds_by_reason),
    )
    if status.error:
        error = classify_name(status.error, status.message)
        row = replace(row, error=error.type, message=error.message)
        if outcome == FAILED:
            row = replace(row, outcome=error.outcome)
    return added(row, base)


def already_ended(move: ReplicaMove, status: MoveStatus | None, base: MoveRow | None) -> MoveRow | None:
    """The row of a replica whose move under this claim was cancelled or swapped by something else, or failed for good
    while nobody looked; else None.
    """
    if status is None or status.claim != move.claim or str(status.state) not in ("cancelled", "swapped", "failed"):
        return None
    if str(status.state) == "failed" and classify_name(status.error, status.message).retryable:
        return None
    return from_status(move, status, ENDS[status.state], base)


def created(move: ReplicaMove, status: MoveStatus, outcome: str, before: MoveRow | None) -> MoveRow:
    """The row of a `.move` that was made or found, with the claim and generation that the node has issued.

    It has no totals of its own, as its copy counts them; `before` is the row of a copy to elsewhere, replaced, whose
    bytes do not count.
    """
    row = replace(
        blank(move, outcome),
        source=status.source,
        directory=status.directory or move.directory,
        claim=status.claim or move.claim,
        generation=status.generation or move.generation,
        bytes_total=status.bytes_total,
    )
    return added(row, replace(before, bytes_copied=0, bytes_resumed=0) if before is not None else None)


def added(row: MoveRow, base: MoveRow | None) -> MoveRow:
    """`row` with the totals of `base` on top, and what only earlier steps know filled in."""
    if base is None:
        return row
    totals = {name: getattr(row, name) + getattr(base, name) for name in TOTALS}
    spent, before = row.seconds_by_reason, base.seconds_by_reason
    by_reason = {
        reason: round(spent.get(reason, 0.0) + before.get(reason, 0.0), 3) for reason in sorted({*spent, *before})
    }
    return replace(
        row,
        source=row.source or base.source,
        bytes_total=max(row.bytes_total, base.bytes_total),
        bytes_copied=max(row.bytes_copied, base.bytes_copied),
        bytes_resumed=max(row.bytes_resumed, base.bytes_resumed),
        seconds_by_reason=by_reason,
        **totals,
    )


def live(status: MoveStatus | None) -> dict[str, Any]:
    """What holds of a copy now, beside its row; rates in bytes per second."""
    if status is None:
        return {"state": "queued", "rate": 0.0, "append_rate": 0.0, "stall": "", "stall_message": ""}
    return {
        "state": str(status.state),
        "rate": status.rate,
        "append_rate": status.append_rate,
        "stall": str(status.stall),
        "stall_message": status.stall_message,
    }


def progress(row: MoveRow, status: MoveStatus | None, next_in: float) -> dict[str, Any]:
    """What the signal `copy_progress` carries for one replica; rates in bytes per second.

    Bytes and seconds are those of the row. The next report comes in at most `next_in` seconds, if the node can send
    one.
    """
    return {
        **live(status),
        "topic": row.topic,
        "partition": row.partition,
        "bytes_total": row.bytes_total,
        "directory": row.directory,
        "bytes_copied": row.bytes_copied,
        "bytes_resumed": row.bytes_resumed,
        "next_in": round(next_in, 3),
        "attempt": row.attempts,
        "seconds_copying": row.seconds_copying,
        "seconds_throttled": row.seconds_throttled,
        "bytes_written": row.bytes_written,
        "seconds_by_reason": row.seconds_by_reason,
    }
