"""Judge deadlines: the one table of verdicts, for a run, a replica's move and a plan.

A run judges its lane, all its replicas together; the analytics judge each replica of it, and each plan. The verdicts of
a lane and of its replicas therefore differ where its replicas end differently. Both follow this table; its cases are in
`tests/support/sla_cases.py`.
"""

from __future__ import annotations

from enum import StrEnum

from storage_node.model.error_types import ErrorType
from storage_node.model.moves import MOVED, Outcome


class SlaVerdict(StrEnum):
    """Whether a deadline was met."""

    YES = "yes"
    NO = "no"
    NO_SLA = "no deadline"
    NOT_DUE = "not due"  # under way, and the deadline is ahead
    EXCLUDED = "excluded"  # ended in time without a result that counts


#: The outcomes that meet a deadline: of a replica, of a move in the tables, of a plan.
IN_TARGET = frozenset({*MOVED, "moved", "done"})
#: The outcomes that count neither as met nor as missed: an operator or a newer request ended it.
WITHDRAWN = frozenset({Outcome.CANCELLED, Outcome.SUPERSEDED, "rolled_back"})
#: The reasons of failures that say nothing about the cluster.
NOT_A_MOVE = frozenset({ErrorType.INVALID_PLAN})


def judge(outcome: str, reason: str, *, under_way: bool, late: bool, has_deadline: bool) -> SlaVerdict:
    """Return the verdict on a deadline.

    `late` says whether the deadline had passed at the end, or has passed now. What is late has missed it, under way or
    not. Before the deadline a failure has missed it at once, unless the request itself was invalid.
    """
    if not has_deadline:
        return SlaVerdict.NO_SLA
    if late:
        return SlaVerdict.NO
    if under_way:
        return SlaVerdict.NOT_DUE
    if outcome in IN_TARGET:
        return SlaVerdict.YES
    if outcome in WITHDRAWN or reason in NOT_A_MOVE:
        return SlaVerdict.EXCLUDED
    return SlaVerdict.NO
