"""Processes that file permissions bind as they bind an ordinary user, also where the tests run as root.

Root opens what no user may open by two capabilities. A process without them owns its files as before, and a directory
of mode 000 is closed to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

#: Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH from what the command can have, and becomes the command.
_PROGRAM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for capability in (1, 2):
    if libc.prctl(24, capability, 0, 0, 0):
        sys.exit(f"cannot drop capability {capability}: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
"""


def prefix() -> list[str]:
    """What a command is put behind, so that permissions bind its process."""
    return [sys.executable, "-IS", "-c", _PROGRAM] if os.geteuid() == 0 else []


def bound(command: Sequence[str]) -> tuple[str, ...]:
    """The command, bound by permissions."""
    return (*prefix(), *command)
