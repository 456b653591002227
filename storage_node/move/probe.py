"""An instrument, off unless asked for: when each write of a copy was done, and how many bytes it had.

REHOME_WRITE_PROBE names a file; a node then appends a record for each write of its movers to it: the moment at which
the write had ended (the monotonic clock, which all processes of a machine share; a double) and its bytes (64 bits).
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
    """What notes a write of so many bytes that has just ended; None unless the environment asks for it.

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
    """All writes so far, in the order in which they ended."""
    data = path.read_bytes()
    return sorted(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
