"""The lines of the benchmark's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `ratio` is ours divided by the peer's (or by what is wanted).

    `wanted` says in words what must hold, `met` whether it does; both stay empty for what is only reported.
    """

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """Whether what is wanted holds, as the table shows it."""
        return "" if self.met is None else ("met" if self.met else "NOT met")


def milliseconds(seconds: float) -> str:
    """A duration as the table shows it."""
    return f"{seconds * 1e3:.1f} ms"


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie; 0 without any."""
    found = sorted(seconds)
    return found[min(len(found) - 1, int(len(found) * share))] if found else 0.0


def print_table(console: Console, figures: Sequence[Figure]) -> None:
    """Show the figures, in their order."""
    table = Table(title="rehome, measured")
    for column in ("what", "rehome", "beside it", "ratio", "wanted", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in figures:
        ratio = f"{f.ratio:.2f}" if f.ratio is not None else ""
        table.add_row(f.what, f.ours, f.peer, ratio, f.wanted, f.verdict)
    console.print(table)


def as_rows(figures: Sequence[Figure]) -> list[dict[str, object]]:
    """The figures for a JSON file."""
    return [
        {
            "what": f.what,
            "rehome": f.ours,
            "beside": f.peer,
            "ratio": f.ratio,
            "wanted": f.wanted,
            "met": f.met,
        }
        for f in figures
    ]
