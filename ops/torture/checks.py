"""The checks by name, and what they say about a run: a finding is one sentence with its evidence. Pure.

C1 to C19 are in the manner of Jepsen's Kafka test (unique values, version order by offset) with what moves between
disks add: byte identity at the swap, one folder per replica, rates, throttles, an end to every fault; and with what
replication adds: one leader per epoch, equal replicas, an end to every reassignment. C19 is about disks that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.torture import checks_disks, checks_moves, checks_readers, checks_records, checks_replicas
from ops.torture.facts import Evidence
from ops.torture.index import Index


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: the check's id, what it stands for, one sentence."""

    check: str
    title: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check} ({self.title}): {self.sentence}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what it promises, and the function that answers what breaks the promise."""

    id: str
    title: str
    find: Callable[[Index], Sequence[str]]


CHECKS: tuple[Check, ...] = (
    Check("C1", "nothing acknowledged or read is lost", checks_records.lost),
    Check("C2", "one value per offset, and only values that were sent", checks_records.inconsistent),
    Check("C3", "no duplicates from idempotent producers", checks_records.duplicates),
    Check("C4", "offsets have no holes and keep each producer's order", checks_records.disorder),
    Check("C5", "a consumer goes forward and skips nothing", checks_readers.skips),
    Check("C6", "a swap keeps every byte", checks_moves.changed_bytes),
    Check("C7", "log start and end never go back", checks_readers.backwards),
    Check("C8", "one folder per replica, where it was asked to be", checks_moves.misplaced),
    Check("C9", "an offline directory serves nothing, and only one that failed is offline", checks_moves.offline),
    Check("C10", "no copy is faster than its limit", checks_moves.too_fast),
    Check("C11", "throttles are as they were set", checks_moves.throttles),
    Check("C12", "every fault and every move comes to an end", checks_moves.unfinished),
    Check("C13", "no consumer is out of range because of a move", checks_readers.out_of_range),
    Check("C14", "a start repeated gives the same disks", checks_moves.restarts),
    Check("C15", "one leader per leader epoch", checks_replicas.two_leaders),
    Check("C16", "all replicas hold the same bytes", checks_replicas.unequal),
    Check("C17", "every reassignment ends, and the last word holds", checks_replicas.unsettled),
    Check("C18", "every replica is in sync in the end", checks_replicas.under_replicated),
    Check("C19", "a failing disk disturbs no other", checks_disks.disturbed),
)


def check(evidence: Evidence) -> list[Finding]:
    """Everything that all checks find, in their order; empty for a sound run."""
    index = Index(evidence)
    return [Finding(each.id, each.title, sentence) for each in CHECKS for sentence in each.find(index)]
