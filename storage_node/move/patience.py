"""Wait for locks whose holder may hang in a disk, no longer than it takes to detect that."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from storage_node.directories.directory import LogDirectory

SECONDS = 3.0
"""How long to wait for a lock once a directory is offline; while all are online the wait has no limit."""
_LOOK = 0.2


class Lock(Protocol):
    """A lock of `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


def acquire(lock: Lock, directories: Iterable[LogDirectory], seconds: float | None = None) -> bool:
    """Acquire a lock; return False if it is not free when one of `directories` has been offline for `seconds`."""
    patience = SECONDS if seconds is None else seconds
    watched = tuple(directories)
    until = time.monotonic() + patience
    while not lock.acquire(timeout=_LOOK):
        if all(directory.online for directory in watched):
            until = time.monotonic() + patience
        elif time.monotonic() > until:
            return False
    return True


@contextmanager
def held(lock: Lock, directories: Iterable[LogDirectory], seconds: float | None = None) -> Iterator[bool]:
    """Hold a lock, or proceed without it where `acquire` returns False; yields whether it is held."""
    free = acquire(lock, directories, seconds)
    try:
        yield free
    finally:
        if free:
            lock.release()
