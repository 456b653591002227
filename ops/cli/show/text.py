"""A run's timeline on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from ops.cli import output
from ops.cli.show.timeline import Kind, Row, State, Timeline

#: Rows of a timeline on a terminal, of the beginning and of the end; --json has all of them.
FIRST, LAST = 20, 60


def lines(shown: Timeline, zone: tzinfo | None = None) -> list[str]:
    """Return the timeline as text; times are local, or in `zone`."""
    ended = (
        f"{shown.outcome.replace('_', ' ')} after {output.duration(shown.ended - shown.started)}"
        if (shown.ended is not None)
        else "open"
    )
    found = [
        f"{shown.workflow_id}: {shown.type}, {ended}",
        f"started {_moment(shown.started, zone)} by {shown.started_by}",
    ]
    if shown.earlier:
        found.append(f"{shown.earlier} earlier runs of the chain are left out")
    if shown.phases:
        spans = [f"{each.name.replace('_', ' ')} {output.duration(each.seconds)}" for each in shown.phases]
        found.append(f"phases: {', '.join(spans)}")
    found.append("")
    rows = [row for row in shown.rows if not _patience(row)]
    left_out = len(rows) - FIRST - LAST
    if left_out > 0:
        rows = [*rows[:FIRST], *rows[-LAST:]]
    cells = [_cells(row, zone) for row in rows]
    if left_out > 0:
        cells.insert(FIRST, ["...", "", f"{left_out} rows are left out; --json has all", ""])
    found += _columns(cells)
    if shown.ended is None:
        found += ["", f"now: {shown.now}"]
    elif shown.reason:
        found += ["", f"reason: {shown.reason}"]
    if shown.results:
        more = f" (and {len(shown.results) - LAST} more)" if len(shown.results) > LAST else ""
        found += ["", *(f"result: {line}" for line in shown.results[:LAST])]
        found += [more.strip()] if more else []
    return found


def _patience(row: Row) -> bool:
    """Return whether a row is the timer of a wait that ended in time."""
    return row.kind is Kind.TIMER and row.state is State.CANCELLED and not row.about


def _cells(row: Row, zone: tzinfo | None) -> list[str]:
    what = row.name if row.kind is Kind.STEP else f"{row.kind} {row.name}" if row.kind is not Kind.CANCEL else row.name
    what += f" x{row.count}" if row.count > 1 else ""
    what += f": {row.about}" if row.about else ""
    how = [] if row.state is State.DONE else [row.state.replace("_", " ")]
    if row.attempts > 1:
        how.append(f"attempt {row.attempts}")
    if row.failure:
        how.append(
            row.failure
            if row.state in (State.FAILED, State.REFUSED, State.TIMED_OUT)
            else f"last failure: {row.failure}"
        )
    if row.by and row.kind in (Kind.UPDATE, Kind.CANCEL, Kind.SIGNAL):
        how.append(f"by {row.by}")
    took = output.duration(row.seconds) if row.kind in (Kind.STEP, Kind.RUN, Kind.TIMER) or row.count > 1 else ""
    return [_moment(row.at, zone, date=False), took, what, "; ".join(how)]


def _columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text; the last column is not padded, so that a sentence is not cut."""
    widths = [max((len(row[at]) for row in cells), default=0) for at in range(3)]
    widths[2] = min(widths[2], 60)
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in cells
    ]


def _moment(at: float, zone: tzinfo | None, *, date: bool = True) -> str:
    moment = datetime.fromtimestamp(at, UTC).astimezone(zone)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if date else f"{moment:%H:%M:%S}"
