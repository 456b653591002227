"""Reads and writes of log files that failed once and were repeated, counted for each device."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Final

__all__ = ["count", "note"]

_log = logging.getLogger(__name__)

_counts: Final[dict[int, int]] = {}
_lock: Final = threading.Lock()


def note(fd: int) -> None:
    """Count an operation on an open file that fails with EIO and is repeated now."""
    with contextlib.suppress(OSError):
        device = os.fstat(fd).st_dev
        with _lock:
            _counts[device] = number = _counts.get(device, 0) + 1
        _log.warning("an I/O error on device %d:%d, the %d. one; the operation is repeated once",
                     os.major(device), os.minor(device), number)  # fmt: skip


def count(device: int) -> int:
    """Return how many operations on the device were repeated since this process began."""
    return _counts.get(device, 0)
