"""Limit how many files this process may have open, and how many of those connections may take.

Every connection is an open file, and so is every recently used segment. Without shares of their own, clients that open
many connections could take what a flush needs, and a healthy disk would look like a failed one; and many segments could
take all that connections need.
"""

from __future__ import annotations

import contextlib
import logging
import resource

log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit of open files as far as possible; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            log.info("limit of open files raised from %d to %d", soft, hard)
    return open_files()


def open_files() -> int:
    """Return the limit in force."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def most_connections(configured: int) -> int:
    """Return `max.connections`, or half of the limit of open files if that is less."""
    return min(configured, open_files() // 2)


def most_kept_open() -> int:
    """Return how many segments may stay open between two uses: a quarter of all files. Readers may hold some more."""
    return open_files() // 4
