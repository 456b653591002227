"""The forged evidence of a run without violations, and small changes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ops.torture.checks.facts import (
    Batch,
    Boot,
    DirectoryFact,
    Evidence,
    FaultFact,
    FinalRead,
    Home,
    LeaderFact,
    LimitFact,
    Place,
    RateSample,
    ReassignFact,
    ReassignRunFact,
    RoleFact,
    RowFact,
    RunFact,
    Scan,
    SwapFact,
    ThrottleFact,
    TopicFact,
)
from ops.torture.history import ASSIGN, DELETE, FAIL, INFO, MARKS, OK, OUT_OF_RANGE, POLL, SEND, Event

SECOND = 1_000_000_000
COUNT = 20
#: Offsets below which DeleteRecords (orders-0) and retention (ticks-0) deleted the records.
DELETED, RETAINED = 4, 6
A, B = "/n1/disk-a", "/n1/disk-b"
#: `PAYS` is replicated: node 2 leads it, and node 3 has replaced node 4.
ORDERS, OTHER, TICKS, PAYS = ("orders", 0), ("orders", 1), ("ticks", 0), ("pays", 0)
PLACES = (ORDERS, OTHER, TICKS, PAYS)
IDLE = ("idle-0000", 0)
A2, A3, A4 = "/n2/disk-a", "/n3/disk-a", "/n4/disk-a"
HOMES = {
    **{place: Home((1,), (d,), (1,), (1,), 1) for place, d in ((ORDERS, B), (OTHER, A), (TICKS, A), (IDLE, A))},
    PAYS: Home((1, 2, 3), (A, A2, A3), (1, 1, 0), (2, 1, 3), 2),
}
RATE = 1_000_000


def value(place: Place, offset: int) -> str:
    """Even offsets were sent by the idempotent producer, odd ones by the plain one."""
    return f"{'sure' if offset % 2 == 0 else 'plain'}-{place[0]}{place[1]}-{offset}"


def at(offset: int) -> int:
    """Return the time at which the record at this offset was sent."""
    return SECOND * (10 + offset)


def _history() -> list[Event]:
    events: list[Event] = []
    for place in PLACES:
        for offset in range(COUNT):
            sent, what = at(offset), value(place, offset)
            name = what.split("-")[0]
            done = sent + SECOND // 10
            events.append(Event(name, SEND, *place, OK, sent, done, value=what, offset=offset, sound=name == "sure"))
        events.append(Event("reader", ASSIGN, *place, OK, at(0), at(0), offset=0))
        for first in range(0, COUNT, 5):
            records = tuple((offset, value(place, offset)) for offset in range(first, first + 5))
            sent = at(first + 5)
            events.append(Event("reader", POLL, *place, OK, sent, sent + SECOND // 5, records=records))
            low = {ORDERS: DELETED, TICKS: RETAINED}.get(place, 0) if first >= 5 else 0
            marks = {"low": low, "high": min(first + 6, COUNT)}
            events.append(Event("reader", MARKS, *place, OK, sent + SECOND // 2, sent + SECOND * 6 // 10, **marks))
    refused = {"value": "plain-refused", "error": "MSG_SIZE_TOO_LARGE", "sound": False}
    events.append(Event("plain", SEND, *ORDERS, FAIL, at(3), at(4), **refused))
    events.append(Event("sure", SEND, *OTHER, INFO, at(COUNT), at(COUNT + 1), value="sure-open", error="_TIMED_OUT"))
    events.append(Event("nemesis", DELETE, *ORDERS, OK, at(9), at(9) + 1, offset=DELETED))
    # Deletion and retention overtake a slow reader.
    for place, low in ((ORDERS, DELETED), (TICKS, RETAINED)):
        events.append(Event("slow", ASSIGN, *place, OK, at(8), at(8), offset=0))
        error = {"error": OUT_OF_RANGE, "offset": 0, "low": low, "high": 15}
        events.append(Event("slow", POLL, *place, FAIL, at(14), at(14) + 1, **error))
        events.append(Event("slow", ASSIGN, *place, OK, at(14) + 2, at(14) + 3, offset=low))
        there = tuple((offset, value(place, offset)) for offset in range(low, 15))
        events.append(Event("slow", POLL, *place, OK, at(15), at(15) + SECOND // 2, records=there))
    return events


def _final() -> dict[Place, FinalRead]:
    lows = {ORDERS: DELETED, TICKS: RETAINED}
    return {
        place: FinalRead(low, COUNT, tuple((o, value(place, o)) for o in range(low, COUNT)))
        for place in PLACES
        for low in [lows.get(place, 0)]
    }


def _batches() -> tuple[Batch, ...]:
    return tuple(Batch(base, base + 4, 1000 + base) for base in range(0, COUNT, 5))


def directory(node: int, path: str, replicas: Sequence[Place]) -> DirectoryFact:
    """Return a log directory with only these replicas."""
    return DirectoryFact(node, path, "", tuple(replicas), (), tuple(f"{t}-{p}" for t, p in replicas))


def _samples() -> list[RateSample]:
    key = ("orders", 0, B, 1)
    step = SECOND // 4
    return [
        RateSample(1, at(0) + n * step, at(0) + n * step + SECOND // 100, ((key, n * RATE // 4, RATE),))
        for n in range(80)
    ]


def sound() -> Evidence:
    """Return the evidence of a run without violations: a deletion, retention, a rejected and an open send, a swap, a
    failed move, two elections, a cancelled and a completed reassignment, a partition that no client uses.
    """
    final = _final()
    return Evidence(
        history=_history(),
        topics={
            "orders": TopicFact("orders", "orders", 2),
            "ticks": TopicFact("ticks", "ticks", 1, retention_bytes=1000),
            "visits@1": TopicFact("visits@1", "visits", 1, deleted=True),
            "pays": TopicFact("pays", "pays", 1, replicas=3),
            "idle-0000": TopicFact("idle-0000", "idle-0000", 1, used=False),
        },
        final=final,
        scans=[
            Scan(node, path, p, _batches(), final[p].records, 1400)
            for p in PLACES
            for node, path in zip(HOMES[p].replicas, HOMES[p].directories, strict=True)
        ],
        swaps=[SwapFact(at(12), 1, ORDERS, A, B, 2, DELETED, 12, 12, 0, 13, 3)],
        runs=[
            RunFact("move-1", 1, "completed", rows=(RowFact(ORDERS, "deleted", B, 2),)),
            RunFact("move-2", 1, "canceled"),
            RunFact(
                "move-3", 1, "failed", "TargetFull: no room", (RowFact(OTHER, "failed", B, 0, "TargetFull", "no"),)
            ),
        ],
        directories=[
            directory(1, A, [OTHER, TICKS, PAYS, IDLE]),
            directory(1, B, [ORDERS]),
            directory(2, A2, [PAYS]),
            directory(3, A3, [PAYS]),
            directory(4, A4, []),
        ],
        homes=dict(HOMES),
        samples=_samples(),
        limits=[LimitFact(1, 0, 1, 2 * RATE)],
        throttles=[ThrottleFact(1, "rate", "100", ("100",))],
        faults=[FaultFact(1, B, at(5), at(8))],
        roles=[RoleFact("node-1", True), RoleFact("controller", True)],
        boots=[Boot({(1, B, "orders-0"): "CURRENT 0 to 19"}), Boot({(1, B, "orders-0"): "CURRENT 0 to 19"})],
        leaders=[
            LeaderFact(PAYS, "id", epoch, leader, "node 1", at(epoch)) for epoch, leader in ((0, 1), (1, 4), (3, 2))
        ],
        batches=4,
        initial={PAYS: (1, 2, 4)},
        asked=[
            ReassignFact(PAYS, (3, 1, 2), OK, at(5), at(6)),
            ReassignFact(PAYS, None, OK, at(7), at(8)),
            ReassignFact(PAYS, (4, 3, 1), FAIL, at(9), at(10), "INVALID_REPLICA_ASSIGNMENT"),
            ReassignFact(PAYS, (1, 2, 3), OK, at(11), at(12)),
        ],
        reassignments=[ReassignRunFact("reassign-1", "canceled"), ReassignRunFact("reassign-2", "completed")],
    )


# Changes


def with_events(evidence: Evidence, change: Callable[[Event], Event | None], *more: Event) -> Evidence:
    """Return the evidence with every event changed (None: removed), and with `more` events."""
    changed = [new for event in evidence.history if (new := change(event)) is not None]
    return replace(evidence, history=[*changed, *more])


def with_final(evidence: Evidence, place: Place, change: Callable[[FinalRead], FinalRead]) -> Evidence:
    """Return the evidence with one partition's final read changed, on disk as well."""
    read = change(evidence.final[place])
    scans = [replace(s, records=read.records) if s.place == place else s for s in evidence.scans]
    return replace(evidence, final={**evidence.final, place: read}, scans=scans)


