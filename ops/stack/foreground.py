"""A stack in the foreground: its processes are monitored until Ctrl-C."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from ops.stack.stack import Stack

#: Seconds between two checks of the processes.
LOOK_SECONDS = 0.5


def watch(stack: Stack, say: Callable[[str], None]) -> None:
    """Report when a process exits or starts; return when none is left. Ctrl-C raises KeyboardInterrupt."""
    before = set(stack.running())
    while before:
        time.sleep(LOOK_SECONDS)
        now = set(stack.running())
        for name in sorted(before - now):
            restart = shlex.join(["rehome", "stack", "start", name, "--data", str(stack.data)])
            say(f"{name} has exited; restart it with: {restart}")
        for name in sorted(now - before):
            say(f"{name} is running again")
        before = now
    say("all processes have exited")
