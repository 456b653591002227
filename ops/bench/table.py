"""The lines of the benchmarks' table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `ratio` is ours divided by the peer's (or by the target).

    `wanted` is the target as text, `met` whether it is met; both are empty without a target.
    """

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """The table's text for `met`."""
        return "" if self.met is None else ("met" if self.met else "NOT met")


def milliseconds(seconds: float) -> str:
    """Format a duration for the table."""
    return f"{seconds * 1e3:.1f} ms"


def percentile(seconds: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie; 0 if there are none."""
    found = sorted(seconds)
    return found[min(len(found) - 1, int(len(found) * share))] if found else 0.0


def print_table(console: Console, figures: Sequence[Figure]) -> None:
    """Print the figures in their order."""
    table = Table(title="rehome, measured")
    for column in ("what", "rehome", "reference", "ratio", "target", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in figures:
        ratio = f"{f.ratio:.2f}" if f.ratio is not None else ""
        table.add_row(f.what, f.ours, f.peer, ratio, f.wanted, f.verdict)
    console.print(table)


def as_rows(figures: Sequence[Figure]) -> list[dict[str, object]]:
    """Return the figures as rows for a JSON file."""
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
