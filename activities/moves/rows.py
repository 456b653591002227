"""Converts the move engine's status of a replica to the rows of results, heartbeats and reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from activities.errors import Classified, classify_name
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome
from workflows.model.calls import MoveRow, ReplicaMove, read_row
from workflows.model.reports import LiveMoveRow, MoveReport

if TYPE_CHECKING:
    from storage_node.move.status import MoveStatus

#: The fields that add up over attempts, steps and restarts of the node.
TOTALS = ("seconds_queued", "seconds_copying", "seconds_throttled", "seconds_stalled", "attempts", "bytes_written")

#: The engine's state -> the outcome of the step `copy`; in any other state the copy is in progress.
ENDS = {
    MoveState.CAUGHT_UP: Outcome.CAUGHT_UP,
    MoveState.SWAPPED: Outcome.SWAPPED,
    MoveState.IN_PLACE: Outcome.IN_PLACE,
    MoveState.CANCELLED: Outcome.CANCELLED,
    MoveState.FAILED: Outcome.FAILED,
}

#: States in which a move has ended before a late step.
ENDED_ELSEWHERE = (MoveState.CANCELLED, MoveState.SWAPPED, MoveState.FAILED)

#: The key of one copy's counters: partition, claim, target directory.
MoveKey = tuple[TopicPartition, int, str]
#: Moves whose totals are kept: more than a node has replicas.
MOST_BASES = 20_000


def key_of(move: ReplicaMove) -> MoveKey:
    return partition_of(move), move.claim, move.directory


def keep_base(bases: dict[MoveKey, MoveRow], move: ReplicaMove, row: MoveRow) -> None:
    """Keep the totals of a move's earlier steps and attempts, unless they are known; the oldest ones make room."""
    bases.setdefault(key_of(move), row)
    while len(bases) > MOST_BASES:
        bases.pop(next(iter(bases)), None)


def partition_of(move: ReplicaMove) -> TopicPartition:
    return TopicPartition(move.topic, move.partition)


def made(row: MoveRow) -> ReplicaMove:
    """Return the replica of a created `.move`, with its claim and generation."""
    return ReplicaMove(row.topic, row.partition, row.directory, row.claim, row.generation)


def read_rows(found: Iterable[Any]) -> dict[TopicPartition, MoveRow]:
    """Return the rows in plain objects, without unreadable ones."""
    rows = (read_row(MoveRow, one) for one in found)
    return {TopicPartition(row.topic, row.partition): row for row in rows if row is not None}


def blank(move: ReplicaMove, outcome: Outcome = Outcome.CREATED) -> MoveRow:
    """Return the row of a replica without any facts yet."""
    return MoveRow(
        topic=move.topic,
        partition=move.partition,
        outcome=outcome,
        directory=move.directory,
        claim=move.claim,
        generation=move.generation,
    )


def failed(move: ReplicaMove, error: Classified, known: MoveRow | None = None) -> MoveRow:
    """Return the row of a replica that ended with a final error."""
    return replace(known or blank(move), outcome=error.outcome, error=error.type, message=error.message)


def from_status(move: ReplicaMove, status: MoveStatus, outcome: Outcome, base: MoveRow | None = None) -> MoveRow:
    """Return the row of a replica by its status, added to the totals of earlier attempts (`base`)."""
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
        if outcome == Outcome.FAILED:
            row = replace(row, outcome=error.outcome)
    return added(row, base)


def already_ended(move: ReplicaMove, status: MoveStatus | None, base: MoveRow | None) -> MoveRow | None:
    """Return the row of a replica whose move under this claim has ended outside of this step: cancelled, swapped, or
    failed for good; else None.
    """
    if status is None or status.claim != move.claim or status.state not in ENDED_ELSEWHERE:
        return None
    if status.state is MoveState.FAILED and classify_name(status.error, status.message).retryable:
        return None
    return from_status(move, status, ENDS[status.state], base)


def created(move: ReplicaMove, status: MoveStatus, outcome: Outcome, before: MoveRow | None) -> MoveRow:
    """Return the row of a `.move` that was created or exists, with the claim and generation that the node has issued.

    It has no totals, which its copy counts; `before` is the row of a replaced copy to another directory, whose bytes do
    not count.
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
    """Return `row` with the totals of `base` added, and with the facts that only `base` has."""
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


def live(row: MoveRow, status: MoveStatus | None) -> LiveMoveRow:
    """Return a row with the live values of its copy."""
    return LiveMoveRow(**vars(row), **_live(status))


def _live(status: MoveStatus | None) -> dict[str, Any]:
    if status is None:
        return {"state": MoveState.QUEUED}
    names = ("state", "rate", "append_rate", "stall", "stall_message")
    return {name: getattr(status, name) for name in names}


def report(row: MoveRow, status: MoveStatus | None, next_in: float) -> MoveReport:
    """Return one replica's report to its run. Bytes and seconds are those of the row."""
    names = [each.name for each in fields(MoveReport) if hasattr(row, each.name)]
    facts = {name: getattr(row, name) for name in names}
    return MoveReport(**facts, **_live(status), attempt=row.attempts, next_in=round(next_in, 3))
