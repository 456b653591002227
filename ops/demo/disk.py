"""The folders of moves and deletions that are left on a stack's disks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = (".move", ".delete")


def leftovers(directories: Iterable[Path]) -> list[Path]:
    """Return the `.move` and `.delete` folders in the log directories."""
    entries = (entry for directory in directories for entry in directory.iterdir())
    return sorted(entry for entry in entries if entry.is_dir() and entry.suffix in SUFFIXES)


def wait_until_clean(directories: list[Path], seconds: float) -> list[Path]:
    """Wait up to `seconds` until no such folder is left; return those that are."""
    until = time.monotonic() + seconds
    while (left := leftovers(directories)) and time.monotonic() < until:
        time.sleep(0.2)
    return left
