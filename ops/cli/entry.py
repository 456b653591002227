"""The first that the `rehome` command runs: Ctrl-C while all the rest is being loaded ends it without a stack trace."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from storage_node import interpreter


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing has begun yet. An exception here would come up in the middle of somebody's import."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    """Load the command and run it; see `ops.cli.main`."""
    # A shell starts what is in the background with the signal ignored, and so it stays.
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, _interrupted)
    if refused := interpreter.refusal():
        sys.exit(f"rehome: {refused}")
    from ops.cli.main import main as run

    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
