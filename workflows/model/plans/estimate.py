"""How long a plan will take: a range before it begins, and whether its deadline can be met while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from workflows.model.plans.adaptive import BROKERS, DIRECTORIES, bounded
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.simulate import coarse, play
from workflows.model.plans.values import Disk, Lane, MoveKind
from workflows.model.plans.window import Window


@dataclass(frozen=True, slots=True)
class RateRange:
    """Bytes/s of a disk while moves use it: `slow` is exceeded by nine of ten moves, `fast` by half of them."""

    slow: float
    fast: float


#: Of a disk that has not been measured: a busy hard disk, and a solid-state one beside traffic.
DEFAULT_RATES = RateRange(30e6, 150e6)
#: Seconds of a lane beside its copying, at best and at worst: requests, the swap, the ISR, the next decision.
OVERHEAD = (0.2, 5.0)
#: Seconds of each move beside its copying.
MOVE_OVERHEAD = (0.01, 0.2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The seconds that a plan takes while its window is open, and the bytes that it copies."""

    low: float
    high: float
    bytes: int

    def ends(self, now: datetime, window: Window) -> tuple[datetime | None, datetime | None]:
        """Return when it ends at best and at worst if it begins now; None if not within a year."""
        return window.after(now, self.low), window.after(now, self.high)


def estimate(
    lanes: Sequence[Lane],
    options: PlanOptions,
    rates: Mapping[Disk, RateRange] | None = None,
    default: RateRange = DEFAULT_RATES,
) -> Estimate:
    """Estimate a plan by playing it through, with the slots of its disks at the measured or the default rates.

    The throttles bound it from below: the bytes of each broker between its directories, and those which it sends to or
    receives from other brokers, at the throttle. Of a lane that a throttle slows down, its share counts.
    """
    rates = rates or {}
    joined = coarse(lanes)
    bound = throttled_seconds(lanes, options)

    def seconds(fast: bool) -> float:
        lane_cost, move_cost = OVERHEAD[not fast], MOVE_OVERHEAD[not fast]

        def of_lane(lane: Lane) -> float:
            found = 0.0
            for disk, size in lane.loads.items():
                rate = rates.get(disk, default)
                found = max(found, size * options.slots_per_disk / (rate.fast if fast else rate.slow))
            for throttle, held in _by_throttle(lane, options):
                found = max(found, held / throttle)
            return found + lane_cost + move_cost * len(lane.moves)

        return max(bound, play(joined, options, of_lane).seconds) if lanes else 0.0

    low, high = seconds(True), seconds(False)
    return Estimate(min(low, high), max(low, high), sum(lane.size for lane in lanes))


def _by_throttle(lane: Lane, options: PlanOptions) -> list[tuple[int, int]]:
    """Return the throttles that a lane is under, with its bytes under each."""
    found: list[tuple[int, int]] = []
    for kind, throttle in _throttles(options):
        held = sum(max(0, move.size) for move in lane.moves if move.kind == kind and move.writes)
        if throttle is not None and held:
            found.append((throttle, held))
    return found


def _throttles(options: PlanOptions) -> tuple[tuple[MoveKind, int | None], ...]:
    highest = {path: bounds.high for path, bounds in options.adaptive.items()}
    return (
        (MoveKind.REPLICAS, bounded(options.throttle_between_brokers, highest.get(BROKERS))),
        (MoveKind.DIRECTORY, bounded(options.throttle_between_directories, highest.get(DIRECTORIES))),
    )


def throttled_seconds(lanes: Sequence[Lane], options: PlanOptions) -> float:
    """Return the seconds that the busiest broker needs at the throttles."""
    moved: dict[tuple[MoveKind, int, str], int] = {}
    for lane in lanes:
        for move in lane.moves:
            size = max(0, move.size)
            for disk in sorted(move.writes):
                key = move.kind, disk.node, "receives"
                moved[key] = moved.get(key, 0) + size
            for disk in sorted(move.reads) if move.kind == MoveKind.REPLICAS else ():
                key = move.kind, disk.node, "sends"
                moved[key] = moved.get(key, 0) + size * len(move.writes)
    rates = {kind: rate for kind, rate in _throttles(options) if rate is not None}
    return max((held / rates[kind] for (kind, _, _), held in moved.items() if kind in rates), default=0.0)


def deadline_word(now: datetime, deadline: datetime | None, bytes_left: int, rate: float, window: Window) -> str | None:
    """Return a sentence if the deadline will be missed at this rate, in bytes/s, with the rate that would meet it."""
    if deadline is None or bytes_left <= 0:
        return None
    left = window.open_seconds(now, deadline) if deadline > now else 0.0
    if rate * left >= bytes_left:
        return None
    until = f"the deadline {_time(deadline)} will be missed: {_bytes(bytes_left)} are left"
    if deadline <= now:
        speed = f" at {_bytes(rate)}/s" if rate > 0 else ""
        return f"the deadline {_time(deadline)} has passed: {_bytes(bytes_left)} are left{speed}"
    if left <= 0:
        return f"{until}, and the window {window} does not open before it; change the window or the deadline"
    end = window.after(now, bytes_left / rate) if rate > 0 else None
    ends = f"which takes until {_time(end)}" if end is not None else "which does not end within a year"
    return (
        f"{until} at {_bytes(rate)}/s, {ends}; {_bytes(bytes_left / left)}/s would meet it, in the "
        f"{_span(left)} that are left{' within the window' if left < (deadline - now).total_seconds() else ''}"
    )


def _time(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _span(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes else f"{seconds:.0f} s"


def _bytes(count: float) -> str:
    """Format bytes with a unit of thousands, rounded up in the last of three digits so that a rate is never too low."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{-(-count * 10 // size) / 10:.1f} {unit}"
    return f"{-(-count // 1):.0f} bytes"
