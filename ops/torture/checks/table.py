"""The checks by id, and their findings on a run: a finding is one sentence with its evidence. Pure.

C1 to C19 follow Jepsen's Kafka test (unique values, version order by offset). Moves between disks add byte identity at
the swap, one folder per replica, rates, throttles and the end of every fault; replication adds one leader per epoch,
identical replicas and the end of every reassignment. C19 covers failing disks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.torture.checks import beside_disks, moves, readers, records, replicas
from ops.torture.checks.facts import Evidence
from ops.torture.checks.index import Index


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation: the check's id and title, and one sentence with the evidence."""

    check: str
    title: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check} ({self.title}): {self.sentence}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its id, the property that must hold, and the function that returns the violations of it."""

    id: str
    title: str
    find: Callable[[Index], Sequence[str]]


CHECKS: tuple[Check, ...] = (
    Check("C1", "no acknowledged or consumed record is lost", records.lost),
    Check("C2", "an offset has one value, and a producer sent it", records.inconsistent),
    Check("C3", "no duplicates from idempotent producers", records.duplicates),
    Check("C4", "offsets have no gaps and keep each producer's order", records.disorder),
    Check("C5", "a consumer receives consecutive offsets", readers.skips),
    Check("C6", "a swap preserves every byte", moves.changed_bytes),
    Check("C7", "log start offset and end offset never decrease", readers.backwards),
    Check("C8", "one folder per replica, in the requested directory", moves.misplaced),
    Check("C9", "an offline directory hosts no replica, and only a failed one is offline", moves.offline),
    Check("C10", "no copy exceeds its limit", moves.too_fast),
    Check("C11", "throttles have the values last set", moves.throttles),
    Check("C12", "every fault and every move ends", moves.unfinished),
    Check("C13", "no move causes OFFSET_OUT_OF_RANGE", readers.out_of_range),
    Check("C14", "a second start changes nothing on disk", moves.restarts),
    Check("C15", "one leader per leader epoch", replicas.two_leaders),
    Check("C16", "all replicas hold the same batches", replicas.unequal),
    Check("C17", "every reassignment ends with the replicas last requested", replicas.unsettled),
    Check("C18", "every replica is in sync at the end", replicas.under_replicated),
    Check("C19", "a failing disk affects no other", beside_disks.disturbed),
)


def check(evidence: Evidence) -> list[Finding]:
    """Return the findings of all checks, in the order of `CHECKS`; empty for a sound run."""
    index = Index(evidence)
    return [Finding(each.id, each.title, sentence) for each in CHECKS for sentence in each.find(index)]
