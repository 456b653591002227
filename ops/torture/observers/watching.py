"""Threads that observe a cluster periodically during a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


class Observers:
    """Call functions periodically from `start` to `stop`, each in a thread of its own."""

    def __init__(self, looks: Mapping[str, Callable[[], None]], every: float) -> None:
        """`looks`: each thread's function by the thread's name, called `every` seconds after its last return."""
        self.problems: list[str] = []
        """The threads that an error has ended: their observations are incomplete."""
        self._stop = threading.Event()
        self._every = every
        self._threads = [
            threading.Thread(target=self._run, args=(look,), name=name, daemon=True) for name, look in looks.items()
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads after their calls in progress. Idempotent, also without a start."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(60)

    def _run(self, look: Callable[[], None]) -> None:
        try:
            while not self._stop.wait(self._every):
                look()
        except Exception as error:  # after any error the verdict must not count as complete
            self.problems.append(f"the {threading.current_thread().name} ended: {error!r}")
            raise
