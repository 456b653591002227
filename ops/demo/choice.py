"""The demo's parameters, and its choice of replicas and targets. Pure."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
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

#: One more replica is moved by a run of its own, on this node, with an SLA (seconds).
SINGLE_NODE = 3
SLA_SECONDS = 60

#: Records per second of the live producer.
LIVE_RECORDS_PER_SECOND = 250

#: The node that is killed, the share of its copy at that time, and the node on which a move is cancelled.
KILLED_NODE = 2
KILL_FROM, KILL_UNTIL = 0.30, 0.70
CANCEL_NODE = 3

#: Replication throttle in bytes per second and node: 40 MB take 7 s, enough for a cancel.
REASSIGN_THROTTLE = 6_000_000
#: The copied share from which on the reassignment is cancelled.
CANCEL_FROM = 0.15


@dataclass(frozen=True, slots=True)
class Reassigned:
    """A partition to reassign: its replicas, the target, and whether the reassignment is cancelled."""

    partition: int
    before: tuple[int, ...]
    replicas: tuple[int, ...]
    cancelled: bool = False

    def __str__(self) -> str:
        return f"{TOPIC}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A replica with its source and target directories."""

    topic: str
    partition: int
    node: int
    source: str
    directory: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def choose_moves(views: Sequence[LogDirectoryView], topic: str, per_node: int = MOVES_PER_NODE) -> list[PlannedMove]:
    """Choose `per_node` replicas of every node, each to move to the next directory, from different directories.

    Raises `OpsError` if the replicas of a node are in too few directories.
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
                f"node {node} has replicas of {topic} in only {len(used)} of its {len(ring)} directories: "
                f"{per_node} moves between different directories are not possible"
            )
    return chosen


def choose_single(views: Sequence[LogDirectoryView], topic: str, taken: Sequence[PlannedMove]) -> PlannedMove:
    """Choose one more replica of `SINGLE_NODE`, not in `taken`, and its next directory. Raises `OpsError`."""
    ring = sorted(view.path for view in views if view.node == SINGLE_NODE)
    busy = {(move.topic, move.partition) for move in taken}
    for view in views:
        for replica in view.replicas:
            tp = replica.partition
            if view.node == SINGLE_NODE and tp.topic == topic and (tp.topic, tp.partition) not in busy:
                target = ring[(ring.index(view.path) + 1) % len(ring)]
                return PlannedMove(tp.topic, tp.partition, view.node, view.path, target)
    raise OpsError(f"node {SINGLE_NODE} has no further replica of {topic}")


def choose_reassigned(leaders: Mapping[int, int], taken: Sequence[PlannedMove]) -> list[Reassigned]:
    """Choose a partition to reassign from node 1 to node 2, one from node 2 to all three nodes, and one from node 3 to
    node 1 whose reassignment is cancelled. `leaders`: partition -> node. The first two are not in `taken`. Raises
    `OpsError`.
    """
    moved = {move.partition for move in taken}
    free = {node: [p for p in sorted(leaders) if leaders[p] == node and p not in moved] for node in (1, 2)}
    others = [p for p in sorted(leaders) if leaders[p] == 3]
    if not (free[1] and free[2] and others):
        raise OpsError(f"{TOPIC} has no further replicas to reassign")
    return [
        Reassigned(free[1][0], (1,), (2,)),
        Reassigned(free[2][0], (2,), (2, 3, 1)),
        Reassigned(others[0], (3,), (1,), cancelled=True),
    ]


def reassignment_json(moves: Sequence[PlannedMove]) -> dict[str, Any]:
    """Return the JSON of kafka-reassign-partitions (KIP-113) for these moves."""
    partitions = [
        {"topic": move.topic, "partition": move.partition, "replicas": [move.node], "log_dirs": [move.directory]}
        for move in moves
    ]
    return {"version": 1, "partitions": partitions}


def unreported(
    moves: Sequence[PlannedMove],
    cancelled: PlannedMove | None,
    victim: PlannedMove | None,
    reassigned: Sequence[Reassigned],
    rows: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return a sentence for every move that the report's rows lack, or have with another outcome.

    `victim` is the move whose node was killed: its row must have more than one attempt, or bytes that were resumed.
    """
    problems: list[str] = []
    found: dict[tuple[str, str, int | None], Mapping[str, Any]] = {}
    for row in rows:
        found[row["kind"], row["replica"], row["node"]] = row
    for move in moves:
        row = found.get(("disk", str(move), move.node), {})
        expected = "cancelled" if move == cancelled else "moved"
        if row.get("outcome") != expected:
            problems.append(f"the report has {move} on node {move.node} as {row.get('outcome')}, not as {expected}")
        elif move == victim and row["attempts"] < 2 and not row["bytes_resumed"]:
            problems.append(f"the report does not show that the copy of {move} was interrupted")
    for each in reassigned:
        expected = "cancelled" if each.cancelled else "moved"
        for node in (one for one in each.replicas if one not in each.before):
            outcome = found.get(("node", str(each), node), {}).get("outcome")
            if outcome != expected:
                problems.append(f"the report has {each} to node {node} as {outcome}, not as {expected}")
    return problems


#: What a person asks the tables first.
COUNTS = (
    "SELECT kind, outcome, count(*) AS moves FROM moves WHERE carries_out IS NULL "
    "GROUP BY kind, outcome ORDER BY kind, outcome"
)


def miscounted(
    moves: Sequence[PlannedMove], cancelled: PlannedMove | None, reassigned: Sequence[Reassigned], found: str
) -> list[str]:
    """Return a sentence for each number in which the rows of `COUNTS`, as comma-separated values, differ."""
    expected = Counter(("disk", "cancelled" if move == cancelled else "moved") for move in moves)
    for each in reassigned:
        added = sum(one not in each.before for one in each.replicas)
        expected["node", "cancelled" if each.cancelled else "moved"] += added
    counts = Counter({(row["kind"], row["outcome"]): int(row["moves"]) for row in csv.DictReader(found.splitlines())})
    return [
        f"the tables have {counts[one]} {one[0]} moves that are {one[1]}, not {expected[one]}"
        for one in sorted({*counts, *expected})
        if counts[one] != expected[one]
    ]


def misplaced(
    moves: Sequence[PlannedMove], cancelled: PlannedMove | None, views: Sequence[LogDirectoryView]
) -> list[str]:
    """Return a sentence for every replica that is not in its target, or, if cancelled, not in its source."""
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
            problems.append(f"{move} still has a future replica on node {move.node}")
    return problems
