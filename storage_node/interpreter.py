"""Which Python this project runs on: one with the global interpreter lock.

Partitions, logs and connections publish what other threads read by single assignments and by operations on one set or
dictionary. The lock makes those atomic and ordered; without it they are data races, and records could be lost silently.
"""

from __future__ import annotations

import sys
import sysconfig


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
