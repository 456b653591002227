"""C19: a failing disk affects no partition on other disks. Pure.

Only clients of a single partition show it: like Apache Kafka, a node responds to a request with batches of several
partitions when the slowest of them is appended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from ops.torture.checks.facts import FaultFact, Place, RowFact, RunFact
from ops.torture.checks.index import Index, few, seconds, told
from ops.torture.history import OK, POLL, Event
from storage_node.model.error_types import ErrorType
from storage_node.model.moves import Outcome

SECOND = 1_000_000_000
#: Seconds that the cluster gets to recover after a process fault: clients find leaders, replicas catch up.
RECOVERY_SECONDS = 10.0
#: Seconds within which a record is acknowledged, and a consumer at the log end receives it, despite other disk faults.
PATIENCE_SECONDS = 5.0

RECOVERY, PATIENCE = int(RECOVERY_SECONDS * SECOND), int(PATIENCE_SECONDS * SECOND)
#: The errors with which a move fails because of a disk.
DISKS_REASONS = (ErrorType.LOG_DIR_OFFLINE, ErrorType.TARGET_FULL)

Span = tuple[int, int]


def disturbed(index: Index) -> list[str]:
    """Return C19's violations: while a directory fails, clients of partitions without a replica or copy in it make
    progress, the node's other directories stay online, and no move between other directories fails with a disk's error.
    """
    return [*few(_stalled(index)), *few(_unread(index)), *few(_taken_along(index)), *few(_failed_moves(index))]


def judged(index: Index) -> int:
    """Return how many sends C19 judges."""
    return sum(1 for _ in _sends(index))


def _quiet(index: Index, fault: FaultFact, place: Place) -> list[Span]:
    """Return the time spans in which no other fault can delay a partition without a replica in the directory."""
    spans = [(fault.since, fault.until)]
    taken = [(trouble.since, trouble.until + RECOVERY) for trouble in index.evidence.troubles]
    taken += [
        (each.since, (each.back or each.until) + RECOVERY)
        for each in index.evidence.faults
        if each is not fault and place in each.places
    ]
    for since, until in taken:
        spans = [
            piece
            for begin, end in spans
            for piece in ((begin, min(end, since)), (max(begin, until), end))
            if piece[0] < piece[1]
        ]
    return spans


def _clients(index: Index) -> dict[str, tuple[Place, list[Event]]]:
    """Return the sends of the clients that produce to a single partition, by client."""
    sends: dict[str, list[Event]] = defaultdict(list)
    for send in index.sends:
        sends[send.process].append(send)
    return {
        process: (events[0].place, events)
        for process, events in sends.items()
        if len({event.place for event in events}) == 1
    }


def _beside(index: Index) -> Iterator[tuple[FaultFact, str, Place, list[Event], Span]]:
    clients = _clients(index)
    for fault in index.evidence.faults:
        for process, (place, events) in clients.items():
            if place not in fault.places:
                for since, until in _quiet(index, fault, place):
                    yield fault, process, place, events, (since, until)


def _sends(index: Index) -> Iterator[tuple[FaultFact, str, Event]]:
    """Yield the sends that only a failing disk can have delayed, with at least `PATIENCE` left before the span ends."""
    for fault, process, _, events, (since, until) in _beside(index):
        for send in events:
            if since <= send.invoked <= until - PATIENCE:
                yield fault, process, send


def _stalled(index: Index) -> Iterator[str]:
    found: dict[tuple[int, str], list[Event]] = defaultdict(list)
    faults: dict[int, FaultFact] = {}
    for fault, process, send in _sends(index):
        faults[fault.since] = fault
        if send.type != OK or send.completed - send.invoked > PATIENCE:
            found[fault.since, process].append(send)
    for (since, process), late in found.items():
        first = min(late, key=lambda send: send.invoked)
        end = "acknowledged" if first.type == OK else f"failed ({first.error})"
        yield (
            f"{_while(faults[since])}, {process} sent {first.value} to {told(first.place)}, which is not in it, "
            f"at {seconds(first.invoked)}, and it was {end} {(first.completed - first.invoked) / SECOND:.1f} s later "
            f"({len(late)} sends)"
        )


def _unread(index: Index) -> Iterator[str]:
    for fault, process, place, events, (since, until) in _beside(index):
        reads = index.reads.get((process, place))
        if reads is None:
            continue
        polls = sorted((each for each in reads if each.op == POLL and each.records), key=lambda poll: poll.completed)
        times = [poll.completed for poll in polls]
        for send in sorted(events, key=lambda send: send.completed):
            if send.type != OK or send.offset < 0 or not since <= send.completed <= until - PATIENCE:
                continue
            # The consumer received it by the deadline.
            upto = bisect_left(times, send.completed + PATIENCE)
            if upto and max(poll.records[-1][0] for poll in polls[max(0, upto - 3) : upto]) >= send.offset:
                continue
            yield (
                f"{_while(fault)}, {send.value} was acknowledged by {told(place)}, which is not in it, at offset "
                f"{send.offset} at {seconds(send.completed)}, but {process} did not receive it within "
                f"{PATIENCE_SECONDS:g} s"
            )
            break


def _taken_along(index: Index) -> Iterator[str]:
    for fault in index.evidence.faults:
        for other in fault.offline:
            yield f"{_while(fault)}, {other} of the same node was offline"


def _failed_moves(index: Index) -> Iterator[str]:
    for run in index.evidence.runs:
        for row in run.rows:
            if row.outcome == Outcome.FAILED and row.error in DISKS_REASONS and not _by_a_fault(index, run, row):
                yield (
                    f"{run.workflow_id} did not move {told(row.place)} of node {run.node} from {row.source} to "
                    f"{row.directory} ({row.error}: {row.message}), although neither directory was failing"
                )


def _by_a_fault(index: Index, run: RunFact, row: RowFact) -> bool:
    """Return whether the source or the target was failing, or not yet online again, during the run.

    A run that failed before it found the source has none: then the partition must have had a replica in the directory.
    """
    topics = index.evidence.topics

    def names(place: Place) -> tuple[str, int]:
        return topics[place[0]].name if place[0] in topics else place[0], place[1]

    def was_there(fault: FaultFact) -> bool:
        return not row.source and names(row.place) in map(names, fault.places)

    return any(
        fault.node == run.node
        and (fault.directory in (row.source, row.directory) or was_there(fault))
        and (not run.until or fault.since <= run.until)
        and (not run.since or not fault.back or run.since <= fault.back)
        for fault in index.evidence.faults
    )


def _while(fault: FaultFact) -> str:
    return (
        f"while {fault.directory} of node {fault.node} failed ({fault.kind or 'a fault'}, {seconds(fault.since)} to "
        f"{seconds(fault.until)})"
    )
