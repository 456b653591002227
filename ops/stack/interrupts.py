"""What Ctrl-C, SIGTERM and SIGHUP do while a stack is started or stopped."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt as Ctrl-C does, so that a stopped terminal or job stops its stack too.

    Only the first of them does: those that follow would hit the one who is cleaning up.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """While everything is stopped in order, an impatient second Ctrl-C does not leave half of it running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
