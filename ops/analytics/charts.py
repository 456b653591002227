"""The report's charts as Vega-Lite specifications. Colours of phases are fixed; the page adds its theme's.

A chart receives only values; a table of the page has the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ops.analytics import schema
from ops.analytics.numbers import duration, rate, shortened, size
from ops.analytics.report import Move, Phase

#: Charts show at most so many moves, the latest; tables show all.
MOST = 40

PHASE_COLOURS = {
    schema.ASKING: "#c8d0dc",
    schema.QUEUED: "#98a2b3",
    schema.CREATING: "#5bb5d6",
    schema.COPYING: "#2e6be6",
    schema.THROTTLED: "#f2a60d",
    schema.STALLED: "#d63e4e",
    schema.UNAVAILABLE: "#c39bd3",
    schema.PAUSED: "#7d5ba6",
    schema.IN_SYNC: "#57b894",
    schema.SWAPPING: "#0b9b72",
    schema.DIRECTING: "#3f9fb0",
    schema.DELETE_DELAY: "#9bd0b5",
    schema.DELETING: "#c3e0d0",
    schema.CANCELLING: "#9a6a3f",
}
SLA_COLOURS = {
    schema.YES: "#0b9b72",
    schema.NO: "#d63e4e",
    schema.NOT_DUE: "#2e6be6",
    schema.EXCLUDED: "#98a2b3",
    schema.NO_SLA: "#b9c7dd",
}
_MARK = "#d63e4e"
_BLUE = "#2e6be6"


@dataclass(frozen=True, slots=True)
class Shown:
    """The moves of a chart, each with a unique label."""

    moves: tuple[Move, ...]
    labels: dict[str, str]


def shown(moves: Sequence[Move]) -> Shown:
    """Return the latest moves, labelled by replica and node, and by a number if a replica moved more than once."""
    latest = tuple(moves[-MOST:])
    labels: dict[str, str] = {}
    taken: dict[str, int] = {}
    for move in latest:
        node = "" if move.node is None else f"  n{move.node}"
        label = f"{shortened(move.replica or move.workflow_id)}{node}"
        taken[label] = taken.get(label, 0) + 1
        labels[move.id] = label if taken[label] == 1 else f"{label} ({taken[label]})"
    return Shown(latest, labels)


def specifications(moves: Sequence[Move], phases: Sequence[Phase], as_of: str) -> dict[str, dict[str, Any] | None]:
    """Return all charts by name; None for a chart without data."""
    show = shown(moves)
    charted = {phase.id for phase in phases}
    return {
        "timeline": timeline(show, phases, as_of) if charted & set(show.labels) else None,
        "durations": durations(show) if show.moves else None,
        "rates": rates(show) if any(move.mean_rate is not None for move in show.moves) else None,
        "split": split(show, phases) if charted & set(show.labels) else None,
    }


def timeline(show: Shown, phases: Sequence[Phase], as_of: str) -> dict[str, Any]:
    """Return the timeline of phases by move; a diamond is the swap, a red tick the deadline."""
    rows = [
        {
            "move": show.labels[phase.id],
            "phase": phase.phase,
            "began": phase.began,
            "ended": phase.ended,
            "for": duration(phase.seconds),
        }
        for phase in phases
        if phase.id in show.labels
    ]
    swaps = [row for row in rows if row["phase"] == schema.SWAPPING]
    last = max([row["ended"] for row in rows] + [move.finished or as_of for move in show.moves], default=as_of)
    deadlines = [
        {"move": show.labels[move.id], "deadline": move.deadline}
        for move in show.moves
        if move.deadline and (move.deadline <= last or move.met_sla == schema.NO)
    ]
    drawn = {row["move"] for row in rows}
    deadlines = [row for row in deadlines if row["move"] in drawn]
    order = [show.labels[move.id] for move in show.moves if show.labels[move.id] in drawn]
    y = alt.Y("move:N", sort=order, title=None, axis=alt.Axis(labelLimit=240))
    x = alt.X("began:T", title="time (UTC)", scale=alt.Scale(type="utc"), axis=_time_axis(rows))
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height={"band": 0.62})
        .encode(
            x=x,
            x2="ended:T",
            y=y,
            color=_phase_colour(rows),
            tooltip=[_tip("move"), _tip("phase"), _tip("for"), _when("began", "from"), _when("ended", "to")],
        )
    )
    layers: list[Any] = [bars]
    if swaps:
        layers.append(
            alt.Chart(alt.Data(values=swaps))
            .mark_point(shape="diamond", filled=True, size=70, opacity=1, color=PHASE_COLOURS[schema.SWAPPING])
            .encode(x=alt.X("began:T", scale=alt.Scale(type="utc")), y=y, tooltip=[_tip("move"), _tip("for", "swap")])
        )
    if deadlines:
        layers.append(
            alt.Chart(alt.Data(values=deadlines))
            .mark_tick(color=_MARK, thickness=2.5, opacity=1)
            .encode(
                x=alt.X("deadline:T", scale=alt.Scale(type="utc")),
                y=y,
                tooltip=[_tip("move"), _when("deadline", "deadline")],
            )
        )
    return _sized(alt.layer(*layers), len(order), "Timeline of moves by phase")


def rates(show: Shown) -> dict[str, Any]:
    """Return the chart of the mean rate of each copy in MB/s; a tick is its limit."""
    rows = [
        {
            "move": show.labels[move.id],
            "rate": move.mean_rate / 1e6,
            "limit": move.throttle / 1e6 if move.throttle else None,
            "shown": rate(move.mean_rate),
            "limited": rate(move.throttle) if move.throttle else "none",
            "bytes": size(move.bytes_written),
        }
        for move in show.moves
        if move.mean_rate is not None
    ]
    y = alt.Y("move:N", sort=None, title=None, axis=alt.Axis(labelLimit=240))
    base = alt.Chart(alt.Data(values=rows))
    tips = [_tip("move"), _tip("shown", "mean rate"), _tip("limited", "limit"), _tip("bytes", "written")]
    bars = base.mark_bar(color=_BLUE, height={"band": 0.62}).encode(
        x=alt.X("rate:Q", title="mean rate while copying (MB/s)"), y=y, tooltip=tips
    )
    layers: list[Any] = [bars]
    if limited := [row for row in rows if row["limit"] is not None]:
        ticks = alt.Chart(alt.Data(values=limited)).mark_tick(color=_MARK, thickness=2.5, opacity=1)
        layers.append(ticks.encode(x="limit:Q", y=y, tooltip=tips))
    return _sized(alt.layer(*layers), len(rows), "Mean rate of each move")


def durations(show: Shown) -> dict[str, Any]:
    """Return the chart of the time until each replica was in place; a tick is its deadline, a triangle a far one."""
    longest = max([move.duration_seconds for move in show.moves], default=0.0)
    edge = 1.15 * max([longest, *[move.deadline_seconds or 0 for move in show.moves if _near(move, longest)]])
    unit, divisor = ("h", 3600.0) if edge > 3 * 3600 else ("min", 60.0) if edge > 300 else ("s", 1.0)
    rows = [
        {
            "move": show.labels[move.id],
            "took": move.duration_seconds / divisor,
            "deadline": move.deadline_seconds / divisor if move.deadline_seconds and _near(move, longest) else None,
            "beyond": edge / divisor if move.deadline_seconds and not _near(move, longest) else None,
            "shown": duration(move.duration_seconds) + (" so far" if move.open else ""),
            "due": duration(move.deadline_seconds),
            "sla": move.met_sla,
        }
        for move in show.moves
    ]
    y = alt.Y("move:N", sort=None, title=None, axis=alt.Axis(labelLimit=240))
    base = alt.Chart(alt.Data(values=rows))
    tips = [_tip("move"), _tip("shown", "took"), _tip("due", "deadline"), _tip("sla", "met SLA")]
    states = [state for state in SLA_COLOURS if any(row["sla"] == state for row in rows)]
    colour = alt.Color(
        "sla:N",
        title="met SLA",
        scale=alt.Scale(domain=states, range=[SLA_COLOURS[state] for state in states]),
        legend=alt.Legend(orient="top", titleOrient="left"),
    )
    scale = alt.Scale(domain=[0, max(edge / divisor, 0.001)], nice=False)
    took = alt.X("took:Q", title=f"time until in place ({unit})", scale=scale)
    bars = base.mark_bar(height={"band": 0.62}).encode(x=took, y=y, color=colour, tooltip=tips)
    layers: list[Any] = [bars]
    if due := [row for row in rows if row["deadline"] is not None]:
        ticks = alt.Chart(alt.Data(values=due)).mark_tick(color=_MARK, thickness=2.5, opacity=1)
        layers.append(ticks.encode(x="deadline:Q", y=y, tooltip=tips))
    if far := [row for row in rows if row["beyond"] is not None]:
        arrows = alt.Chart(alt.Data(values=far)).mark_point(
            shape="triangle-right", filled=True, color=_MARK, size=45, opacity=1, xOffset=-5
        )
        layers.append(arrows.encode(x="beyond:Q", y=y, tooltip=tips))
    return _sized(alt.layer(*layers), len(rows), "Duration of each move against its deadline")


def _near(move: Move, longest: float) -> bool:
    """Return whether a deadline fits on the axis without squeezing the bars."""
    return bool(move.deadline_seconds) and (move.deadline_seconds or 0.0) <= 1.5 * longest


def split(show: Shown, phases: Sequence[Phase]) -> dict[str, Any]:
    """Return the chart of the share of each phase in each move's time."""
    spent: dict[tuple[str, str], float] = {}
    for phase in phases:
        if phase.id in show.labels:
            key = show.labels[phase.id], phase.phase
            spent[key] = spent.get(key, 0.0) + phase.seconds
    rows = [
        {"move": move, "phase": phase, "seconds": seconds, "for": duration(seconds), "place": _place(phase)}
        for (move, phase), seconds in spent.items()
    ]
    order = [show.labels[move.id] for move in show.moves if any(row["move"] == show.labels[move.id] for row in rows)]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height={"band": 0.62})
        .encode(
            x=alt.X("seconds:Q", stack="normalize", title="share of the move's time", axis=alt.Axis(format="%")),
            y=alt.Y("move:N", sort=order, title=None, axis=alt.Axis(labelLimit=240)),
            color=_phase_colour(rows),
            order=alt.Order("place:Q"),
            tooltip=[_tip("move"), _tip("phase"), _tip("for")],
        )
    )
    return _sized(chart, len(order), "Share of each phase in each move")


