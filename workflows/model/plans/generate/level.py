"""Levels bins, disks or brokers, with the fewest bytes.

Each move takes a replica from a bin above its share to one below.

A move that overshoots neither share brings all of its bytes to where they belong, so that no plan with the same result
moves fewer. Larger replicas go first: their bytes count the same, and there are fewer moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from workflows.model.plans.generate.layout import Item
from workflows.model.plans.values import Disk

#: A plan moves at most so many bytes for each byte that it brings to where it belongs.
MOST_COST = 1.1

Bin = TypeVar("Bin", int, Disk)


class Leveller(Generic[Bin]):
    """Bins with their bytes, their shares, and the replicas that may leave them."""

    def __init__(
        self,
        used: Mapping[Bin, int],
        weights: Mapping[Bin, int],
        items: Mapping[Bin, Sequence[Item]],
        tolerance: float,
        takers: Sequence[Bin] | None = None,
    ) -> None:
        """`tolerance` is the part of a share that a bin may differ from it; `takers` those that may receive, or all."""
        self.used: dict[Bin, int] = dict(used)
        self.share: dict[Bin, int] = shares(used, weights)
        self._slack: dict[Bin, int] = {bin_: int(tolerance * share) for bin_, share in self.share.items()}
        self._items: dict[Bin, list[Item]] = {bin_: sorted(held) for bin_, held in items.items()}
        self._takers: list[Bin] = list(used) if takers is None else [each for each in takers if each in self.used]
        self._dead: set[tuple[Bin, Bin]] = set()
        self.moved = self.gained = 0

    def excess(self, bin_: Bin) -> int:
        """Return the bytes above a bin's share, negative below it."""
        return self.used[bin_] - self.share[bin_]

    def run(self, move: Callable[[Item, Bin], bool]) -> None:
        """Level the bins; `move` makes a move, or returns False if it may not be made."""
        self._exact(move)
        for _ in range(2 * len(self.used)):
            if not self._overshooting(move):
                break
            self._dead.clear()
            self._exact(move)

    def _pairs(self) -> Iterator[tuple[Bin, Bin]]:
        """Yield givers with takers, the most unequal first."""
        givers = sorted((each for each in self.used if self.excess(each) > 0), key=lambda b: (-self.excess(b), b))
        takers = sorted((each for each in self._takers if self.excess(each) < 0), key=lambda b: (self.excess(b), b))
        for giver in givers:
            for taker in takers:
                if self.excess(giver) > self._slack[giver] or -self.excess(taker) > self._slack[taker]:
                    yield giver, taker

    def _exact(self, move: Callable[[Item, Bin], bool]) -> None:
        """Make moves that overshoot neither share until there is none."""
        going = True
        while going:
            going = False
            for giver, taker in self._pairs():
                # What two bins can exchange only shrinks, so that a pair without a move never has one again.
                if (giver, taker) in self._dead:
                    continue
                if self._one(giver, taker, move):
                    going = True
                    break
                self._dead.add((giver, taker))

    def _one(self, giver: Bin, taker: Bin, move: Callable[[Item, Bin], bool]) -> bool:
        limit = min(self.excess(giver), -self.excess(taker))
        held = self._items.get(giver, [])
        for at in range(bisect_right(held, limit, key=lambda item: item.size) - 1, -1, -1):
            if held[at].size <= 0:
                return False
            if move(held[at], taker):
                self._done(giver, taker, at)
                return True
        return False

    def _overshooting(self, move: Callable[[Item, Bin], bool]) -> bool:
        """Make the one move beyond a share that brings most of its bytes to where they belong, within `MOST_COST`."""
        found: list[tuple[float, Bin, Bin, int]] = []
        for giver, taker in self._pairs():
            excess, lack = self.excess(giver), -self.excess(taker)
            held = self._items.get(giver, [])
            first = bisect_right(held, min(excess, lack), key=lambda item: item.size)
            for at in range(first, len(held)):
                size = held[at].size
                gain = min(excess, size) - max(0, size - lack)
                if gain <= 0 or self.moved + size > MOST_COST * (self.gained + gain):
                    break
                found.append((-gain / size, giver, taker, at))
        for _, giver, taker, at in sorted(found):
            if move(self._items[giver][at], taker):
                self._done(giver, taker, at)
                return True
        return False

    def _done(self, giver: Bin, taker: Bin, at: int) -> None:
        size = self._items[giver].pop(at).size
        before = max(0, self.excess(giver)) + max(0, self.excess(taker))
        self.used[giver] -= size
        self.used[taker] += size
        self.moved += size
        self.gained += before - max(0, self.excess(giver)) - max(0, self.excess(taker))


def shares(used: Mapping[Bin, int], weights: Mapping[Bin, int]) -> dict[Bin, int]:
    """Return what each bin has when all are filled alike: the whole in proportion to the weights."""
    whole, weight = sum(used.values()), sum(weights.values())
    return {bin_: whole * weights[bin_] // weight for bin_ in used} if weight else dict(used)


def misplaced(used: Mapping[Bin, int], weights: Mapping[Bin, int]) -> int:
    """Return the bytes above the shares: what any plan must move to fill all bins alike."""
    share = shares(used, weights)
    return sum(max(0, used[each] - share[each]) for each in used)
