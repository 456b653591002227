"""The tables and sentences of a plan on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from ops.cli import output
from ops.cli.plan.figures import MOVING, Figures, PlanFigures
from workflows.model.plans.running.calls import PlanCheck
from workflows.model.plans.running.plan_results import OptionsRow, PlanProgress, PlanResult

MOST_ROWS = 20


def checked(check: PlanCheck) -> RenderableType:
    """Return what a plan means for the cluster: moves, bytes, duration, and the space on each disk."""
    rows = [
        [
            f"{row.broker}:{row.path}",
            _size(row.used),
            _size(row.used_worst),
            _size(row.used_after),
            _size(row.usable),
        ]
        for row in check.disks[:MOST_ROWS]
    ]
    more = len(check.disks) - MOST_ROWS
    parts: list[RenderableType] = [
        Text(
            f"{_count(check.moves, 'move')} in {_count(check.lanes, 'lane')}, "
            f"{output.size(check.bytes_total)} to copy, {_count(check.leaders_moved, 'leader')} to move; "
            f"{_count(check.in_place, 'partition')} in place already"
        ),
        Text(f"expected duration: {expected(check)}"),
    ]
    if rows:
        parts.append(output.table(("disk", "used", "at worst", "after", "usable now"), rows))
    if more > 0:
        parts.append(Text(f"... and {more} more disks (--json has all)"))
    return Group(*parts)


def expected(check: PlanCheck) -> str:
    """Return the expected duration as a range."""
    low, high = check.seconds_low, check.seconds_high
    if low is None or high is None:
        return "unknown"
    return f"{output.duration(low)} to {output.duration(high)}"


def shown(progress: PlanProgress, figures: PlanFigures, now: float) -> RenderableType:
    """Return a plan's progress."""
    moves, plan = progress.moves, figures.plan
    ended = sum(progress.outcomes.values())
    share = "" if plan.percent is None else f", {plan.percent:.1f}%"
    phase = progress.phase.replace("_", " ")
    lines: list[RenderableType] = [
        Text(f"{progress.workflow_id}: {phase}{_flags(progress)}"),
        Text(
            f"{ended} of {_count(moves, 'move')} ended ({_outcomes(progress.outcomes)}); "
            f"{output.size(plan.bytes_copied)} of {output.size(plan.bytes_total)}{share}; "
            f"{time_left(progress, plan, now)}"
        ),
    ]
    if progress.warning:
        lines.append(Text(progress.warning))
    if decided := progress.adaptive:
        rates = ", ".join(f"{path.replace('_', ' ')} {output.rate(rate)}" for path, rate in decided.rates.items())
        lines.append(Text(f"adaptive throttle: {rates}; {decided.why}"))
    for change in progress.changes[:3]:
        lines.append(Text(f"changed since the check: {change}"))
    for reason in progress.reasons[:3]:
        lines.append(Text(f"waits: {reason}"))
    for row in progress.stalled[:3]:
        lines.append(Text(f"stalled: {row.key}: {row.reason}"))
    rows = [
        [
            str(lane.lane),
            str(len(lane.moves)),
            ", ".join(lane.moves[:4]) + (" ..." if lane.moves[4:] else ""),
        ]
        for lane in progress.lanes_running[:MOST_ROWS]
    ]
    if rows and figures.unread:
        lines.append(output.table(("lane", "moves", "under way"), rows))
    lines += _tables(figures)
    failures = [[row.key, row.outcome, row.reason] for row in progress.failures[:MOST_ROWS]]
    if failures:
        lines.append(output.table(("move", "outcome", "why"), failures))
    if progress.check is not None and progress.check.rollback_path:
        lines.append(Text(f"the plan that goes back: {progress.check.rollback_path}"))
    return Group(*lines)


def _flags(progress: PlanProgress) -> str:
    flags = [name for name in ("paused", "cancelling", "rolling_back") if getattr(progress, name)]
    flags = [flag for flag in flags if flag != progress.phase]
    return f" ({', '.join(flag.replace('_', ' ') for flag in flags)})" if flags else ""