def _sized(chart: Any, rows: int, description: str) -> dict[str, Any]:
    """Return the specification, as wide as the page allows, with a band per row."""
    sized = chart.properties(width="container", height=max(rows, 1) * 26, description=description)
    spec: dict[str, Any] = sized.to_dict(validate=True)
    spec.pop("config", None)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _phase_colour(rows: Sequence[dict[str, Any]]) -> alt.Color:
    present = [phase for phase in schema.PHASES if any(row["phase"] == phase for row in rows)]
    return alt.Color(
        "phase:N",
        title=None,
        scale=alt.Scale(domain=present, range=[PHASE_COLOURS[phase] for phase in present]),
        legend=alt.Legend(orient="top", columns=10),
    )


def _time_axis(rows: Sequence[dict[str, Any]]) -> alt.Axis:
    days = {str(row[end])[:10] for row in rows for end in ("began", "ended")}
    return alt.Axis(format="%H:%M:%S" if len(days) <= 1 else "%d %b %H:%M", tickCount=8, labelOverlap="greedy")


def _tip(name: str, title: str | None = None) -> alt.Tooltip:
    return alt.Tooltip(f"{name}:N", title=title or name)


def _when(name: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{name}:T", title=title, timeUnit="utcyearmonthdatehoursminutesseconds", format="%F %T")


def _place(phase: str) -> int:
    return schema.PHASES.index(phase) if phase in schema.PHASES else len(schema.PHASES)
