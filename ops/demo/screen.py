"""What the demo shows: steps, lines, progress. A live display on a terminal, a line now and then elsewhere."""

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
#: Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 3.0


class Screen:
    """Everything goes to standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or output.console()
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def step(self, number: int, title: str) -> None:
        """A new step begins."""
        stamp = output.duration(self.elapsed)
        self.console.print(f"\n[bold cyan]{number}/{STEPS}[/] [bold]{escape(title)}[/]  [dim]({stamp})[/]")

    def line(self, text: str) -> None:
        self.console.print(f"    {escape(text)}")

    def good(self, text: str) -> None:
        """Something was proved."""
        self.console.print(f"    [green]ok[/]  {escape(text)}")

    def bad(self, text: str) -> None:
        """Something was disproved."""
        self.console.print(f"    [red]NOT OK[/]  {escape(text)}")

    def command(self, line: str) -> None:
        """A command line that is run now, as a person would type it."""
        self.console.print(f"    [bold]$[/] {escape(line)}")

    def plain(self, text: str) -> None:
        """Text as another program printed it."""
        self.console.print(Text(text.rstrip()), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float, float, str], None]]:
        """Progress of one thing: called with (done, total, unit text) as often as wanted."""
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
        """A display that is replaced: called with the display and the line that stands for it without a terminal."""
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
