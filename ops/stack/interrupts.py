"""Handling of Ctrl-C, SIGTERM and SIGHUP during the start and stop of a stack."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP as on Ctrl-C, so that the end of a terminal or job stops its stack.

    Only the first signal does so: later ones would interrupt the cleanup.
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
    """Ignore these signals, so that a second Ctrl-C during an orderly stop does not leave processes running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
