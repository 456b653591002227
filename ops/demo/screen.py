"""The demo's output: steps, lines, progress. A live display on a terminal, periodic lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from ops.cli import output

STEPS = 9
#: Seconds between two lines of progress without a terminal.
LINE_SECONDS = 3.0


class Screen:
    """Print to standard output."""

    def __init__(self, console: Console | None = None, steps: int = STEPS) -> None:
        self.console = console or output.console()
        self._steps = steps
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def step(self, number: int, title: str) -> None:
        """Print the title of a step."""
        stamp = output.duration(self.elapsed)
        self.console.print(f"\n[bold cyan]{number}/{self._steps}[/] [bold]{escape(title)}[/]  [dim]({stamp})[/]")

    def line(self, text: str) -> None:
        self.console.print(f"    {escape(text)}")

    def good(self, text: str) -> None:
        """Print a successful proof."""
        self.console.print(f"    [green]ok[/]  {escape(text)}")

    def bad(self, text: str) -> None:
        """Print a failed proof."""
        self.console.print(f"    [red]NOT OK[/]  {escape(text)}")

    def command(self, line: str) -> None:
        """Print a command line that is executed now."""
        self.console.print(f"    [bold]$[/] {escape(line)}")

    def plain(self, text: str) -> None:
        """Print another program's output unchanged."""
        self.console.print(Text(text.rstrip()), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float, float, str], None]]:
        """Yield a function that shows progress; its arguments are done, total and a text."""
        last = 0.0
        with _maybe_live(self.console) as live:

            def update(done: float, total: float, detail: str) -> None:
                nonlocal last
                share = f"{100 * done / total:3.0f}%" if total else ""
                now = time.monotonic()
                if live is not None:
                    live.update(Text(f"    {what} {share}  {detail}"))
                elif now - last >= LINE_SECONDS:
                    last = now
                    self.line(f"{what} {share}  {detail}")

            yield update

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[RenderableType, str], None]]:
        """Yield a function that replaces the display; its arguments are the display and its line without a terminal."""
        last = 0.0
        with _maybe_live(self.console) as live:

            def update(display: RenderableType, line: str) -> None:
                nonlocal last
                now = time.monotonic()
                if live is not None:
                    live.update(display)
                elif now - last >= LINE_SECONDS:
                    last = now
                    self.line(line)

            yield update


@contextlib.contextmanager
def _maybe_live(console: Console) -> Iterator[Live | None]:
    if not console.is_terminal:
        yield None
        return
    with Live(Text(""), console=console, refresh_per_second=5, transient=True) as live:
        yield live
