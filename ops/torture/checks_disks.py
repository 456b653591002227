"""C19: what goes on beside a disk that fails. Pure.

Clients of one partition alone show it: a node responds to a request with batches of several partitions when the slowest
of them is done, as Apache Kafka does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from ops.torture.facts import FaultFact, Place, RowFact, RunFact
from ops.torture.history import OK, POLL, Event
from ops.torture.index import Index, few, seconds, told

SECOND = 1_000_000_000
#: Seconds that the cluster gets to recover after a process had trouble: clients find leaders, replicas catch up.
RECOVERY_SECONDS = 10.0
#: Seconds within which a record is acknowledged, and given to a consumer at the end, whatever another disk does.
PATIENCE_SECONDS = 5.0

RECOVERY, PATIENCE = int(RECOVERY_SECONDS * SECOND), int(PATIENCE_SECONDS * SECOND)
#: How a move fails because of a disk.
DISKS_REASONS = ("LogDirOffline", "TargetFull")

Span = tuple[int, int]


def disturbed(index: Index) -> list[str]:
    """C19: while a directory fails, clients of partitions that have nothing in it go on, the node's other directories
    stay online, and no move between others fails for it.
    """
    return [*few(_stalled(index)), *few(_unread(index)), *few(_taken_along(index)), *few(_failed_moves(index))]


def judged(index: Index) -> int:
    """Return how many sends were looked at."""
    return sum(1 for _ in _sends(index))


def _quiet(index: Index, fault: FaultFact, place: Place) -> list[Span]:
    """When nothing but this fault can have held up a partition that has nothing in the directory."""
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
    """The sends of the clients that send to one partition alone, by client."""
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
    """The sends that nothing but a failing disk can have held up, and that had time enough beside it."""
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
        word = "acknowledged" if first.type == OK else f"given up ({first.error})"
        yield (
            f"{_while(faults[since])}, {process} sent {first.value} to {told(first.place)}, which has nothing in it, "
            f"at {seconds(first.invoked)}, and it was {word} {(first.completed - first.invoked) / SECOND:.1f} s later "
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
            # Given already, or within the time that it has.
            upto = bisect_left(times, send.completed + PATIENCE)
            if upto and max(poll.records[-1][0] for poll in polls[max(0, upto - 3) : upto]) >= send.offset:
                continue
            yield (
                f"{_while(fault)}, {send.value} was acknowledged by {told(place)}, which has nothing in it, at offset "
                f"{send.offset} at {seconds(send.completed)}, but {process} was not given it within "
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
            if row.outcome == "failed" and row.error in DISKS_REASONS and not _by_a_fault(index, run, row):
                yield (
                    f"{run.workflow_id} did not move {told(row.place)} of node {run.node} from {row.source} to "
                    f"{row.directory} ({row.error}: {row.message}), though neither of them was failing"
                )


def _by_a_fault(index: Index, run: RunFact, row: RowFact) -> bool:
    """Whether the source or the target was failing while the run went on, or was not back yet.

    A run that could not begin may not know the source: then the partition must have been in the directory.
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
