"""How far a plan is, its moves under way, and the disks and brokers that these use, and when they end: a range. Pure.

What is unknown is None, never 0: the time to go without a byte left to copy, the percent of empty replicas, a rate
before there are enough reads. Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workflows.model.pace import Eta, between
from workflows.model.plans.running.plan_results import PlanProgress
from workflows.model.plans.running.run import PlanPhase
from workflows.model.plans.under_way import LaneReport, LiveMove
from workflows.model.plans.values import Disk

#: Phases in which a plan begins moves.
MOVING = (PlanPhase.MOVING, PlanPhase.ROLLING_BACK)
#: Seconds of moving before which the mean rate says nothing.
SHORTEST = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes, percent, rate and time to go. `eta_high` alone is None while no end is in sight."""

    bytes_copied: int
    bytes_total: int
    percent: float | None
    rate: float | None
    eta_low: float | None
    eta_high: float | None


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """A move under way: its lane, its state (`MoveState`), why it has stalled, and when that was read."""

    key: str
    lane: int
    state: str
    stalled: str
    as_of: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class PlaceFigures:
    """A disk, or (path "") a broker: the moves under way that use it, and their sums."""

    broker: int
    path: str
    moves: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A plan as it is now. `unread` moves are under way, but no step has reported them yet."""

    plan: Figures
    moves: tuple[MoveFigures, ...] = ()
    disks: tuple[PlaceFigures, ...] = ()
    brokers: tuple[PlaceFigures, ...] = ()
    unread: int = 0


def percent(copied: int, total: int) -> float | None:
    """Return how much is copied, at most 99.9 while bytes are left; None without bytes."""
    if total <= 0:
        return None
    return 100.0 if copied >= total else min(99.9, round(100 * copied / total, 1))


def figures_of(progress: PlanProgress, lanes: Mapping[int, LaneReport], now: float) -> PlanFigures:
    """Return the figures of a plan, of which the lanes under way report `lanes`, by number."""
    moves = [(number, report, move) for number, report in sorted(lanes.items()) for move in report.moves]
    by_disk: dict[Disk, list[LiveMove]] = {}
    by_broker: dict[int, list[LiveMove]] = {}
    for _, _, move in moves:
        for disk in dict.fromkeys((*move.reads, *move.writes)):
            by_disk.setdefault(disk, []).append(move)
        for node in dict.fromkeys(disk.node for disk in (*move.reads, *move.writes)):
            by_broker.setdefault(node, []).append(move)
    under_way = sum(len(lane.moves) for lane in progress.lanes_running)
    return PlanFigures(
        _plan(progress, [move for _, _, move in moves], now),
        tuple(
            MoveFigures(move.key, number, move.state, move.stalled, report.at, _sum([move]))
            for number, report, move in moves
        ),
        tuple(
            PlaceFigures(disk.node, disk.path, len(each), _sum(each))
            for disk, each in sorted(by_disk.items(), key=lambda pair: (pair[0].node, pair[0].path))
        ),
        tuple(PlaceFigures(node, "", len(each), _sum(each)) for node, each in sorted(by_broker.items())),
        max(0, under_way - len(moves)),
    )


def _plan(progress: PlanProgress, moves: Iterable[LiveMove], now: float) -> Figures:
    """Return the figures of the plan. Its end is between those at its mean rate, and at the rates of the moves under
    way now; before it has copied anything, the expected duration.
    """
    total = progress.bytes_total
    copied = min(progress.bytes_copied, total)
    moving = sum((end or now) - begin for phase, begin, end in progress.phases if phase in MOVING)
    mean = progress.bytes_copied / moving if moving >= SHORTEST and progress.bytes_copied > 0 else None
    begins = progress.phase in MOVING and not progress.paused
    known = [(each.slow, each.fast) for each in moves if each.slow is not None and each.fast is not None]
    slowest, fastest = sum(slow for slow, _ in known), sum(fast for _, fast in known)
    eta = Eta()
    if begins and total > copied:
        rates = [rate for rate in (mean, *((slowest, fastest) if known else ())) if rate is not None]
        if rates:
            eta = between(min(rates), max(rates), total - copied)
        elif progress.check is not None and progress.check.seconds_low is not None:
            share, high = 1 - copied / total, progress.check.seconds_high
            eta = Eta(progress.check.seconds_low * share, None if high is None else high * share)
    return Figures(copied, total, percent(copied, total), mean if begins else None, eta.low, eta.high)


def _sum(moves: list[LiveMove]) -> Figures:
    """Return the sums of moves under way; their rate is that of those which are known, None if none is."""
    copied, total = sum(min(each.copied, each.total) for each in moves), sum(each.total for each in moves)
    rates = [each.rate for each in moves if each.rate is not None]
    known = [(each.slow, each.fast) for each in moves if each.slow is not None and each.fast is not None]
    left, eta = sum(each.left for each in moves), Eta()
    if known and left > 0:
        eta = between(sum(slow for slow, _ in known), sum(fast for _, fast in known), left)
    rate = max(0.0, sum(rates)) if rates else None
    return Figures(copied, total, percent(copied, total), rate, eta.low, eta.high)
