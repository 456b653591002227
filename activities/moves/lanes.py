"""Groups accepted moves into runs: small replicas with the same source and target directory share one.

A step of a run costs the same for one replica as for fifty, so small ones are grouped; a large one has a run of its
own, so that it can be cancelled, paused and reported by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_node.ports import PlannedMove
from workflows.model import names
from workflows.model.calls import MoveParameter

SMALL_BYTES = 16 * 1024 * 1024  # a replica larger than this has a run of its own
LANE_BYTES = 64 * 1024 * 1024  # of all replicas of a lane together
LARGEST_LANE = 50  # replicas


@dataclass(frozen=True, slots=True)
class Lane:
    """The replicas of one run."""

    moves: tuple[PlannedMove, ...]

    @property
    def source(self) -> str:
        return self.moves[0].source

    @property
    def directory(self) -> str:
        return self.moves[0].directory

    def workflow_id(self, cluster: str, node: int) -> str:
        """Return the id of this lane's run, always the same, so that a repeated start is rejected."""
        first = self.moves[0]
        tp = first.partition
        return names.move_id(cluster, node, tp.topic, tp.partition, len(self.moves), first.claim)

    def parameter(self, node: int, throttle: int | None) -> list[MoveParameter]:
        """Return MoveReplica's parameter; the throttle is in bytes per second, None for no limit of its own."""
        return [
            MoveParameter(tp.topic, tp.partition, node, move.directory, throttle, move.claim, move.generation)
            for move, tp in ((move, move.partition) for move in self.moves)
        ]

    def summary(self) -> str:
        """Return the run's summary for operators, one line."""
        first = self.moves[0].partition
        more = f" and {len(self.moves) - 1} more" if len(self.moves) > 1 else ""
        return f"{first}{more}: {self.source} -> {self.directory}"


def lanes(moves: Sequence[PlannedMove]) -> list[Lane]:
    """Split accepted moves into lanes, in the order of topic and partition within a pair of directories."""
    found: list[Lane] = []
    by_way: dict[tuple[str, str], list[PlannedMove]] = {}
    for move in sorted(moves, key=lambda m: m.partition):
        by_way.setdefault((move.source, move.directory), []).append(move)
    for together in by_way.values():
        lane: list[PlannedMove] = []
        size = 0
        for move in together:
            if move.size > SMALL_BYTES:
                found.append(Lane((move,)))
                continue
            if lane and (size + move.size > LANE_BYTES or len(lane) == LARGEST_LANE):
                found.append(Lane(tuple(lane)))
                lane, size = [], 0
            lane.append(move)
            size += move.size
        if lane:
            found.append(Lane(tuple(lane)))
    return sorted(found, key=lambda one: one.moves[0].partition)
