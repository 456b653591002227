"""Whether a file system was mounted read-only, by the operator or by the kernel after an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["is_read_only", "read_only_options"]

_TABLE: Final = Path("/proc/self/mountinfo")
#: A blank, tab, line feed or backslash in the name of a mount point.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_READ_ONLY: Final = frozenset({"ro", "emergency_ro"})


def read_only_options(table: Iterable[str], path: str) -> frozenset[str]:
    """Return the options by which the mount that holds a path, or its file system, is read-only.

    `table` has the lines of /proc/self/mountinfo (proc(5)); the longest mount point that leads to `path` holds it, and
    of two at the same place the later one. One file system may be mounted at other places with other options.
    """
    found: frozenset[str] = frozenset()
    longest = 0
    for line in table:
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 6 or not filesystem.split():
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if len(point) < longest or not (path + "/").startswith(point.rstrip("/") + "/"):
            continue
        longest = len(point)
        found = frozenset({*fields[5].split(","), *filesystem.split()[-1].split(",")}) & _READ_ONLY
    return found


def is_read_only(path: str) -> bool:
    """Return whether the file system that holds an absolute path is mounted read-only; False where the system does not
    report it. Does not touch the file system, which may hang.
    """
    try:
        return bool(read_only_options(_TABLE.read_text("utf-8", "replace").splitlines(), path))
    except OSError:
        return False
