"""The growth of copies' files by `stat`, from outside the node.

It includes the time before the first write and the pauses between writes, which a probe at the writes does not.
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

#: A time (seconds) and the files' size in bytes.
Sample = tuple[float, int]


class Growth:
    """A context manager that samples the size of all segments in a directory's future replicas."""

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
    """Return the size of the segments in a directory's future replicas."""
    found = 0
    for folder in directory.glob(f"*{FUTURE}"):
        try:
            found += sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".log"))
        except FileNotFoundError:  # swapped meanwhile
            continue
    return found


def growing(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples from the first byte until the size decreases, when a copy is swapped."""
    found: list[Sample] = []
    for at, count in samples:
        if found and count < found[-1][1]:
            break
        if count:
            found.append((at, count))
    return found


def windows(samples: Sequence[Sample], seconds: float) -> list[float]:
    """Return bytes per second in each window of `seconds` that begins at a sample; empty if there are too few."""
    found, last = [], 0
    for at, count in samples:
        while last < len(samples) and samples[last][0] < at + seconds:
            last += 1
        if last == len(samples):
            break
        found.append((samples[last][1] - count) / (samples[last][0] - at))
    return found
