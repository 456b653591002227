"""Record when each write of a copy ended and how many bytes it had; off by default.

REHOME_WRITE_PROBE names a file; a node then appends a record to it for each write of its movers: the moment at which
the write ended (the monotonic clock, which all processes of a machine share; a double) and its bytes (64 bits).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = "REHOME_WRITE_PROBE"
RECORD = struct.Struct("<dq")


def wanted() -> Callable[[int], None] | None:
    """Return a function that records a write that has just ended; None unless the environment requests it.

    Raises OSError for a file that cannot be written.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(count: int) -> None:
        os.write(descriptor, RECORD.pack(time.monotonic(), count))

    return note


def read(path: Path) -> list[tuple[float, int]]:
    """Return all writes so far, in the order in which they ended."""
    data = path.read_bytes()
    return sorted(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