def without(read: FinalRead, *offsets: int) -> FinalRead:
    """Return a final read without some offsets."""
    return replace(read, records=tuple(r for r in read.records if r[0] not in offsets))


def cut_at(read: FinalRead, end: int) -> FinalRead:
    """Return a final read that ends at `end`."""
    return FinalRead(read.low, end, tuple(r for r in read.records if r[0] < end))


def from_low(read: FinalRead, low: int) -> FinalRead:
    """Return a final read that begins at `low`."""
    return FinalRead(low, read.high, tuple(r for r in read.records if r[0] >= low))


def renamed(read: FinalRead, offset: int, what: str) -> FinalRead:
    """Return a final read with another value at an offset."""
    return replace(read, records=tuple((o, what if o == offset else v) for o, v in read.records))


def appended(read: FinalRead, what: str) -> FinalRead:
    """Return a final read with one more record."""
    return FinalRead(read.low, read.high + 1, (*read.records, (read.high, what)))


def is_send(event: Event, place: Place, offset: int) -> bool:
    return event.op == SEND and event.place == place and event.offset == offset


def one(items: Sequence[Any], number: int, **changes: Any) -> list[Any]:
    """Return a list with one of its values changed."""
    return [replace(item, **changes) if n == number else item for n, item in enumerate(items)]
