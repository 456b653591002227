"""A stack in the foreground: looked after until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.stack.stack import Stack

#: How often (seconds) the processes are looked at.
LOOK_SECONDS = 0.5


def watch(stack: Stack, say: Callable[[str], None]) -> None:
    """Tell when a process goes or comes back; returns when none is left. KeyboardInterrupt goes through."""
    before = set(stack.running())
    while before:
        time.sleep(LOOK_SECONDS)
        now = set(stack.running())
        for name in sorted(before - now):
            say(f"{name} has ended; start it again with: rehome stack start {name} --data {stack.data}")
        for name in sorted(now - before):
            say(f"{name} is back")
        before = now
    say("all processes have ended")