def time_left(progress: PlanProgress, figures: Figures, now: float) -> str:
    """Return when a moving plan ends, as a range; unknown is said to be unknown."""
    if progress.phase not in MOVING:
        return "not moving"
    rate = "" if figures.rate is None else f" at {output.rate(figures.rate)}"
    low, high = figures.eta_low, figures.eta_high
    if low is None:
        return f"time left unknown{rate}"
    if high is None:
        return f"more than {output.duration(low)} left{rate}, the slowest copies do not advance"
    ends = [f"{datetime.fromtimestamp(now + each, UTC).astimezone():%H:%M}" for each in (low, high)]
    return f"{span(low, high)} left{rate}, until {' to '.join(dict.fromkeys(ends))}"


def span(low: float | None, high: float | None) -> str:
    """Return a range of durations: "2:30 min", "1:00 min to 2:30 min", "> 1:00 min", "-" if it is unknown."""
    if low is None:
        return "-"
    if high is None:
        return f"> {output.duration(low)}"
    return " to ".join(dict.fromkeys((output.duration(low), output.duration(high))))


def _cells(figures: Figures) -> list[str]:
    share = "-" if figures.percent is None else f"{figures.percent:.1f}%"
    rate = "-" if figures.rate is None else output.rate(figures.rate)
    of = f"{output.size(figures.bytes_copied)} of {output.size(figures.bytes_total)}"
    return [of, share, rate, span(figures.eta_low, figures.eta_high)]


_FIGURES = ("copied", "%", "rate", "ends in")


def _tables(now: PlanFigures) -> list[RenderableType]:
    """Return the moves under way, and the disks and brokers that they use."""
    found: list[RenderableType] = []
    moves = [[row.key, str(row.lane), row.stalled or row.state, *_cells(row.figures)] for row in now.moves[:MOST_ROWS]]
    disks = [[f"{row.broker}:{row.path}", str(row.moves), *_cells(row.figures)] for row in now.disks[:MOST_ROWS]]
    brokers = [[str(row.broker), str(row.moves), *_cells(row.figures)] for row in now.brokers[:MOST_ROWS]]
    for head, rows, total in (
        (("move", "lane", "state"), moves, len(now.moves) + now.unread),
        (("disk", "moves"), disks, len(now.disks)),
        (("broker", "moves"), brokers, len(now.brokers)),
    ):
        if rows:
            found.append(output.table((*head, *_FIGURES), rows))
            if total > len(rows):
                found.append(Text(f"... and {total - len(rows)} more {head[0]}s"))
    return found


def limits(options: OptionsRow) -> str:
    """Return the throttles and slots of a plan in one line."""
    rates = (options.throttle_between_brokers, options.throttle_between_directories)
    brokers, directories = ("none" if each is None else output.rate(each) for each in rates)
    slots = (options.slots_per_disk, options.slots_per_broker, options.slots_cluster)
    disk, broker, cluster = ("no limit" if each is None else str(each) for each in slots)
    return (
        f"throttle between brokers {brokers}, between directories {directories}; "
        f"slots per disk {disk}, per broker {broker}, in the cluster {cluster}"
    )


def _outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(outcomes.items())) or "none yet"


def _size(count: int) -> str:
    return output.size(count) if count >= 0 else "-"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ended(result: PlanResult) -> Sequence[RenderableType]:
    """Return a plan's result."""
    lines: list[RenderableType] = [
        Text(
            f"{result.outcome.replace('_', ' ')}: {_outcomes(result.outcomes)}; "
            f"{output.size(result.bytes_copied)} moved"
        )
    ]
    failures = [[row.key, row.outcome, row.reason] for row in result.failures[:MOST_ROWS]]
    if failures:
        lines.append(output.table(("move", "outcome", "why"), failures))
    verified = result.verified
    if verified is not None:
        verdict = "the cluster is as the plan says" if verified.ok else _count(verified.count, "difference")
        lines.append(Text(f"verified: {verdict}; certificate: {verified.path}"))
        lines += [Text(f"  {each}") for each in verified.differences[:MOST_ROWS]]
    return lines
