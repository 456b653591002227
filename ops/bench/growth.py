"""How fast the files of copies grow, as a user sees it: by `stat`, from outside of the node.

A user who watches the disk counts the time before the first write and what stands still between two, which a probe at
the writes does not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

INTERVAL = 0.02
FUTURE = ".move"

#: A moment (seconds) and how many bytes the files had then.
Sample = tuple[float, int]


class Growth:
    """Notes the size of all segments in a directory's future logs until it is left; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.samples.append((time.monotonic(), size(self._directory)))


def size(directory: Path) -> int:
    """Bytes in the segments of a directory's future logs."""
    found = 0
    for folder in directory.glob(f"*{FUTURE}"):
        try:
            found += sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".log"))
        except FileNotFoundError:  # it was swapped meanwhile
            continue
    return found


def growing(samples: Sequence[Sample]) -> list[Sample]:
    """The samples from the first byte to the first that is less than the one before: a copy was swapped then."""
    found: list[Sample] = []
    for at, count in samples:
        if found and count < found[-1][1]:
            break
        if count:
            found.append((at, count))
    return found


def windows(samples: Sequence[Sample], seconds: float) -> list[float]:
    """Bytes per second in each window of so many seconds that begins at a sample; none where they are too few."""
    found, last = [], 0
    for at, count in samples:
        while last < len(samples) and samples[last][0] < at + seconds:
            last += 1
        if last == len(samples):
            break
        found.append((samples[last][1] - count) / (samples[last][0] - at))
    return found
