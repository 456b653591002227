"""The table of cases that every judge of a deadline passes: the model, a run with its lane, and Spark."""

from __future__ import annotations

from dataclasses import dataclass

from storage_node.model.sla import SlaVerdict

YES, NO, NO_SLA, NOT_DUE, EXCLUDED = SlaVerdict


@dataclass(frozen=True)
class SlaCase:
    """A lane whose replicas ended, or not, after some seconds; with the verdicts on the lane and on each replica.

    `rows` has the outcome and the error of each replica, with "open" for one that is under way.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    deadline: float | None
    after: float  # seconds until the end, or until now
    lane: SlaVerdict
    replicas: tuple[SlaVerdict, ...]


FULL = ("failed", "TargetFull")
SWAPPED, CANCELLED, OPEN = ("swapped", ""), ("cancelled", ""), ("open", "")
CASES = (
    SlaCase("in place in time", (SWAPPED,), 600.0, 600.0, YES, (YES,)),
    SlaCase("in place already", (("in_place", ""),), 600.0, 1.0, YES, (YES,)),
    SlaCase("in place late", (SWAPPED,), 600.0, 600.1, NO, (NO,)),
    SlaCase("failed after 5 s of 600", (FULL,), 600.0, 5.0, NO, (NO,)),
    SlaCase("failed late", (FULL,), 600.0, 601.0, NO, (NO,)),
    SlaCase("one full target and a swap", (FULL, SWAPPED), 600.0, 5.0, NO, (NO, YES)),
    SlaCase("invalid parameter", (("failed", "InvalidPlan"),), 600.0, 0.1, EXCLUDED, (EXCLUDED,)),
    SlaCase("cancelled in time", (CANCELLED,), 600.0, 5.0, EXCLUDED, (EXCLUDED,)),
    SlaCase("cancelled late", (CANCELLED,), 600.0, 601.0, NO, (NO,)),
    SlaCase("one cancelled and a swap", (CANCELLED, SWAPPED), 600.0, 5.0, YES, (EXCLUDED, YES)),
    SlaCase("superseded in time", (("superseded", "Superseded"),), 600.0, 5.0, EXCLUDED, (EXCLUDED,)),
    SlaCase("open and late", (OPEN,), 600.0, 601.0, NO, (NO,)),
    SlaCase("open and in time", (OPEN,), 600.0, 5.0, NOT_DUE, (NOT_DUE,)),
    SlaCase("no deadline", (SWAPPED,), None, 5.0, NO_SLA, (NO_SLA,)),
    SlaCase("failed without a deadline", (FULL,), None, 5.0, NO_SLA, (NO_SLA,)),
)
