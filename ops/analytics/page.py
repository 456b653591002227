"""The report as one HTML file that asks nobody for anything: styles, scripts, data and charts are in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ops.analytics import charts, schema
from ops.analytics.numbers import duration, percent, rate, size
from ops.analytics.report import Attainment, Move, Phase, Report

#: Rows of the large tables; what is left out stands in the Parquet tables, and the page says so.
MOST_ROWS = 2000

#: An open move that stood still for more than so many seconds is worth a look.
STALLED_FROM = 5.0

_TEMPLATES = Path(__file__).with_name("templates")


def write_page(report: Report, path: Path) -> Path:
    """Write the page, whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(render(report), encoding="utf-8")
    temporary.replace(path)
    return path


def render(report: Report) -> str:
    """The page's HTML."""
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
        left_out=max(0, len(report.moves) - MOST_ROWS),
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
    """Vega, Vega-Lite and their embedding as one script; "</" in it cannot end the script element."""
    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def as_script(value: Any) -> str:
    """JSON that may stand inside a script element whatever text it holds."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def headline(total: Attainment) -> str:
    """The report in a sentence or two."""
    if total.moves == 0:
        return "No moves are in the exported histories."
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


def alarms(moves: Sequence[Move]) -> Iterator[tuple[str, Move, str]]:
    """What a reader should look at: a word, the move, and why. Late and failed ones first, the latest first."""
    for move in reversed(moves):
        if move.met_sla == schema.NO:
            yield "late" if move.open or move.outcome in _DONE else move.outcome, move, _late(move)
        elif move.outcome in (schema.FAILED, schema.TIMED_OUT, schema.TERMINATED):
            yield move.outcome, move, move.message or move.reason or "no reason is in its history"
        elif move.open and move.stall in _WORTH_A_LOOK:
            yield "open", move, move.stall_message or move.stall or ""
        elif move.open and (move.seconds_stalled > STALLED_FROM or move.reason):
            yield "open", move, move.message or move.reason or f"stalled for {duration(move.seconds_stalled)}"


#: What an open move does not get over by itself, or not soon.
_WORTH_A_LOOK = ("slow_disk", "growing_source", "offline", "stopped")

#: Reasons in words, as the page has them.
REASON_WORDS = {
    "copying": "copying",
    "queued": "queued behind other moves",
    "run_limit": "held back by its own limit",
    "node_limit": "held back by the node’s limit",
    "slow_disk": "slow disk",
    "growing_source": "source grew faster than the copy",
    "stopped": "paused or stopped",
    "offline": "directory offline",
    "dead": "node dead",
    "cut_off": "node cut off",
    "fenced": "node fenced",
    "away": "node unavailable, or waiting for a retry",
}

_DONE = (schema.MOVED, schema.IN_PLACE)


def _late(move: Move) -> str:
    told = f"{duration(move.duration_seconds)} of {duration(move.deadline_seconds)}"
    if move.open:
        return f"open and past its deadline: {told}, now {move.phase}"
    if move.outcome in _DONE:
        return f"in place after its deadline: {told}"
    return f"{move.message or move.reason or move.outcome} ({told})"


def lost(moves: Sequence[Move]) -> tuple[tuple[str, float, float, Move], ...]:
    """Where the time of all moves went: the reason, its seconds, its share, and the move that it took most of."""
    totals = {reason: sum(move.spent.get(reason, 0.0) for move in moves) for reason in schema.REASONS}
    whole = sum(totals.values())
    return tuple(
        (reason, seconds, seconds / whole, max(moves, key=lambda move: move.spent.get(reason, 0.0)))
        for reason, seconds in totals.items()
        if seconds > 0
    )


def times(moves: Sequence[Move], phases: Sequence[Phase]) -> Iterator[tuple[Move, dict[str, float]]]:
    """Each move with its seconds per phase, the latest first."""
    spent: dict[str, dict[str, float]] = {}
    for phase in phases:
        of = spent.setdefault(phase.id, {})
        of[phase.phase] = of.get(phase.phase, 0.0) + phase.seconds
    for move in reversed(moves[-MOST_ROWS:]):
        yield move, spent.get(move.id, {})


def stamp(text: str | None) -> str:
    """A time stamp for a person, to the second, in UTC."""
    return f"{text[:10]} {text[11:19]}" if text else "–"


def clock(text: str | None) -> str:
    """The time of day of a time stamp, to the millisecond, in UTC."""
    return text[11:23] if text else "–"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
