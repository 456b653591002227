"""Threads that look at something again and again while a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


class Watch:
    """Looks from `start` to `stop`, every thread of it by itself."""

    def __init__(self, looks: Mapping[str, Callable[[], None]], every: float) -> None:
        """`looks`: what each thread does, by the thread's name, with `every` seconds between the end of a look and the
        next one.
        """
        self.problems: list[str] = []
        """Looks that have ended by an error: what they would have seen is not known."""
        self._stop = threading.Event()
        self._every = every
        self._threads = [
            threading.Thread(target=self._run, args=(look,), name=name, daemon=True) for name, look in looks.items()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, after the looks under way; more than once, and without a start, does nothing more."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(60)

    def _run(self, look: Callable[[], None]) -> None:
        try:
            while not self._stop.wait(self._every):
                look()
        except Exception as error:  # whatever it is, the verdict must not pass for complete
            self.problems.append(f"the {threading.current_thread().name} ended: {error!r}")
            raise
