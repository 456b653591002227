"""Lines of commands that wait: one at least every 30 seconds, so that an operator sees that the command is alive."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from ops.cli import output

#: Seconds between two lines.
LINE_SECONDS = 30.0


class Due:
    """Whether the next line of a command is due; the parts of one command that wait share it."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self.printed()

    def printed(self) -> None:
        """Record that a line was printed now."""
        self._at = self._clock() + LINE_SECONDS

    def __call__(self) -> bool:
        """Return whether a line is due; then the next one is due 30 seconds later."""
        if self._clock() < self._at:
            return False
        self.printed()
        return True

    def left(self) -> float:
        """Return the seconds until a line is due."""
        return max(0.0, self._at - self._clock())


@contextlib.contextmanager
def lines(
    what: str | Callable[[], str], due: Due | None = None, say: Callable[[str], None] = output.say
) -> Iterator[None]:
    """Print every 30 seconds what the calls within wait for, and since when; `what` may change meanwhile."""
    ended, begun, due = threading.Event(), time.monotonic(), due or Due()

    def speak() -> None:
        while not ended.wait(due.left()):
            if due():
                say(f"{what if isinstance(what, str) else what()} ({output.duration(time.monotonic() - begun)})")

    thread = threading.Thread(target=speak, name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
