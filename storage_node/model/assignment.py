"""KIP-455's set algebra: the nodes that hold a partition, join it and leave it, and what a cancel restores; and what a
manual assignment may be.

An `Assignment` is a value; each operation returns a new one. Invariants, checked when it is made: each node is there
once, every adding and removing node is among the replicas and none is both, adding nodes were not in the original set,
and the original set is known, and whole, exactly while a reassignment is under way.

Kafka's order is kept where clients see it: the replicas are the target as it was requested, then the nodes that leave;
adding and removing are sorted. Unlike Kafka's controller, which diffs a second target against whatever the first one
has made of the set, the original set is kept however often the target changes: a cancel always goes back to it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition's replicas in order of preference, and the reassignment under way, if any.

    `original` is the set from before the reassignment, in its order. Raises ValueError when the invariants above do not
    hold.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        held = set(self.replicas)
        if len(held) != len(self.replicas):
            raise ValueError(f"a node stands twice in {self.replicas}")
        if not (self.adding or self.removing or self.original):
            return
        if not held.issuperset(self.adding) or not held.issuperset(self.removing):
            raise ValueError(f"adding {self.adding} and removing {self.removing} must be among {self.replicas}")
        if set(self.adding) & set(self.removing):
            raise ValueError(f"a node is both adding {self.adding} and removing {self.removing}")
        if not (self.adding or self.removing) or not self.original:
            raise ValueError("an original set exists exactly while replicas are added or removed")
        if not held.issuperset(self.original) or set(self.adding) & set(self.original):
            raise ValueError(f"{self.original} must be among {self.replicas}, and none of {self.adding} in it")

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is under way: nodes are being added or removed."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the reassignment under way is complete, in the order asked for."""
        leaving = set(self.removing)
        return tuple(node for node in self.replicas if node not in leaving)

    def reassign(self, target: Iterable[int], isr: Collection[int] = ()) -> Assignment:
        """Go to `target`, from here or from another target on the way; the difference is taken to the original set.

        Of the nodes that only an earlier target wanted, those in the ISR stay as removing until the end, so that no
        change of mind costs a copy that counts; the others are dropped. Raises ValueError for an empty target, a node
        below 0 or one that stands twice.
        """
        wanted = tuple(target)
        if not wanted or len(set(wanted)) != len(wanted) or min(wanted) < 0:
            raise ValueError(f"{list(wanted)} is not a set of nodes")
        base = self.original or self.replicas
        removing = tuple(sorted(node for node in self.replicas if node not in wanted and (node in base or node in isr)))
        adding = tuple(sorted(node for node in wanted if node not in base))
        if not adding and not removing:
            return Assignment(wanted)
        return Assignment(wanted + removing, adding, removing, base)

    def cancel(self) -> Assignment:
        """Go back to the set from before the reassignment; without one, this very value."""
        return Assignment(self.original) if self.reassigning else self

    def dropped_by(self, later: Assignment) -> tuple[int, ...]:
        """The nodes of this assignment that `later` no longer has: their data is to be deleted."""
        return tuple(node for node in self.replicas if node not in later.replicas)

    def complete(self, isr: Collection[int]) -> Assignment | None:
        """The settled assignment once every target replica is in the ISR; None while it is not, or when nothing is
        under way.
        """
        target = self.target
        if not self.reassigning or not target or not set(target) <= set(isr):
            return None
        return Assignment(target)

    def in_sync(self, isr: Iterable[int]) -> tuple[int, ...]:
        """Those of an ISR that are among the replicas, in the ISR's order."""
        return tuple(node for node in isr if node in self.replicas)


def after_cancel(assignment: Assignment, isr: Collection[int]) -> tuple[Assignment, tuple[int, ...]]:
    """What a cancel makes of an assignment and its ISR: exactly the in-sync ones of the original set, in its order.

    The ISR is empty when none of the original set is in sync: then a cancel would need an unclean election.
    """
    back = assignment.cancel()
    return back, tuple(node for node in back.replicas if node in isr)


def assignment_problem(replicas: Sequence[int], registered: Container[int], factor: int | None = None) -> str | None:
    """Why a partition cannot have these replicas, in Kafka's words; None when it can.

    `factor`: how many it must have, where all must have as many.
    """
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    before = None
    for node in sorted(replicas):
        if node not in registered:
            return f"The manual partition assignment includes broker {node}, but no such broker is registered."
        if node == before:
            return f"The manual partition assignment includes the broker {node} more than once."
        before = node
    if factor is not None and len(replicas) != factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    return None
