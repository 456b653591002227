"""The report as one self-contained HTML file: it includes its styles, scripts, data and charts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ops.analytics import charts, schema
from ops.analytics.numbers import FEWEST, attainment, duration, percent, rate, size
from ops.analytics.report import Attainment, Move, Phase, Plan, Report
from storage_node.model.moves import StallReason

#: Rows of the large tables; the others are only in the tables, which the page notes.
MOST_ROWS = 2000

#: An open move that has stalled for more than so many seconds needs attention.
STALLED_FROM = 5.0

_TEMPLATES = Path(__file__).with_name("templates")


def write_page(report: Report, path: Path) -> Path:
    """Write the page atomically. Raises OSError."""
    return write_text(path, render(report))


def write_text(path: Path, text: str) -> Path:
    """Write a file atomically. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def render(report: Report) -> str:
    """Return the page's HTML."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size, "rate": rate, "duration": duration, "percent": percent, "stamp": stamp, "clock": clock
    }  # fmt: skip
    environment.globals |= {"attainment": attainment, "fewest": FEWEST}
    specs = charts.specifications(report.moves, report.phases, report.as_of)
    return environment.get_template("report.html.j2").render(
        report=report,
        total=report.total,
        headline=headline(report.total),
        alarms=tuple(alarms(report.moves)),
        lost=lost(report.moves),
        words=REASON_WORDS,
        reasons=schema.REASONS,
        times=tuple(times(report.moves, report.phases)),
        intervals=report.phases[-MOST_ROWS:],
        moves=tuple(reversed(report.moves[-MOST_ROWS:])),
        charted=min(len(report.moves), charts.MOST),
        drawn={name for name, spec in specs.items() if spec},
        left_out=max(0, report.listed - min(MOST_ROWS, len(report.moves))),
        replica_of={move.id: move.replica or move.workflow_id for move in report.moves},
        phases=schema.PHASES,
        colours=charts.PHASE_COLOURS,
        locked=max((move.seconds_locked for move in report.moves), default=0.0),
        style=Markup((_TEMPLATES / "report.css").read_text()),
        script=Markup((_TEMPLATES / "report.js").read_text()),
        vega=Markup(bundle()),
        specs=Markup(as_script({name: spec for name, spec in specs.items() if spec})),
    )


@cache
def bundle() -> str:
    """Return Vega, Vega-Lite and their embedding as one script; "</" in it cannot end the script element."""
    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def as_script(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever text it contains."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def headline(total: Attainment) -> str:
    """Return the report in a sentence or two."""
    if total.moves == 0:
        return "The exported histories contain no moves."
    parts = [f"{total.moved} of {_count(total.moves, 'move')} done"]
    for number, word in ((total.open, "still open"), (total.failed, "failed"), (total.cancelled, "cancelled")):
        if number:
            parts.append(f"{number} {word}")
    text = ", ".join(parts) + "."
    if total.met + total.missed:
        text += f" {total.met} of {_count(total.met + total.missed, 'deadline')} met."
    elif total.asked == 0:
        text += " No move had a deadline."
    return text


def plan_line(plan: Plan) -> str:
    """Return a plan in one line: how far it is or how it ended, and why."""
    moves = f"{plan.done} of {_count(plan.moves, 'move')} done" if plan.moves is not None else "not checked"
    parts = [
        moves,
        *[f"{number} {word}" for number, word in ((plan.running, "open"), (plan.missed, "missed")) if number],
    ]
    parts.append(size(plan.bytes_done))
    if plan.verified is not None:
        parts.append("verified" if plan.verified else f"{_count(plan.differences or 0, 'partition')} differ")
    if plan.deadline:
        parts.append(f"deadline {stamp(plan.deadline)}: {plan.met_sla}")
    state = f"open ({plan.phase})" if plan.open and plan.phase else plan.outcome
    why = f": {plan.message}" if plan.message else ""
    return f"plan {plan.workflow_id} {state}, {', '.join(parts)}{why}"


def alarms(moves: Sequence[Move]) -> Iterator[tuple[str, Move, str]]:
    """Yield the moves that need attention: a word, the move, and why; the latest first."""
    for move in reversed(moves):
        if move.met_sla == schema.NO:
            yield "late" if move.open or move.outcome in _DONE else move.outcome, move, _late(move)
        elif move.outcome in (schema.FAILED, schema.TIMED_OUT, schema.TERMINATED):
            yield move.outcome, move, move.message or move.reason or "its history contains no reason"
        elif move.open and move.stall in _NEEDS_ATTENTION:
            yield "open", move, move.stall_message or move.stall or ""
        elif move.open and (move.seconds_stalled > STALLED_FROM or move.reason):
            yield "open", move, move.message or move.reason or f"stalled for {duration(move.seconds_stalled)}"


#: Stall reasons that do not end by themselves, or not soon.
_NEEDS_ATTENTION = (StallReason.SLOW_DISK, StallReason.GROWING_SOURCE, StallReason.OFFLINE, StallReason.STOPPED)

#: Reasons in the words of the page.
REASON_WORDS: Mapping[str, str] = {
    StallReason.COPYING: "copying",
    StallReason.QUEUED: "queued behind other moves",
    StallReason.RUN_LIMIT: "limited by its own throttle",
    StallReason.NODE_LIMIT: "limited by the node’s throttle",
    StallReason.SLOW_DISK: "slow disk",
    StallReason.GROWING_SOURCE: "source grew faster than the copy",
    StallReason.STOPPED: "paused or stopped",
    StallReason.OFFLINE: "directory offline",
    StallReason.DEAD: "node dead",
    StallReason.CUT_OFF: "node cut off",
    StallReason.FENCED: "node fenced",
    StallReason.UNAVAILABLE: "node unavailable, or waiting for a retry",
}

_DONE = (schema.MOVED, schema.IN_PLACE)


def _late(move: Move) -> str:
    spent = f"{duration(move.duration_seconds)} of {duration(move.deadline_seconds)}"
    if move.open:
        return f"open and past its deadline: {spent}, now {move.phase}"
    if move.outcome in _DONE:
        return f"in place after its deadline: {spent}"
    return f"{move.message or move.reason or move.outcome} ({spent})"


def lost(moves: Sequence[Move]) -> tuple[tuple[str, float, float, Move], ...]:
    """Return the time of all moves by reason: its seconds, its share, and the move that it delayed most."""
    totals = {reason: sum(move.spent.get(reason, 0.0) for move in moves) for reason in schema.REASONS}
    whole = sum(totals.values())
    return tuple(
        (reason, seconds, seconds / whole, max(moves, key=lambda move: move.spent.get(reason, 0.0)))
        for reason, seconds in totals.items()
        if seconds > 0
    )


def times(moves: Sequence[Move], phases: Sequence[Phase]) -> Iterator[tuple[Move, dict[str, float]]]:
    """Yield each move with its seconds per phase, the latest first."""
    spent: dict[str, dict[str, float]] = {}
    for phase in phases:
        of = spent.setdefault(phase.id, {})
        of[phase.phase] = of.get(phase.phase, 0.0) + phase.seconds
    for move in reversed(moves[-MOST_ROWS:]):
        yield move, spent.get(move.id, {})


def stamp(text: str | None) -> str:
    """Format a time stamp to the second, in UTC."""
    return f"{text[:10]} {text[11:19]}" if text else "–"


def clock(text: str | None) -> str:
    """Format the time of day of a time stamp to the millisecond, in UTC."""
    return text[11:23] if text else "–"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
