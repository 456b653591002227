"""What is left on the disks of a stack by name."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = (".move", ".delete")


def leftovers(directories: Iterable[Path]) -> list[Path]:
    """Directories named `.move` or `.delete` in the log directories."""
    entries = (entry for directory in directories for entry in directory.iterdir())
    return sorted(entry for entry in entries if entry.is_dir() and entry.suffix in SUFFIXES)


def wait_until_clean(directories: list[Path], seconds: float) -> list[Path]:
    """What is still left after at most `seconds`; returns as soon as nothing is."""
    until = time.monotonic() + seconds
    while (left := leftovers(directories)) and time.monotonic() < until:
        time.sleep(0.2)
    return left
