"""Packs the moves of a plan into lanes, in the plan's order.

A step for fifty small moves costs what a step for one costs; a big move is a lane of its own, so that it can be
cancelled, timed and ordered alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflows.model.move.parameter import ANY
from workflows.model.plans.options import OrderRule, PlanOptions
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, Disk, Lane, MoveKind, PlannedMove

_SIZES = (OrderRule.SMALL_FIRST, OrderRule.LARGE_FIRST)
_LARGEST = 1 << 63


def pack(moves: Iterable[PlannedMove], view: ClusterView, options: PlanOptions) -> tuple[Lane, ...]:
    """Return the lanes of a plan, numbered from 0 in the order in which they should begin.

    Moves share a lane if they read from and write to the same disks and the rules before the first one about sizes
    treat them alike. A move of unknown size is alone: it may be a big one.
    """
    found = list(moves)
    drained = drained_disks(found, view)
    ranked = sorted((_rank(move, view, options.order, drained), *_identity(move), at) for at, move in enumerate(found))
    classed = next((at for at, rule in enumerate(options.order) if rule in _SIZES), len(options.order))
    groups: dict[tuple[int, ...], int] = {}
    together: dict[tuple[int, tuple[Disk, ...], tuple[Disk, ...]], list[tuple[int, PlannedMove]]] = {}
    for place, (rank, *_, at) in enumerate(ranked):
        move = found[at]
        group = groups.setdefault(rank[:classed], len(groups))
        together.setdefault((group, move.reads, move.writes), []).append((place, move))
    chunks: list[tuple[int, int, list[PlannedMove]]] = []
    for (group, _, _), held in together.items():
        chunks += [(group, first, chunk) for first, chunk in _chunks(held, options)]
    chunks.sort(key=lambda each: each[:2])
    return tuple(Lane(number, tuple(chunk), group) for number, (group, _, chunk) in enumerate(chunks))


def _chunks(held: Sequence[tuple[int, PlannedMove]], options: PlanOptions) -> Iterable[tuple[int, list[PlannedMove]]]:
    """Yield the moves of each lane with the place of its first one."""
    chunk: list[PlannedMove] = []
    first = total = 0
    for place, move in held:
        size = move.size * len(move.writes)
        alone = bool(move.writes) and (move.size == UNKNOWN_SIZE or size > options.lane_bytes)
        if alone:
            yield place, [move]
            continue
        if chunk and (len(chunk) == options.lane_moves or total + size > options.lane_bytes):
            yield first, chunk
            chunk, total = [], 0
        if not chunk:
            first = place
        chunk.append(move)
        total += max(0, size)
    if chunk:
        yield first, chunk


def _identity(move: PlannedMove) -> tuple[str, int, str, int]:
    return move.partition.topic, move.partition.partition, str(move.kind), move.node


def _rank(
    move: PlannedMove, view: ClusterView, order: Sequence[OrderRule], drained: frozenset[Disk]
) -> tuple[int, ...]:
    return tuple(_value(rule, move, view, drained) for rule in order)


def _value(rule: OrderRule, move: PlannedMove, view: ClusterView, drained: frozenset[Disk]) -> int:
    state = view.partitions.get(move.partition)
    match rule:
        case OrderRule.DRAIN_FIRST:
            return 0 if any(disk in drained for disk in left_by(move, view)) else 1
        case OrderRule.UNDER_REPLICATED_FIRST:
            return 0 if state is not None and state.under_replicated else 1
        case OrderRule.LEADERS_LAST:
            return 1 if state is not None and _moves_leader(move, state.leader) else 0
        case OrderRule.SMALL_FIRST:
            return move.size if move.size != UNKNOWN_SIZE else _LARGEST
        case OrderRule.LARGE_FIRST:
            return -move.size if move.size != UNKNOWN_SIZE else -_LARGEST


def _moves_leader(move: PlannedMove, leader: int) -> bool:
    if move.kind == MoveKind.DIRECTORY:
        return move.node == leader
    return leader not in move.after


def left_by(move: PlannedMove, view: ClusterView) -> list[Disk]:
    """Return the disks that have no replica of the partition after the move, as far as the cluster reports them."""
    if move.kind == MoveKind.DIRECTORY:
        return [Disk(move.node, move.source)]
    gone = [node for node in move.before if node not in move.after]
    held = [(node, view.replicas.get((node, move.partition))) for node in gone]
    return [Disk(node, placed.path) for node, placed in held if placed is not None]


def drained_disks(moves: Iterable[PlannedMove], view: ClusterView) -> frozenset[Disk]:
    """Return the directories that the moves empty: every replica leaves them and none arrives."""
    left: dict[Disk, int] = {}
    arriving: set[Disk] = set()
    for move in moves:
        for disk in left_by(move, view):
            left[disk] = left.get(disk, 0) + 1
        arriving.update({disk for disk in move.writes if disk.path != ANY})
    held: dict[Disk, int] = {}
    for (node, _), placed in view.replicas.items():
        disk = Disk(node, placed.path)
        held[disk] = held.get(disk, 0) + 1
    return frozenset(disk for disk, count in left.items() if held.get(disk) == count and disk not in arriving)
