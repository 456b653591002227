"""KIP-455's set algebra: who holds a partition, who joins, who leaves, and what a cancel goes back to.

An `Assignment` is a value; each operation answers a new one. Invariants, checked when it is made: no node twice, every
adding and removing node is among the replicas, none is both, and the original set is kept exactly while a reassignment
is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition's replicas in order of preference, and the reassignment under way, if any.

    `original` is the set from before the reassignment: a cancel restores it (KIP-455), however often the target changed
    meanwhile. Raises ValueError when the invariants above do not hold.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        held = set(self.replicas)
        if len(held) != len(self.replicas):
            raise ValueError(f"a node stands twice in {self.replicas}")
        if not held.issuperset(self.adding) or not held.issuperset(self.removing):
            raise ValueError(f"adding {self.adding} and removing {self.removing} must be among {self.replicas}")
        if set(self.adding) & set(self.removing):
            raise ValueError(f"a node is both adding {self.adding} and removing {self.removing}")
        if (self.adding or self.removing) and not self.original:
            raise ValueError("a reassignment under way must carry its original set")

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.original)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the reassignment under way is complete, in the order asked for."""
        leaving = set(self.removing)
        return tuple(node for node in self.replicas if node not in leaving)

    def reassign(self, target: Iterable[int]) -> Assignment:
        """Go to `target`, from here or from another target; the difference is taken to the original set (KIP-455:
        "start anew").

        Nodes that an earlier target would have added and this one does not want are dropped at once. Raises ValueError
        for an empty target, a node below 0 or one that stands twice.
        """
        wanted = tuple(target)
        if not wanted or len(set(wanted)) != len(wanted) or min(wanted) < 0:
            raise ValueError(f"{list(wanted)} is not a set of nodes")
        base = self.original or self.replicas
        removing = tuple(node for node in base if node not in wanted)
        adding = tuple(node for node in wanted if node not in base)
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
