"""The images that nodes lack, packed once for all nodes that lack the same changes."""

from __future__ import annotations

from collections.abc import Iterable

from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

Pair = tuple[int, int]

#: A node gets a delta from an earlier version if it has at most TIMES the partitions that the node lacks, and MORE:
#: packing costs more than sending partitions that the node has already.
TIMES, MORE = 2, 100


class Deltas:
    """Images of the newest state, by the version that they build on; those of older states are dropped."""

    def __init__(self) -> None:
        self._pair: Pair = (-1, -1)
        self._made: dict[int, list[str]] = {}
        self._weights: dict[int, int] = {}
        self.packed = 0
        """How often images were packed."""

    def exactly(self, state: ClusterState, pair: Pair) -> list[str]:
        """Return the images that a node at `pair` lacks, as `image.since` packs them, whatever was packed before."""
        self._of(state)
        return self._pack(state, _known(state, pair))

    def since(self, state: ClusterState, pair: Pair, others: Iterable[Pair] = ()) -> list[str]:
        """Return the images that a node at `pair` lacks, perhaps with rows that it has; `others` are the pairs of the
        nodes that get theirs next.

        An image that was packed from an earlier version is reused if it is little larger, so that nodes which differ
        by a change of their own get the same one.
        """
        self._of(state)
        known = _known(state, pair)
        if known in self._made or known == state.version:
            return self._pack(state, known)
        enough = TIMES * self._weight(state, known) + MORE
        earlier = {_known(state, each) for each in others} | self._made.keys()
        shared = (each for each in sorted(earlier) if 0 < each < known and self._weight(state, each) <= enough)
        return self._pack(state, next(shared, known))

    def weight(self, state: ClusterState, pair: Pair) -> int:
        """Return how many partitions the image for a node at `pair` holds."""
        self._of(state)
        return self._weight(state, _known(state, pair))

    def _pack(self, state: ClusterState, known: int) -> list[str]:
        if known not in self._made:
            self._made[known] = image.since(state, state.cluster_generation, known)
            self.packed += bool(self._made[known])
        return self._made[known]

    def _of(self, state: ClusterState) -> None:
        if state.pair != self._pair:
            self._pair, self._made, self._weights = state.pair, {}, {}

    def _weight(self, state: ClusterState, known: int) -> int:
        found = self._weights.get(known)
        if found is None:
            found = self._weights[known] = image.weight(state, state.cluster_generation, known)
        return found


def _known(state: ClusterState, pair: Pair) -> int:
    return pair[1] if pair[0] == state.cluster_generation else 0
