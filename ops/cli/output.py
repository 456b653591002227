"""How values are shown: tables for people, JSON for programs, and the units that people type."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ops.stack.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def console() -> Console:
    """Standard output, for tables. Wide when nobody looks, so that lines can be searched."""
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=240)


def progress_console() -> Console:
    """Standard error, for everything that is not the result."""
    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """A line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2))


def show(value: Any, as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """The value as JSON, or its rows as a table; `empty` is said when there are no rows."""
    if as_json:
        print_json(value)
        return
    lines = [[str(cell) for cell in row] for row in rows]
    if not lines:
        typer.echo(empty)
        return
    console().print(table(columns, lines))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A plain table."""
    made = Table(*columns, title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for row in rows:
        made.add_row(*row)
    return made


def parse_rate(text: str) -> int:
    """Bytes per second from what people type: 20MB, 20MB/s, 512KiB, 1000000. Raises `UsageError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?|)b?(?:/s)?\s*", text, re.IGNORECASE)
    rate = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if rate < 1:
        raise UsageError(f"{text!r} is no rate; write for example 20MB (10^6 bytes per second) or 512KiB")
    return rate


def size(count: float) -> str:
    """Bytes for people: 12.3 MB (10^6)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(count: float) -> str:
    """Bytes per second for people."""
    return f"{size(count)}/s"


def duration(seconds: float | None) -> str:
    """A duration for people: 0.4 s, 12 s, 3:05 min, 2:03:10 h; "-" for an unknown one."""
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
