"""Compares what is left of a plan with the cluster while it runs: a large change since its check needs a person. Pure.

A single move is compared by `drift` just before it begins; here the sum of all counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from workflows.model.plans import drift
from workflows.model.plans.drift import DriftKind
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, PlannedMove

#: The bytes left to copy may grow by this part, and by so many bytes in any case.
GROWN_SHARE, GROWN_LEAST = 0.5, 1 << 30
#: Other clients may change this part of the moves left, and so many in any case.
CHANGED_SHARE, CHANGED_LEAST = 0.1, 5
#: Brokers that a sentence names.
NAMED = 5

_CHANGED = (DriftKind.TOPIC_DELETED, DriftKind.REPLICAS_CHANGED, DriftKind.FOREIGN_REASSIGNMENT)


@dataclass(frozen=True, slots=True)
class Change:
    """How the cluster differs from when the plan was checked: bytes more to copy, brokers lost, and moves whose
    partition another client has changed.
    """

    grown: int = 0
    lost: tuple[int, ...] = ()
    changed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the value that `of` reads."""
        return {"grown": self.grown, "lost": list(self.lost), "changed": self.changed}

    @staticmethod
    def of(value: Any, path: str) -> Change:
        """Read `as_json`. Raises BadField."""
        row = fields.an_object(value, path, ("grown", "lost", "changed"))
        return Change(
            fields.a_number(row.get("grown", 0), f"{path}.grown", -(1 << 62)),
            tuple(fields.numbers(row.get("lost", []), f"{path}.lost")),
            fields.a_number(row.get("changed", 0), f"{path}.changed"),
        )


@dataclass(frozen=True, slots=True)
class Recheck:
    """The change of what is left, with its planned bytes and its moves."""

    now: Change
    bytes: int = 0
    moves: int = 0


def recheck(moves: Iterable[PlannedMove], view: ClusterView) -> Recheck:
    """Compare the moves that have not begun with the cluster."""
    grown = planned = changed = count = 0
    lost: dict[int, None] = {}
    for move in moves:
        verdict = drift.checked(move, view)
        count += 1
        changed += verdict.kind in _CHANGED
        planned += max(0, move.size) * len(move.writes)
        if UNKNOWN_SIZE not in (move.size, verdict.size):
            grown += (verdict.size - move.size) * len(move.writes)
        for disk in sorted({*move.reads, *move.writes}):
            node = view.nodes.get(disk.node)
            if node is None or not node.responds:
                lost[disk.node] = None
    return Recheck(Change(grown, tuple(sorted(lost)), changed), planned, count)


def large(found: Recheck, seen: Change, accepted: Change) -> tuple[str, ...]:
    """Return in words how the cluster has changed beyond what was `accepted`, none if that is little.

    A broker counts as lost if it was at the recheck before as well (`seen`): it may just be restarted.
    """
    now = found.now
    reasons = []
    grown = now.grown - max(0, accepted.grown)
    if grown > max(GROWN_LEAST, GROWN_SHARE * found.bytes):
        more = f", and {accepted.grown} more of which were approved" if accepted.grown > 0 else ""
        reasons.append(
            f"{now.grown} bytes more are left to copy than when the plan was checked, which had {found.bytes}{more}"
        )
    lost = [node for node in now.lost if node in seen.lost and node not in accepted.lost]
    if lost:
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        brokers = f"broker{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost[:NAMED]))}{more}"
        reasons.append(f"{brokers}, which the plan reads or writes, {'are' if len(lost) > 1 else 'is'} lost")
    changed = now.changed - accepted.changed
    if changed > max(CHANGED_LEAST, CHANGED_SHARE * found.moves):
        reasons.append(f"other clients have changed the partitions of {now.changed} of the {found.moves} moves left")
    return tuple(reasons)
