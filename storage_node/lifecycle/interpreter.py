"""Check and configure the Python interpreter: one with the global interpreter lock, which threads hand over early.

Partitions, logs and connections publish what other threads read by single assignments and by operations on one set or
dictionary. The lock makes those atomic and ordered; without it they are data races, and records could be lost silently.
"""

from __future__ import annotations

import sys
import sysconfig
from typing import Final

#: Seconds after which a waiting thread gets the lock. A small append takes the lock about ten times on its way to the
#: disk and back: at Python's 5 ms each, one computing thread makes that 50 ms, and producers of twenty records a second
#: queue up without end.
SWITCH: Final = 0.0005


def refusal() -> str:
    """Return why this interpreter is rejected, "" for one that is supported.

    A free-threaded build (PEP 703) is rejected even where PYTHON_GIL=1 turns its lock on: the extension modules that
    are used are neither built nor tested for it.
    """
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    if enabled and not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ""
    return (
        f"{sys.executable} is a free-threaded Python (PEP 703), on which rehome is not safe: "
        "run it with a build of Python that has the global interpreter lock"
    )


def share_early() -> None:
    """Let this process's threads hand the lock over every `SWITCH` seconds, for those that serve small requests."""
    sys.setswitchinterval(SWITCH)
