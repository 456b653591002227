"""The lines of the benchmark's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `ratio` is ours divided by the peer's (or the target's)."""

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None


def milliseconds(seconds: float) -> str:
    """A duration as the table shows it."""
    return f"{seconds * 1e3:.1f} ms"


def print_table(console: Console, figures: Sequence[Figure]) -> None:
    """Show the figures, in their order."""
    table = Table(title="rehome, measured")
    for column in ("what", "rehome", "beside it", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in figures:
        table.add_row(f.what, f.ours, f.peer, f"{f.ratio:.2f}" if f.ratio is not None else "")
    console.print(table)
