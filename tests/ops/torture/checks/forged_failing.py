"""Anomalies during a disk fault, by the check that finds them: C19."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ops.torture.checks.facts import Evidence, FaultFact, FinalRead, Home, RowFact, RunFact, Scan, TopicFact
from ops.torture.history import ASSIGN, INFO, OK, POLL, SEND, Event
from tests.ops.torture.checks.forge import ORDERS, OTHER, SECOND, A, B, at, directory, one, with_events

Forger = Callable[[Evidence], Evidence]

#: A partition with a client of its own, in another directory than the failing one.
BEATS = ("beats", 0)
CLIENT, BEAT, COUNT = "beat-0", SECOND // 2, 40
FAILING = FaultFact(1, B, at(4), at(16), "disk-errors", "served on", (ORDERS,), (), 10, 5, at(17))


def with_a_failing_disk(e: Evidence) -> Evidence:
    """Return the evidence with a single fault, of B of node 1, and a client of a partition outside it."""
    values = [f"{CLIENT}-{offset}" for offset in range(COUNT)]
    events = [Event(CLIENT, ASSIGN, *BEATS, OK, at(0), at(0), offset=0)]
    for offset, value in enumerate(values):
        sent = at(0) + offset * BEAT
        events.append(Event(CLIENT, SEND, *BEATS, OK, sent, sent + SECOND // 10, value=value, offset=offset))
        given = sent + SECOND // 5
        events.append(Event(CLIENT, POLL, *BEATS, OK, sent, given, records=((offset, value),)))
    records = tuple(enumerate(values))
    here = e.directories[0]
    beside = directory(here.node, here.path, (*here.replicas, BEATS))
    return replace(
        e,
        history=[*e.history, *events],
        topics={**e.topics, "beats": TopicFact("beats", "beats", 1)},
        final={**e.final, BEATS: FinalRead(0, COUNT, records)},
        scans=[*e.scans, Scan(1, A, BEATS, (), records, 1400)],
        homes={**e.homes, BEATS: Home((1,), (A,), (1,), (1,), 1)},
        directories=[beside, *e.directories[1:]],
        faults=[FAILING],
    )


def late(event: Event, op: str) -> bool:
    """Return whether the client invoked it from the third to the ninth second of the fault."""
    return event.process == CLIENT and event.op == op and at(7) <= event.invoked < at(13)


def sends_stall(e: Evidence) -> Evidence:
    """The client's sends during the fault are acknowledged only after six seconds."""
    return with_events(
        with_a_failing_disk(e), lambda x: replace(x, completed=max(x.completed, at(13))) if late(x, SEND) else x
    )


def sends_are_given_up(e: Evidence) -> Evidence:
    def change(x: Event) -> Event:
        return replace(x, type=INFO, offset=-1, error="_MSG_TIMED_OUT") if late(x, SEND) else x

    return with_events(with_a_failing_disk(e), change)


def reads_stall(e: Evidence) -> Evidence:
    """The consumer receives the records acknowledged during the fault six seconds late."""
    return with_events(
        with_a_failing_disk(e), lambda x: replace(x, completed=x.completed + 6 * SECOND) if late(x, POLL) else x
    )


def another_directory_was_taken_along(e: Evidence) -> Evidence:
    return replace(e, faults=[replace(FAILING, offline=(A,))])


def move_failed_between_others(e: Evidence) -> Evidence:
    return with_move(e, A, "/n1/disk-c")


def move_failed_on_another_node(e: Evidence) -> Evidence:
    return with_move(e, A, B, node=2)


def move_failed_before_the_disk_did(e: Evidence) -> Evidence:
    return with_move(e, A, B, until=at(3))


def move_failed_after_the_disk_was_back(e: Evidence) -> Evidence:
    return with_move(e, A, B, since=at(18), until=at(19))


def with_move(
    e: Evidence, source: str, target: str, *, node: int = 1, since: int = at(3), until: int = at(8)
) -> Evidence:
    """Return the evidence with a move between these directories that failed because of a disk."""
    row = RowFact(OTHER, "failed", target, 0, "LogDirOffline", "a directory is offline", source)
    run = RunFact("move-9", node, "failed", "LogDirOffline: it is offline", (row,), "", since, until)
    return replace(e, runs=[*e.runs, run], faults=[FAILING])


def full_disk_of_another(e: Evidence) -> Evidence:
    changed = with_move(e, A, "/n1/disk-c")
    run = changed.runs[-1]
    return replace(changed, runs=[*changed.runs[:-1], replace(run, rows=one(run.rows, 0, error="TargetFull"))])


ANOMALIES: dict[str, list[Forger]] = {
    "C19": [
        sends_stall,
        sends_are_given_up,
        reads_stall,
        another_directory_was_taken_along,
        move_failed_between_others,
        move_failed_on_another_node,
        move_failed_before_the_disk_did,
        move_failed_after_the_disk_was_back,
        full_disk_of_another,
    ],
}
