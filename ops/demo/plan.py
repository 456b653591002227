"""What the demo does, in figures, and which replicas it moves where. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.stack.errors import OpsError

TOPIC = "orders"
PARTITIONS = 9
RECORD_BYTES = 4000
#: 9 partitions of 40 MB: 360 MB.
PARTITION_BYTES = 40_000_000

#: Bytes per second and node, shared by its two moves: 80 MB take about 27 s.
THROTTLE = 3_000_000
MOVES_PER_NODE = 2

#: One more replica is moved by a run of its own, on this node, with a time it may take (seconds).
SINGLE_NODE = 3
SLA_SECONDS = 60

#: Records per second of the producer that keeps running.
LIVE_RECORDS_PER_SECOND = 250

#: The node that is killed, when, and the node on which a move is cancelled.
KILLED_NODE = 2
KILL_FROM, KILL_UNTIL = 0.30, 0.70
CANCEL_NODE = 3

#: Bytes per second and node of what is copied between nodes: 40 MB take 7 s, in which a cancel finds them.
REASSIGN_THROTTLE = 6_000_000
#: How much of a copy is there when its reassignment is cancelled.
CANCEL_FROM = 0.15


@dataclass(frozen=True, slots=True)
class Reassigned:
    """A partition of the topic: its nodes, those it is to have, and whether that is cancelled on the way."""

    partition: int
    before: tuple[int, ...]
    replicas: tuple[int, ...]
    cancelled: bool = False

    def __str__(self) -> str:
        return f"{TOPIC}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One replica, where it is and where it is to go."""

    topic: str
    partition: int
    node: int
    source: str
    directory: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def choose_moves(views: Sequence[LogDirectoryView], topic: str, per_node: int = MOVES_PER_NODE) -> list[PlannedMove]:
    """For every node `per_node` replicas of the topic to its next directory, each between another pair of directories.

    Raises `OpsError` when a node holds too few.
    """
    paths: dict[int, list[str]] = defaultdict(list)
    held: dict[int, list[PlacedReplica]] = defaultdict(list)
    for view in views:
        paths[view.node].append(view.path)
        held[view.node] += [r for r in view.replicas if r.partition.topic == topic and not r.future]
    chosen: list[PlannedMove] = []
    for node in sorted(paths):
        ring = sorted(paths[node])
        used: set[str] = set()
        for replica in sorted(held[node], key=lambda r: r.partition):
            if replica.directory in used or len(used) == per_node:
                continue
            used.add(replica.directory)
            target = ring[(ring.index(replica.directory) + 1) % len(ring)]
            tp = replica.partition
            chosen.append(PlannedMove(tp.topic, tp.partition, node, replica.directory, target))
        if len(used) < per_node:
            raise OpsError(
                f"node {node} holds replicas of {topic} in only {len(used)} of its {len(ring)} directories: "
                f"{per_node} moves between different directories are not possible"
            )
    return chosen


def choose_single(views: Sequence[LogDirectoryView], topic: str, taken: Sequence[PlannedMove]) -> PlannedMove:
    """One more replica of `SINGLE_NODE`, none of `taken`, to its next directory. Without one raises `OpsError`."""
    ring = sorted(view.path for view in views if view.node == SINGLE_NODE)
    busy = {(move.topic, move.partition) for move in taken}
    for view in views:
        for replica in view.replicas:
            tp = replica.partition
            if view.node == SINGLE_NODE and tp.topic == topic and (tp.topic, tp.partition) not in busy:
                target = ring[(ring.index(view.path) + 1) % len(ring)]
                return PlannedMove(tp.topic, tp.partition, view.node, view.path, target)
    raise OpsError(f"node {SINGLE_NODE} holds no further replica of {topic}")


def choose_reassigned(leaders: Mapping[int, int], taken: Sequence[PlannedMove]) -> list[Reassigned]:
    """One partition goes from node 1 to node 2, one of node 2 gets copies on all three; one of node 3 sets out for node
    1 and is cancelled. `leaders`: partition -> node; what is `taken` stays on its node. Raises `OpsError` without them.
    """
    moved = {move.partition for move in taken}
    free = {node: [p for p in sorted(leaders) if leaders[p] == node and p not in moved] for node in (1, 2)}
    others = [p for p in sorted(leaders) if leaders[p] == 3]
    if not (free[1] and free[2] and others):
        raise OpsError(f"no replicas of {TOPIC} are left to be reassigned")
    return [
        Reassigned(free[1][0], (1,), (2,)),
        Reassigned(free[2][0], (2,), (2, 3, 1)),
        Reassigned(others[0], (3,), (1,), cancelled=True),
    ]


def reassignment_json(moves: Sequence[PlannedMove]) -> dict[str, Any]:
    """The JSON of kafka-reassign-partitions (KIP-113) for these moves."""
    partitions = [
        {"topic": move.topic, "partition": move.partition, "replicas": [move.node], "log_dirs": [move.directory]}
        for move in moves
    ]
    return {"version": 1, "partitions": partitions}


def misplaced(
    moves: Sequence[PlannedMove], cancelled: PlannedMove | None, views: Sequence[LogDirectoryView]
) -> list[str]:
    """One sentence for every replica that is not where it is to be; the cancelled one is to be where it was."""
    where = {(r.node, r.partition.topic, r.partition.partition, r.future): r for v in views for r in v.replicas}
    problems: list[str] = []
    for move in moves:
        expected = move.source if move == cancelled else move.directory
        current = where.get((move.node, move.topic, move.partition, False))
        if current is None:
            problems.append(f"{move} is in no directory of node {move.node}")
        elif current.directory != expected:
            problems.append(f"{move} is in {current.directory} of node {move.node}, not in {expected}")
        if (move.node, move.topic, move.partition, True) in where:
            problems.append(f"{move} still has a copy under way on node {move.node}")
    return problems
