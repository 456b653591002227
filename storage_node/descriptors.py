"""How many files this process may have open, and how many of those are left to connections.

Every connection is an open file, and so is every segment that was used lately. Without a share of their own, clients
that connect and connect could take what a flush needs, and a healthy disk would look like a failed one; and as many
segments as there are could take all that connections need.
"""

from __future__ import annotations

import contextlib
import logging
import resource

log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit of open files as far as it may; answers the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            log.info("limit of open files raised from %d to %d", soft, hard)
    return open_files()


def open_files() -> int:
    """The limit in force."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def most_connections(configured: int) -> int:
    """`max.connections`, or half of what may be open if that is less."""
    return min(configured, open_files() // 2)


def most_kept_open() -> int:
    """How many segments may be kept open between two uses: a quarter of all files. Readers may hold some more."""
    return open_files() // 4
