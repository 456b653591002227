"""Memory of a process that is measured."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psutil

LOOK = 0.05


@contextlib.contextmanager
def sampled(pid: int) -> Iterator[list[int]]:
    """Sample the resident set of a process (bytes) while the block runs, until the process ends."""
    process, found, ended = psutil.Process(pid), list[int](), threading.Event()

    def run() -> None:
        with contextlib.suppress(psutil.Error):
            while not ended.wait(LOOK):
                found.append(process.memory_info().rss)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
