"""Output of the commands: tables, JSON, and the units of rates, sizes and durations."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ops.stack.errors import PartialAnswer, UsageError

_UNITS = {"": 1} | {unit: 10 ** (3 * power) for power, unit in enumerate("kmgt", 1)}
_UNITS |= {f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("kmgt", 1)}


def console() -> Console:
    """Return a console for standard output; wide if that is not a terminal, so that lines are not cut."""
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=240)


def progress_console() -> Console:
    """Return a console for standard error: everything except the result goes there."""
    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


@functools.cache
def warn_once(line: str) -> None:
    """Print a warning to standard error, once: a command may read a file more than once."""
    say(f"warning: {line}")


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    typer.echo(json.dumps(value, indent=2))


def need_whole(missed: Sequence[str]) -> None:
    """Raise `PartialAnswer` if a part of the cluster did not respond; `missed` has a sentence for each. Called at the
    end, when the rest is printed.
    """
    if missed:
        raise PartialAnswer(f"the result is partial: {'; '.join(missed)}")


def show(value: Any, as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print the value as JSON, or its rows as a table; `empty` if there are no rows."""
    if as_json:
        print_json(value)
        return
    lines = [[str(cell) for cell in row] for row in rows]
    if not lines:
        typer.echo(empty)
        return
    console().print(table(columns, lines))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """Return a table without borders."""
    made = Table(*columns, title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for row in rows:
        made.add_row(*row)
    return made


def parse_rate(text: str) -> int:
    """Return the bytes per second of a text such as 20MB, 20MB/s, 512KiB or 1000000. Raises `UsageError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?(?:/s)?\s*", text, re.IGNORECASE)
    rate = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if rate < 1:
        raise UsageError(f"{text!r} is not a valid rate; write for example 20MB (10^6 bytes per second) or 512KiB")
    return rate


def size(count: float) -> str:
    """Format bytes: 12.3 MB (10^6)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(count: float) -> str:
    """Format bytes per second."""
    return f"{size(count)}/s"


def to_go(eta: float | None, copied: int, total: int) -> str:
    """Format an ETA; "-" where nothing is left to copy, since what remains then takes a time that no rate tells."""
    return duration(eta if copied < total else None)


def duration(seconds: float | None) -> str:
    """Format a duration: 0.4 s, 12 s, 3:05 min, 2:03:10 h; "-" if unknown."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h"
