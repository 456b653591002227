"""A report made by hand, for tests of what is shown."""

from __future__ import annotations

from dataclasses import replace

from ops.analytics.report import Attainment, Move, Phase, Report

WELL = Move(
    id="rehome/move/1/orders-0/1/aaaaaaaa/orders-0",
    workflow_id="rehome/move/1/orders-0/1",
    replica="orders-0",
    node=1,
    source="/data/n1/d1",
    directory="/data/n1/d2",
    outcome="moved",
    reason=None,
    message=None,
    phase=None,
    started="2026-11-20T10:00:00.000000Z",
    finished="2026-11-20T10:00:12.500000Z",
    duration_seconds=12.5,
    open=False,
    bytes_total=200_000_000,
    bytes_copied=200_000_000,
    bytes_resumed=50_000_000,
    bytes_written=150_000_000,
    mean_rate=19_800_000.0,
    throttle=20_000_000.0,
    attempts=2,
    seconds_queued=1.5,
    seconds_copying=8.0,
    seconds_throttled=2.0,
    seconds_stalled=0.0,
    seconds_locked=0.0042,
    seconds_delete_delay=5.0,
    spent={"copying": 8.0, "queued": 1.5, "run_limit": 2.0, "unavailable": 0.5},
    stall=None,
    stall_message=None,
    deadline_seconds=30.0,
    deadline="2026-11-20T10:00:30.000000Z",
    met_sla="yes",
)
LATE = replace(
    WELL,
    id="rehome/move/2/payments-1/1/bbbbbbbb/payments-1",
    replica="payments-1",
    node=2,
    duration_seconds=42.0,
    finished="2026-11-20T10:00:42.000000Z",
    met_sla="no",
)
FAILED = replace(
    WELL,
    id="rehome/move/1/audit-3/1/cccccccc/audit-3",
    replica="audit-3",
    outcome="failed",
    reason="TargetFull",
    message="/data/n1/d2 is full: audit-3 stays in /data/n1/d1",
    met_sla="no deadline",
    deadline_seconds=None,
    deadline=None,
)
OPEN = replace(
    WELL,
    id="rehome/move/3/clicks-2/1/dddddddd/clicks-2",
    replica="clicks-2",
    node=3,
    outcome="open",
    open=True,
    phase="copying",
    finished=None,
    duration_seconds=50.0,
    met_sla="not due",
    deadline_seconds=6000.0,
    deadline="2026-11-20T11:40:00.000000Z",
)
NASTY = "</script><script>alert(1)</script><b>t</b>"


def phases_of(move: Move) -> tuple[Phase, ...]:
    """A few intervals."""
    day = "2026-11-20T10:00:"
    return (
        Phase(move.id, "queued", f"{day}00.100000Z", f"{day}01.600000Z", 1.5, False),
        Phase(move.id, "copying", f"{day}01.600000Z", f"{day}09.600000Z", 8.0, False),
        Phase(move.id, "throttled", f"{day}09.600000Z", f"{day}11.600000Z", 2.0, False),
        Phase(move.id, "swapping", f"{day}12.480000Z", f"{day}12.500000Z", 0.02, True),
        Phase(move.id, "delete_delay", f"{day}12.500000Z", f"{day}17.500000Z", 5.0, True),
    )


def total(**changes: object) -> Attainment:
    """The row over all moves."""
    row = Attainment(
        "all", "", 4, 2, 1, 0, 1, 3, 1, 1, 1, 0, 0.5, 0.0945, 0.9055, 600_000_000, 27.25, 40.5, 42.0, 19_800_000.0
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def report(*moves: Move) -> Report:
    """Those moves, or one of each kind."""
    shown = moves or (WELL, LATE, FAILED, OPEN)
    node = replace(total(), scope="node", value="1")
    return Report(
        as_of="2026-11-20T10:00:50.000000Z",
        runs=7,
        moves=tuple(shown),
        phases=tuple(phase for move in shown for phase in phases_of(move)),
        summary=(total(moves=len(shown)), node),
    )


EMPTY = Report("2026-11-20T10:00:50.000000Z", 0, (), (), ())
