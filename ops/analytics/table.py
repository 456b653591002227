"""The report as a table on a terminal. Columns that do not fit are omitted, the least important first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ops.analytics import schema
from ops.analytics.numbers import FEWEST, TOO_FEW, attainment, burn, duration, fraction, percent, rate, shortened, size
from ops.analytics.page import headline, plan_line
from ops.analytics.report import Budget, Move, Report

#: Width of a table in a file or a pipe, without COLUMNS.
FILE_WIDTH = 190
#: Rows that are printed; the page and the tables have the others.
MOST = 100
#: Plans that are printed.
MOST_PLANS = 20
#: Lines about what could not be read.
MOST_BAD = 5

_STYLES = {
    schema.MOVED: "green",
    schema.IN_PLACE: "green",
    schema.FAILED: "bold red",
    schema.TIMED_OUT: "bold red",
    schema.TERMINATED: "red",
    schema.CANCELLED: "yellow",
    schema.SUPERSEDED: "yellow",
    schema.OPEN: "cyan",
    schema.YES: "green",
    schema.NO: "bold red",
}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    show: Callable[[Move], str]
    right: bool = True
    spare: int = 0  # columns with a higher value are omitted first; one with 0 never


_COLUMNS = (
    _Column("replica", lambda m: shortened(m.replica or m.workflow_id), right=False),
    _Column("kind", lambda m: m.kind, right=False, spare=5),
    _Column("node", lambda m: "–" if m.node is None else str(m.node)),
    _Column("from", lambda m: shortened(m.origin or "–"), right=False, spare=9),
    _Column("to", lambda m: shortened(m.target or "–"), right=False, spare=6),
    _Column("outcome", lambda m: m.outcome if not m.open else f"open: {m.phase}", right=False),
    _Column("started", lambda m: m.started[11:19], spare=8),
    _Column("duration", lambda m: duration(m.duration_seconds)),
    _Column("size", lambda m: size(m.bytes_total), spare=1),
    _Column("rate", lambda m: rate(m.mean_rate)),
    _Column("tries", lambda m: str(m.attempts), spare=3),
    _Column("resumed", lambda m: size(m.bytes_resumed) if m.bytes_resumed else "–", spare=4),
    _Column("queued", lambda m: duration(m.seconds_queued), spare=7),
    _Column("copying", lambda m: duration(m.seconds_copying), spare=6),
    _Column("throttled", lambda m: duration(m.seconds_throttled), spare=6),
    _Column("swap", lambda m: duration(m.seconds_locked), spare=2),
    _Column("deadline", lambda m: m.deadline[11:19] if m.deadline else "–", spare=10),
    _Column("SLA", lambda m: m.met_sla, right=False),
    _Column("reason", lambda m: shortened(m.reason or m.stall or "–"), right=False, spare=11),
)


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the table of moves, the latest last, with a headline under it."""
    width_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    out = console or Console(file=sys.stdout, width=None if width_known else FILE_WIDTH)
    columns = list(_COLUMNS)
    table = _table(report, columns)
    boundless = out.options.update(width=10_000)
    while Measurement.get(out, boundless, table).maximum > out.width and any(column.spare for column in columns):
        most = max(column.spare for column in columns)
        columns = [column for column in columns if column.spare != most]
        table = _table(report, columns)
    out.print(table)
    if report.listed > MOST:
        out.print(f"{report.listed - MOST} older moves are not shown.")
    if report.only:
        out.print(f"Only moves {report.only}: {report.listed} of {report.total.moves}. What follows is of all moves.")
    out.print(headline(report.total))
    for plan in report.plans[-MOST_PLANS:]:
        out.print(Text(plan_line(plan), style=_STYLES.get(plan.outcome, "")))
    for failure in report.failures:
        out.print(
            Text(
                f"{failure.noticed[11:19]} node {failure.node}: {failure.directory} failed, "
                f"{len(failure.replicas)} replicas offline, {len(failure.moves)} moves ended: {failure.reason}",
                style="red",
            )
        )
    for bad in report.replica_failures:
        state = f"offline until {bad.back[11:19]}" if bad.back else "offline"
        out.print(
            Text(
                f"{bad.reported[11:19]} node {bad.node}: {bad.replica} {state}, {bad.file or 'unknown file'}: "
                f"{bad.reason}",
                style="" if bad.back else "red",
            )
        )
    for one in report.quarantine[:MOST_BAD]:
        out.print(Text(f"not read: {one.message}", style="red"))
    if report.quarantined > MOST_BAD:
        out.print(f"{report.quarantined - MOST_BAD} more parts of the export are in the table quarantine.")
    if report.total.attainment is not None:
        total = report.total
        interval = f"95 % interval {percent(total.low)} to {percent(total.high)}"
        counted = total.met + total.missed
        out.print(f"SLA attainment: {attainment(total.met, counted)} ({total.met} of {counted} met; {interval})")
    if report.budgets:
        out.print(_budgets(report.budgets))


#: The burn rates of the terminal, in pairs of a long and a short window.
_BURNS = (("1 h / 5 min", "1h", "5m"), ("6 h / 30 min", "6h", "30m"), ("3 d / 6 h", "3d", "6h"))
_ALARMS = {"page": "bold red", "ticket": "yellow"}


def _budgets(budgets: Sequence[Budget]) -> Table:
    table = Table(title="SLOs and their error budgets", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for title in ("SLO", "objective", "good", "bad", "share", "budget left", *(name for name, _, _ in _BURNS), "alarm"):
        table.add_column(title, justify="left" if title in ("SLO", "alarm") else "right")
    for one in budgets:
        few = one.good + one.bad < FEWEST
        pairs = [[burn(getattr(one, f"burn_{window}")) for window in windows] for _, *windows in _BURNS]
        burns = [TOO_FEW if set(pair) == {TOO_FEW} else " / ".join(pair) for pair in pairs]
        goal = f"{fraction(one.objective)} of {one.weight} in {one.window_days} d"
        share = TOO_FEW if few else fraction(one.share)
        cells = (shortened(one.slo), goal, str(one.good), str(one.bad), share, fraction(one.budget_left), *burns)
        table.add_row(*map(Text, cells), Text(one.alarm or "–", style=_ALARMS.get(one.alarm or "", "")))
    return table


def _table(report: Report, columns: Sequence[_Column]) -> Table:
    title = f"Replica moves as of {report.as_of[:19].replace('T', ' ')} UTC"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="ellipsis", no_wrap=True)
    for move in report.moves[-MOST:]:
        cells = [(column.show(move), column.title) for column in columns]
        table.add_row(*[Text(cell, style=_style(cell, title)) for cell, title in cells])
    return table


def _style(cell: str, title: str) -> str:
    return _STYLES.get(cell.split(":")[0], "") if title in ("outcome", "SLA") else ""
